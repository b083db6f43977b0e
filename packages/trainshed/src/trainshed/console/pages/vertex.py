"""Reads collections of the Vertex API in the project and region of a page, and shows them as tables."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

from trainshed.console.rendering import id_of
from trainshed.console.visits import View, Visit

_PAGE: Final = 100


def vertex_path(visit: Visit, below: str) -> str:
    """Return the Vertex API's path of something in the page's project and region. `below`: its end,
    encoded."""
    project, region = visit.place
    return f"/v1/projects/{quote(project, safe='')}/locations/{quote(region, safe='')}/{below}"


async def vertex_page(
    visit: Visit, below: str, *, token: str = "", size: int = _PAGE, **query: str
) -> Any:
    """Return one page of a collection of the Vertex API, as JSON. `query`: its filter or order. Raises
    Refused."""
    query |= {"pageSize": str(size), **({"pageToken": token} if token else {})}
    path = vertex_path(visit, below)
    return await visit.backend.call(visit.principal, "GET", f"{path}?{urlencode(query)}")


async def vertex_table(
    visit: Visit,
    collection: str,
    columns: tuple[str, str, str, str],
    nothing: str,
    cells: Callable[[Any], tuple[str, str]],
    *,
    answer: Any = None,
) -> View:
    """Return the page that lists a collection of the Vertex API: a row for each resource with its name, the
    two `cells`, and when it was created. `nothing`: the text of an empty list; `answer`: the list's, where
    it is not simply that of the collection."""
    if answer is None:
        answer = await vertex_page(visit, collection, token=visit.query("page"))
    rows = [
        (
            item.get("displayName", ""),
            id_of(item["name"]),
            visit.on(f"/{collection}/{quote(id_of(item['name']), safe='')}"),
            *cells(item),
            item.get("createTime", ""),
        )
        for item in answer.get(collection, ())
    ]
    values = {
        "columns": columns,
        "nothing": nothing,
        "rows": rows,
        "following": visit.next_page(answer.get("nextPageToken")),
    }
    return View(collection.capitalize(), "table.html", values, place=collection)
