"""The methods that the public APIs have, whether or not they are served here (made by
`tools/known_methods.py`).

Owns finding one by its request line or its name. Read with the first request that nothing serves.
"""

import json
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from trainshed.httpd.routing import Router, Template
from trainshed.wire.pool import read_data


class KnownMethod(Struct, frozen=True):
    """A method that a public API has."""

    #: Of the RPC with its service, or the discovery document's id.
    name: str
    #: Its template, or that of another method of the service where only gRPC has this one; "" where none has
    #: a path.
    path: str


def by_request(verb: str, path: str) -> KnownMethod | None:
    """The method that a public API has at this verb and encoded path (no query)."""
    found = _methods().router.match(verb, path)
    if found is None:
        return None
    return found[0]


def by_name(name: str) -> KnownMethod | None:
    """The method of this full RPC name, `google.cloud.aiplatform.v1.DatasetService.CreateDataset`."""
    methods = _methods()
    path = methods.paths.get(name)
    if path is None:
        return None
    return KnownMethod(name, path or methods.of_services.get(name.rpartition(".")[0], ""))


class _Methods(Struct, frozen=True):
    router: Router[KnownMethod]
    paths: Mapping[str, str]
    of_services: Mapping[str, str]


@cache
def _methods() -> _Methods:
    router = Router[KnownMethod]()
    paths: dict[str, str] = {}
    of_services: dict[str, str] = {}
    for name, verb, path in json.loads(read_data("known_methods.json.gz")):
        paths.setdefault(name, path)
        if verb:
            router.add(verb, Template.parse(path), KnownMethod(name, path))
            of_services.setdefault(name.rpartition(".")[0], path)
    return _Methods(router, paths, of_services)
