"""Which API a REST request below `/v1/projects/P/locations/L/` belongs to, where `ml` v1 and Vertex have one path for both.

The public services are two hosts; here they are one. What tells them apart is the id: the ids of Vertex's studies and
operations are all digits, those of `ml` v1 never are. A request that has no such id yet is told by what only a client
of `ml` v1 sends.
"""

from collections.abc import Collection
from urllib.parse import unquote

_BELOW_LOCATION = 6
_APICLIENT = "gdcl/"
"""In `x-goog-api-client`: the generic client of discovery documents, by which everybody uses `ml` v1."""


def is_request_of_ml(verb: str, path: str, parameters: Collection[str], client: str) -> bool:
    """Whether the request is one of `ml` v1 on a path that Vertex has, too.

    `path`: still percent-encoded. `parameters`: the names in the query. `client`: the header `x-goog-api-client`.
    A study is created by `ml` v1 if the query has its `studyId`; a list of studies is in the words of `ml` v1 for the
    apiclient, and in Vertex's for all others.
    """
    parts = path.split("/")
    match parts[1:_BELOW_LOCATION]:
        case ["v1", "projects", _, "locations", _]:
            pass
        case _:
            return False
    match parts[_BELOW_LOCATION:]:
        case ["studies"]:
            return "studyId" in parameters if verb == "POST" else _APICLIENT in client
        case ["studies" | "operations", name]:
            name = name.partition(":")[0]
        case ["studies" | "operations", name, *_]:
            pass
        case _:
            return False
    return not unquote(name).isdecimal()
