"""Finds the RPC of a REST request, and builds its message from path, query and body.

The module implements google.api.http transcoding. It reads the RPCs from a list, which `tools/http_rules.py`
creates from the descriptor sets. Reading the sets themselves would delay the service's start. The module does
not depend on handlers or servers. gRPC requests already contain the message (`json.check_received`).

A second list, which `tools/known_methods.py` creates, contains all methods of the public APIs, including
those that this service does not serve. It is loaded for the first request without a served method.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from google.protobuf.message import Message
from msgspec import Struct

from trainshed.httpd.routing import Router, Template
from trainshed.wire import plans, pool
from trainshed.wire.json import Walk, decode_text
from trainshed.wire.plans import Plan, Shape
from trainshed.wire.status import Violation, WireError

_ADDED_PATHS: Final[Mapping[str, Sequence[tuple[str, str, str, str]]]] = tomllib.loads(
    Path(__file__).with_name("added_paths.toml").read_text("utf-8")
)
MIXIN_SERVICES: Final = frozenset(rpc.rpartition(".")[0] for rpc, *_ in _ADDED_PATHS["aiplatform_v1"])
"""Services whose annotations contain paths that this service does not serve. REST clients of Vertex try their
paths below /ui/ before those below /v1/."""
# Parameters of the protocol, not of a method. They may start with `$`.
_SYSTEM_PARAMETERS: Final = frozenset(
    {
        "access_token",
        "alt",
        "callback",
        "fields",
        "key",
        "oauth_token",
        "prettyPrint",
        "pp",
        "quotaUser",
        "trace",
        "upload_protocol",
        "uploadType",
        "userProject",
        # Selects one of two public error forms. This service supports only one form.
        ".xgafv",
    }
)


class Rpc(Struct, frozen=True, array_like=True):
    """A method of a public service. All names are full names without a leading dot."""

    service: str
    method: str
    request: str
    response: str
    #: (HTTP method, path template, body field) of each REST binding.
    bindings: tuple[tuple[str, str, str], ...]
    #: Whether the method returns a stream of responses.
    streams: bool = False

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
    #: The path template in the annotation.
    template: Template
    #: Name of the request field in the body; "*" = the body is the whole request, "" = no body.
    body: str


@cache
def _rpcs() -> Mapping[pool.Api, tuple[Rpc, ...]]:
    return msgspec.json.decode(pool.read_data("calls.json.gz"), type=dict[pool.Api, tuple[Rpc, ...]])


def rpcs(api: pool.Api) -> Mapping[str, Rpc]:
    """Return all RPCs of an API by gRPC path."""
    return {rpc.path: rpc for rpc in _rpcs()[api]}


@cache
def routes(api: pool.Api) -> tuple[Route, ...]:
    """Return all REST routes of an API, in the order of its services and annotations."""
    by_name = {rpc.full_name: rpc for rpc in _rpcs()[api]}
    bindings = [
        (rpc, *binding)
        for rpc in by_name.values()
        if rpc.service not in MIXIN_SERVICES
        for binding in rpc.bindings
    ]
    bindings += [(by_name[name], *binding) for name, *binding in _ADDED_PATHS.get(api, ())]
    return tuple(Route(api, rpc, verb, Template.parse(path), body) for rpc, verb, path, body in bindings)


@cache
def _router() -> Router[Route]:
    """Return the router of all APIs. If APIs share a path, the first API in `pool.APIS` has priority."""
    return Router((route.verb, route.template, route) for api in pool.APIS for route in routes(api))


def match(verb: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """Return the route of a request line and its path variables, or None if no route matches."""
    return _router().match(verb, path)


def bind(
    route: Route, variables: Mapping[str, str], query: Iterable[tuple[str, str]], body: bytes
) -> Message:
    """Build the route's request message.

    `variables`: the path variables from `match`. `query`: the decoded pairs in order. Output-only fields of
    the body are ignored. Path variables override the same fields in the body. If the route has no body, the
    body is ignored. Raises WireError with all violations of body and query.
    """
    message = pool.message_class(route.rpc.request)()
    plan = plans.plan_for(message)
    walk = Walk(keep_output_only=False)
    violations: list[Violation] = []
    if route.body:
        raw = decode_text(body)
        walk.message(plan, raw if route.body == "*" else {route.body: raw}, message, "")
    own = [pair for pair in query if pair[0].removeprefix("$") not in _SYSTEM_PARAMETERS]
    parameters = _tree(plan, own, route.body, violations)
    if parameters:
        walk.message(plan, parameters, message, "")
    for name, text in variables.items():
        _set_variable(message, name, text)
    if violations or walk.violations:
        raise WireError((*walk.violations, *violations), message, unknown_enums=tuple(walk.unknown_enums))
    return message


def has_numeric_enums(query: Iterable[tuple[str, str]]) -> bool:
    """Whether the client requests enums as numbers (`$alt=json;enum-encoding=int`). All other system
    parameters are ignored: a response is always complete and compact."""
    alts = [text for key, text in query if key.removeprefix("$") == "alt"]
    return bool(alts) and "enum-encoding=int" in alts[-1]


def _tree(plan: Plan, query: list[tuple[str, str]], body: str, violations: list[Violation]) -> dict[str, Any]:
    """Return the JSON object that dotted query parameters form. Parameters for fields of the body are added
    to `violations`."""
    root: dict[str, Any] = {}
    for key, text in query:
        node, parent = root, plan
        names = key.split(".")
        for depth, name in enumerate(names):
            field = parent.by_key.get(name)
            is_last = depth == len(names) - 1
            if (
                field is None
                or body == "*"
                or (depth == 0 and field.name == body)
                or field.shape is Shape.MAP
                or (not is_last and field.shape is Shape.LIST)
                or is_last is (field.value.message is not None and not field.value.plan.is_special)
            ):
                reason = (
                    f'Invalid JSON payload received. Unknown name "{key}": Cannot bind query parameter. '
                    f"Field '{name}' could not be found in request message."
                )
                violations.append(Violation(key, reason))
                break
            if not is_last:
                node = cast(dict[str, Any], node.setdefault(field.name, {}))
                parent = field.value.plan
            else:
                value: str | bool = text
                # A query has no types. Only booleans are converted here, because the walk converts the texts
                # of all other types.
                if _is_bool(field):
                    value = {"true": True, "false": False}.get(text.lower(), text)
                if field.shape is Shape.LIST:
                    node.setdefault(field.name, []).append(value)
                else:
                    node[field.name] = value
    return root


def _is_bool(field: plans.Field) -> bool:
    value = field.value
    if value.message is not None and value.plan.is_wrapper:
        value = value.plan.by_key["value"].value
    return value.is_bool


def _set_variable(message: Message, name: str, text: str) -> None:
    *parents, last = name.split(".")
    target: Any = message
    for parent in parents:
        target = getattr(target, parent)
    try:
        setattr(target, last, text)
    except ValueError:
        raise WireError(
            (Violation(name, f"Invalid value at '{name}' (TYPE_STRING), the path is not UTF-8"),)
        ) from None


class KnownMethod(Struct, frozen=True):
    """A method of a public API, whether this service serves it or not."""

    #: Full name of the RPC, or the method's ID in the discovery document.
    name: str
    #: Path template of the method. For a method with gRPC only, a path of another method of its service; ""
    #: if its service has no paths.
    path: str


def find_by_request(verb: str, path: str) -> KnownMethod | None:
    """Return the public method with this HTTP method and encoded path (without query), or None."""
    matched = _methods().router.match(verb, path)
    if matched is None:
        return None
    return matched[0]


def find_by_name(name: str) -> KnownMethod | None:
    """Return the method with this full RPC name, such as
    `google.cloud.aiplatform.v1.DatasetService.CreateDataset`, or None."""
    methods = _methods()
    path = methods.paths.get(name)
    if path is None:
        return None
    return KnownMethod(name, path or methods.service_paths.get(name.rpartition(".")[0], ""))


class _Methods(Struct, frozen=True):
    router: Router[KnownMethod]
    paths: Mapping[str, str]
    service_paths: Mapping[str, str]


@cache
def _methods() -> _Methods:
    router = Router[KnownMethod]()
    paths: dict[str, str] = {}
    service_paths: dict[str, str] = {}
    for name, verb, path in json.loads(pool.read_data("known_methods.json.gz")):
        paths.setdefault(name, path)
        if verb:
            router.add(verb, Template.parse(path), KnownMethod(name, path))
            service_paths.setdefault(name.rpartition(".")[0], path)
    return _Methods(router, paths, service_paths)
