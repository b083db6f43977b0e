"""RPCs and REST routes, read from the http annotations of the descriptor sets.

Owns matching a request line to an RPC; knows no handler and no server. A path is given as it came
over the wire (still percent-encoded): segments are split first and decoded after, so that
`models/ID%401` and an encoded slash reach the right variable (spec/clients#surface).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from trainshed.wire import pool

if TYPE_CHECKING:
    from google.protobuf import descriptor

# The operations, locations and policy mixins have no rules of their own for these paths: the
# public services add them by configuration. (RPC, verb, template, body); spec/clients#surface.
_PLACE = "projects/*/locations/*"
_OPERATION_PARENTS = ("", "/*/*", "/*/*/*/*")
_MIXINS: Final[tuple[tuple[str, str, str, str], ...]] = (
    *(
        (
            "google.longrunning.Operations." + rpc,
            verb,
            "/v1/{name=" + _PLACE + rest + "}" + suffix,
            "",
        )
        for parent in _OPERATION_PARENTS
        for rpc, verb, rest, suffix in (
            ("ListOperations", "GET", parent, "/operations"),
            ("GetOperation", "GET", parent + "/operations/*", ""),
            ("DeleteOperation", "DELETE", parent + "/operations/*", ""),
            ("CancelOperation", "POST", parent + "/operations/*", ":cancel"),
            ("WaitOperation", "POST", parent + "/operations/*", ":wait"),
        )
    ),
    ("google.cloud.location.Locations.ListLocations", "GET", "/v1/{name=projects/*}/locations", ""),
    ("google.cloud.location.Locations.GetLocation", "GET", "/v1/{name=" + _PLACE + "}", ""),
    *(
        (
            "google.iam.v1.IAMPolicy." + rpc,
            verb,
            "/v1/{resource=" + _PLACE + "/*/*}:" + custom,
            body,
        )
        for rpc, verb, custom, body in (
            ("GetIamPolicy", "GET", "getIamPolicy", ""),
            ("GetIamPolicy", "POST", "getIamPolicy", "*"),
            ("SetIamPolicy", "POST", "setIamPolicy", "*"),
        )
    ),
    # Anybody may ask what he may do, of whatever there is below a project, and of the project.
    *(
        ("google.iam.v1.IAMPolicy.TestIamPermissions", "POST", path + ":testIamPermissions", "*")
        for path in ("/v1/{resource=projects/**}", "/v3/{resource=projects/*}")
    ),
)
# These services' own annotations name paths that this service does not have.
_REPLACED: Final = frozenset(
    {
        "google.longrunning.Operations",
        "google.cloud.location.Locations",
        "google.iam.v1.IAMPolicy",
    }
)


@dataclass(frozen=True, slots=True)
class Rpc:
    """One method of a public service; all names are full names without a leading dot."""

    service: str
    method: str
    request: str
    response: str
    client_streaming: bool
    server_streaming: bool

    @property
    def path(self) -> str:
        """The gRPC path, `/package.Service/Method`."""
        return f"/{self.service}/{self.method}"


@dataclass(frozen=True, slots=True)
class Route:
    """One REST binding of an RPC.

    `template` is the annotation's path; `variables` gives each variable's dotted field path and
    the half-open range of path segments that it takes (a `**` takes all that follow). `body` is
    `""` (no body), `"*"` (the whole request) or the name of the request's field.
    """

    api: str
    rpc: Rpc
    verb: str
    template: str
    body: str
    segments: tuple[str, ...]
    custom: str
    variables: tuple[tuple[str, int, int], ...]

    @property
    def service(self) -> str:
        """The full name of the service."""
        return self.rpc.service

    @property
    def method(self) -> str:
        """The RPC's name."""
        return self.rpc.method


class _Node:
    """One path segment of the tree: literal children, one wildcard, and what ends here."""

    __slots__ = ("ends", "literals", "rest", "wildcard")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.wildcard: _Node | None = None
        self.ends: dict[tuple[str, str], Route] = {}
        self.rest: dict[tuple[str, str], Route] = {}
        """Routes whose template ends in `**` at this point."""


