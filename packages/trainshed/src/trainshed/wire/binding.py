"""Combines the line, query and body of a REST request into the RPC's request message.

It owns the rules of google.api.http transcoding: path variables, query parameters, the body field. It knows
no server and no handler. Over gRPC the message comes ready; see `json.check_received`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from google.protobuf.message import Message

from trainshed.wire import plans, pool
from trainshed.wire.decode import Walk
from trainshed.wire.json import decode_text
from trainshed.wire.plans import Plan, Shape
from trainshed.wire.routes import Route
from trainshed.wire.status import Violation, WireError

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


def bind(
    route: Route, variables: Mapping[str, str], query: Iterable[tuple[str, str]], body: bytes
) -> Message:
    """Build the route's request message. Raises WireError with every violation of body and query.

    `variables` are those of `routes.match`, `query` the decoded pairs in their order. Output-only fields
    of the body are ignored; path variables win over the same field in the body. A body sent to a route
    without one is not read.
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
                or last is _is_plain_message(field)
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


def _is_plain_message(field: plans.Field) -> bool:
    return field.value.message is not None and not field.value.plan.is_special


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
