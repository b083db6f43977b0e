"""Collections of the Vertex API, of the project and region that a page is about."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

from trainshed.console.rendering import id_of
from trainshed.console.visits import View, Visit

_PAGE: Final = 100


def place_of(visit: Visit) -> tuple[str, str]:
    """The project and region that lists of one project are of."""
    project = visit.query("project") or visit.principal.project or visit.facts.project
    return project, visit.query("region") or visit.facts.region


def vertex_path(visit: Visit, below: str) -> str:
    """The path of something of the visit's project and region in the Vertex API; `below` is encoded."""
    project, region = place_of(visit)
    return f"/v1/projects/{quote(project, safe='')}/locations/{quote(region, safe='')}/{below}"


async def vertex_page(visit: Visit, below: str, *, token: str = "", size: int = _PAGE) -> Any:
    """A page of a collection of the Vertex API."""
    query = urlencode({"pageSize": str(size), **({"pageToken": token} if token else {})})
    path = vertex_path(visit, below)
    return await visit.backend.call(visit.principal, "GET", f"{path}?{query}")


async def vertex_table(
    visit: Visit,
    collection: str,
    columns: tuple[str, str, str, str],
    nothing: str,
    cells: Callable[[Any], tuple[str, str]],
) -> View:
    """The page of a collection of the Vertex API: one row each with its name, the two `cells` and when it was
    created. `nothing` is said where there is none."""
    answer = await vertex_page(visit, collection, token=visit.query("page"))
    rows = [
        (
            each.get("displayName", ""),
            id_of(each["name"]),
            visit.on(f"/{collection}/{quote(id_of(each['name']), safe='')}"),
            *cells(each),
            each.get("createTime", ""),
        )
        for each in answer.get(collection, ())
    ]
    values = {
        "columns": columns,
        "nothing": nothing,
        "rows": rows,
        "following": visit.next_page(answer.get("nextPageToken")),
    }
    return View(collection.capitalize(), "table.html", values, place=collection)