class RouteTable:
    """Finds the route of a request line. Built once, read by any thread.

    Where two routes have one verb and shape, the first one given wins: put the API that owns a
    shared path first. A literal segment is preferred to a wildcard.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._customs: set[str] = set()
        kept: list[Route] = []
        for route in routes:
            if self._insert(route):
                kept.append(route)
        self.routes = tuple(kept)

    def _insert(self, route: Route) -> bool:
        node = self._root
        if route.custom:
            self._customs.add(route.custom)
        key = (route.verb, route.custom)
        for segment in route.segments:
            if segment == "**":
                return node.rest.setdefault(key, route) is route
            if segment == "*":
                node.wildcard = node.wildcard or _Node()
                node = node.wildcard
            else:
                node = node.literals.setdefault(segment, _Node())
        return node.ends.setdefault(key, route) is route

    def match(self, verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of `verb` and the encoded `path` (no query), with its decoded variables.

        None when nothing is served there; an empty segment matches nothing.
        """
        parts = path.split("/")
        if parts[0] or len(parts) < 2:
            return None
        del parts[0]
        head, colon, custom = parts[-1].rpartition(":")
        route = None
        if colon and custom in self._customs:
            last, parts[-1] = parts[-1], head
            route = self._find(self._root, parts, 0, (verb, custom))
            if route is None:
                parts[-1] = last
        if route is None:
            route = self._find(self._root, parts, 0, (verb, ""))
        if route is None:
            return None
        joined = {
            name: unquote("/".join(parts[start : end or None]))
            for name, start, end in route.variables
        }
        return route, joined

    def _find(
        self, node: _Node, parts: Sequence[str], at: int, key: tuple[str, str]
    ) -> Route | None:
        if at == len(parts):
            return node.ends.get(key)
        part = parts[at]
        if not part:
            return None
        child = node.literals.get(part)
        found = self._find(child, parts, at + 1, key) if child is not None else None
        if found is None and node.wildcard is not None:
            found = self._find(node.wildcard, parts, at + 1, key)
        return found if found is not None else node.rest.get(key)


@cache
def rpcs(api: pool.Api) -> Mapping[str, Rpc]:
    """Every RPC of an API by its gRPC path."""
    return {
        rpc.path: rpc
        for service in pool.service_descriptors(api)
        for rpc in (_rpc(service, method) for method in service.methods)
    }


@cache
def routes(api: pool.Api) -> tuple[Route, ...]:
    """Every REST route of an API, in the order of its services and annotations."""
    found: list[Route] = []
    for service in pool.service_descriptors(api):
        if service.full_name in _REPLACED:
            continue
        for method in service.methods:
            rule: Any = method.GetOptions().Extensions[pool.annotations().http]
            for binding in (rule, *rule.additional_bindings):
                verb = binding.WhichOneof("pattern")
                if verb is not None:
                    template = getattr(binding, verb)
                    found.append(
                        route_of(api, _rpc(service, method), verb.upper(), template, binding.body)
                    )
    if api == "aiplatform_v1":
        by_name = {f"{rpc.service}.{rpc.method}": rpc for rpc in rpcs(api).values()}
        found += [
            route_of(api, by_name[name], verb, path, body) for name, verb, path, body in _MIXINS
        ]
    return tuple(found)


@cache
def route_table(*apis: pool.Api) -> RouteTable:
    """The table of these APIs, the first one winning a shared path; without a name, of all."""
    return RouteTable(route for api in apis or pool.APIS for route in routes(api))


def match(verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """`RouteTable.match` over all APIs in the order of `pool.APIS`."""
    return route_table().match(verb, path)


def _rpc(service: "descriptor.ServiceDescriptor", method: "descriptor.MethodDescriptor") -> Rpc:
    return Rpc(
        service.full_name,
        method.name,
        method.input_type.full_name,
        method.output_type.full_name,
        method.client_streaming,
        method.server_streaming,
    )


def route_of(api: str, rpc: Rpc, verb: str, template: str, body: str) -> Route:
    """Take a template apart: `/v1/{parent=projects/*}/jobs:verb`."""
    path, custom = template.lstrip("/"), ""
    head, colon, tail = path.rpartition(":")
    if colon and "}" not in tail:
        path, custom = head, tail
    segments: list[str] = []
    variables: list[tuple[str, int, int]] = []
    position = 0
    while position < len(path):
        if path[position] == "{":
            close = path.index("}", position)
            name, _, pattern = path[position + 1 : close].partition("=")
            inner = (pattern or "*").split("/")
            end = 0 if inner[-1] == "**" else len(segments) + len(inner)
            variables.append((name, len(segments), end))
            segments += inner
            position = close + 1
        else:
            close = path.find("{", position)
            literal = path[position : close if close >= 0 else len(path)]
            segments += [part for part in literal.split("/") if part]
            position += len(literal)
    return Route(api, rpc, verb, template, body, tuple(segments), custom, tuple(variables))
