"""Knows the methods that the public APIs have, whether or not they are served here (made by
`tools/known_methods.py`).

It finds one by its request line or its name. The list is read with the first request that no method serves.
"""

import json
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from trainshed.httpd.routing import Router, Template
from trainshed.wire.pool import read_data


class KnownMethod(Struct, frozen=True):
    """A method that a public API has."""

    #: Full name of the RPC, or the discovery document's id.
    name: str
    #: Path template of the method, or of another method of its service if it exists only in gRPC; "" if none
    #: has a path.
    path: str


def by_request(verb: str, path: str) -> KnownMethod | None:
    """Return the public method at this verb and encoded path (without query); None if there is none."""
    matched = _methods().router.match(verb, path)
    if matched is None:
        return None
    return matched[0]


def by_name(name: str) -> KnownMethod | None:
    """Return the method of a full RPC name such as `google.cloud.aiplatform.v1.DatasetService.CreateDataset`;
    None if there is none."""
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
