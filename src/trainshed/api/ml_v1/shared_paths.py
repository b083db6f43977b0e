"""Which API a REST request below `/v1/projects/P/locations/L/` belongs to, where `ml` v1 and Vertex have one path for both.

The public services are two hosts, and programs of jobs call them by those; for all others they are one here. What tells
them apart then is the id: the ids of Vertex's studies and
operations are all digits, those of `ml` v1 never are. A request that has no such id yet is told by what only a client
of `ml` v1 sends.
"""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

_BELOW_LOCATION = 6
_HOST: Final = re.compile(r"(?:[a-z0-9-]+-)?(ml|aiplatform)\.googleapis\.com(?::\d+)?")
_APICLIENT = "gdcl/"
"""In `x-goog-api-client`: the generic client of discovery documents, by which everybody uses `ml` v1."""


def is_request_of_ml(
    verb: str, path: str, parameters: Collection[str], client: str, host: str = ""
) -> bool:
    """Whether the request is one of `ml` v1 on a path that Vertex has, too.

    `path`: still percent-encoded. `parameters`: the names in the query. `client`: the header `x-goog-api-client`;
    `host`: who was called.
    A study is created by `ml` v1 if the query has its `studyId`; a list of studies is in the words of `ml` v1 for the
    apiclient, and in Vertex's for all others.
    """
    if called := _HOST.fullmatch(host):
        return called[1] == "ml"
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
