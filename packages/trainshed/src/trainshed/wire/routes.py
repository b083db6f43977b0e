"""Which RPC a REST request calls, and the message that its line, query and body make: the rules of
google.api.http transcoding, with the RPCs as the descriptor sets define them (a list made by
`tools/http_rules.py`). Over gRPC the message comes ready; see `json.check_received`.

The module knows no handler and no server. The sets themselves are not read to find a route, because that
takes much longer, and starts of the service would wait.

It also knows the methods that the public APIs have, whether or not they are served here (a list made by
`tools/known_methods.py`), which is read with the first request that no method serves.
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

_ADDED: Final[Mapping[str, Sequence[tuple[str, str, str, str]]]] = tomllib.loads(
    Path(__file__).with_name("added_paths.toml").read_text("utf-8")
)
MIXED_IN: Final = frozenset(rpc.rpartition(".")[0] for rpc, *_ in _ADDED["aiplatform_v1"])
"""Services whose own annotations name paths that this service does not have, and which every REST client of
Vertex calls below /ui/ before it tries /v1/."""
# Parameters of the protocol, not of a method; spellings with a `$` prefix are equal.
_SYSTEM: Final = frozenset(
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
        # Chooses between two public error forms; there is one here.
        ".xgafv",
    }
)


class Rpc(Struct, frozen=True, array_like=True):
    """One method of a public service; all names are full names without a leading dot."""

    service: str
    method: str
    request: str
    response: str
    #: (HTTP method, path template, body field) of each REST binding.
    bindings: tuple[tuple[str, str, str], ...]
    #: Whether it returns a stream of responses.
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


def bind(
    route: Route, variables: Mapping[str, str], query: Iterable[tuple[str, str]], body: bytes
) -> Message:
    """Build the route's request message. Raises WireError with every violation of body and query.

    `variables` are those of `match`, `query` the decoded pairs in their order. Output-only fields of the body
    are ignored; path variables win over the same field in the body. A body sent to a route without one is
    not read.
    """
    message = pool.message_class(route.rpc.request)()
    plan = plans.plan_for(message)
    walk = Walk(keep_output_only=False)
    violations: list[Violation] = []
    if route.body:
        raw = decode_text(body)
        walk.message(plan, raw if route.body == "*" else {route.body: raw}, message, "")
    own = [pair for pair in query if pair[0].removeprefix("$") not in _SYSTEM]
    parameters = _tree(plan, own, route.body, violations)
    if parameters:
        walk.message(plan, parameters, message, "")
    for name, text in variables.items():
        _set_variable(message, name, text)
    if violations or walk.violations:
        raise WireError((*walk.violations, *violations), message, undecided=tuple(walk.undecided))
    return message


def wants_numbers(query: Iterable[tuple[str, str]]) -> bool:
    """Whether a client wants enums as numbers (`$alt=json;enum-encoding=int`). All other system parameters
    are ignored: an answer is always whole and compact."""
    alts = [text for key, text in query if key.removeprefix("$") == "alt"]
    return bool(alts) and "enum-encoding=int" in alts[-1]


def _tree(
    plan: Plan, query: list[tuple[str, str]], body: str, violations: list[Violation]
) -> dict[str, Any]:
    """Return the equivalent JSON object of dotted parameters. Those that name fields of the body are
    violations."""
    root: dict[str, Any] = {}
    for key, text in query:
        node, at = root, plan
        names = key.split(".")
        for depth, name in enumerate(names):
            field = at.by_key.get(name)
            last = depth == len(names) - 1
            if (
                field is None
                or body == "*"
                or (depth == 0 and field.name == body)
                or field.shape is Shape.MAP
                or (not last and field.shape is Shape.LIST)
                or last is (field.value.message is not None and not field.value.plan.is_special)
            ):
                reason = (
                    f'Invalid JSON payload received. Unknown name "{key}": Cannot bind query parameter. '
                    f"Field '{name}' could not be found in request message."
                )
                violations.append(Violation(key, reason))
                break
            if not last:
                node = cast(dict[str, Any], node.setdefault(field.name, {}))
                at = field.value.plan
            else:
                value: str | bool = text
                if _is_bool(field):  # A query has no types; other texts are converted by the walk.
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
    for name, verb, path in json.loads(pool.read_data("known_methods.json.gz")):
        paths.setdefault(name, path)
        if verb:
            router.add(verb, Template.parse(path), KnownMethod(name, path))
            of_services.setdefault(name.rpartition(".")[0], path)
    return _Methods(router, paths, of_services)
