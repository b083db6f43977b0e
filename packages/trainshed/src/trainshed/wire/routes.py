"""Lists RPCs and REST routes as the descriptor sets define them (a list made by `tools/http_rules.py`).

It owns which RPC a request line means; `httpd.routing` finds it. It knows no handler and no server. The sets
themselves are not read for it, because that takes much longer, and starts of the service would wait.

It also knows the methods that the public APIs have, whether or not they are served here (a list made by
`tools/known_methods.py`), which is read with the first request that no method serves.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from trainshed.httpd.routing import Router, Template
from trainshed.wire import pool
from trainshed.wire.pool import read_data

_ADDED: Final[Mapping[str, Sequence[tuple[str, str, str, str]]]] = tomllib.loads(
    Path(__file__).with_name("added_paths.toml").read_text("utf-8")
)
MIXED_IN: Final = frozenset(rpc.rpartition(".")[0] for rpc, *_ in _ADDED["aiplatform_v1"])
"""Services whose own annotations name paths that this service does not have, and which every REST client of
Vertex calls below /ui/ before it tries /v1/."""


class Rpc(Struct, frozen=True, array_like=True):
    """One method of a public service; all names are full names without a leading dot."""

    service: str
    method: str
    request: str
    response: str
    #: (HTTP method, path template, body field) of each REST binding.
    bindings: tuple[tuple[str, str, str], ...]

    @property
    def full_name(self) -> str:
        return f"{self.service}.{self.method}"

    @property
    def path(self) -> str:
        """The gRPC path, `/package.Service/Method`."""
        return f"/{self.service}/{self.method}"


class Route(Struct, frozen=True):
    """One REST binding of an RPC."""

    api: str
    rpc: Rpc
    #: The HTTP method.
    verb: str
    #: The path of the annotation.
    template: Template
    #: "" (no body), "*" (the whole request) or the name of the request's field.
    body: str


@cache
def _rpcs() -> Mapping[pool.Api, tuple[Rpc, ...]]:
    return msgspec.json.decode(
        pool.read_data("calls.json.gz"), type=dict[pool.Api, tuple[Rpc, ...]]
    )


def rpcs(api: pool.Api) -> Mapping[str, Rpc]:
    """Return every RPC of an API by its gRPC path."""
    return {rpc.path: rpc for rpc in _rpcs()[api]}


@cache
def routes(api: pool.Api) -> tuple[Route, ...]:
    """Return every REST route of an API, in the order of its services and annotations."""
    by_name = {rpc.full_name: rpc for rpc in _rpcs()[api]}
    bindings = [
        (rpc, *binding)
        for rpc in by_name.values()
        if rpc.service not in MIXED_IN
        for binding in rpc.bindings
    ]
    bindings += [(by_name[name], *binding) for name, *binding in _ADDED.get(api, ())]
    return tuple(
        Route(api, rpc, verb, Template.parse(path), body) for rpc, verb, path, body in bindings
    )


@cache
def _router() -> Router[Route]:
    """Return the router of all APIs, where the first one of `pool.APIS` wins a shared path."""
    return Router((route.verb, route.template, route) for api in pool.APIS for route in routes(api))


def match(verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request line with its path variables, as `Router.match` does."""
    return _router().match(verb, path)


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
