"""HTTP for what is ours: `/trainshed/v1/...` to handlers, JSON and NDJSON back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote

from trainshed.access.permissions import authorize
from trainshed.access.principals import Principal
from trainshed.api.errors import Refusal
from trainshed.api.http import (
    Receive,
    Scope,
    Send,
    header,
    raw_path,
    send_error,
    send_json,
    send_lines,
    send_refusal,
)
from trainshed.api.services import Services
from trainshed.api.trainshed_v1 import jobs, streams
from trainshed.api.trainshed_v1.call import JsonCall, JsonHandler, StreamHandler
from trainshed.wire.json import encode_text
from trainshed.wire.status import StatusCode

PREFIX: Final = "/trainshed/v1/"


@dataclass(frozen=True, slots=True)
class Method:
    """One method: its full name, and how it answers."""

    name: str
    answer: JsonHandler | None = None
    stream: StreamHandler | None = None


METHODS: Final[dict[tuple[str, str], Method]] = {
    ("GET", "status"): Method("trainshed.v1.Service.GetStatus", jobs.status),
    ("GET", "jobs"): Method("trainshed.v1.Jobs.List", jobs.list_),
    ("GET", "jobs/*"): Method("trainshed.v1.Jobs.Describe", jobs.describe),
    ("GET", "jobs/*/timeline"): Method("trainshed.v1.Jobs.Timeline", jobs.timeline),
    ("POST", "jobs/*:cancel"): Method("trainshed.v1.Jobs.Cancel", jobs.cancel),
    ("GET", "jobs/*/logs"): Method("trainshed.v1.Jobs.Logs", stream=streams.logs),
    ("GET", "jobs/*/watch"): Method("trainshed.v1.Jobs.Watch", stream=streams.watch),
}
"""By verb and shape of the path below the prefix; `*` is a job: an id, a uid, or an encoded full name."""


class TrainshedTransport:
    """`/trainshed/v1/...` as an ASGI application."""

    def __init__(self, services: Services, authenticate: Callable[[str | None], Principal]) -> None:
        self._services = services
        self._authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = raw_path(scope)
        shape, target = _shape(path.removeprefix(PREFIX))
        method = METHODS.get((scope["method"], shape))
        if method is None:
            text = f"There is no method {scope['method']} {path}."
            await send_refusal(send, Refusal(StatusCode.NOT_FOUND, text))
            return
        try:
            principal = self._authenticate(header(scope, b"authorization"))
            authorize(principal, method.name)
            query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
            call = JsonCall(principal, self._services, target, query)
            lines = await method.stream(call) if method.stream is not None else None
            answer = await method.answer(call) if method.answer is not None else {}
        except Exception as error:
            await send_error(send, error, "trainshed_v1", f"{scope['method']} {path}")
            return
        if lines is not None:
            await send_lines(receive, send, lines, self._services.closing)
        else:
            await send_json(send, encode_text(answer))


def _shape(path: str) -> tuple[str, str]:
    """The shape of a path and the job that it names: `jobs/a%2Fb/logs` to (`jobs/*/logs`, `a/b`)."""
    head, *rest = path.split("/")
    if head != "jobs" or not rest:
        return path, ""
    target, colon, verb = rest[0].rpartition(":")
    if not colon:
        target, verb = verb, ""
    return "/".join(("jobs", "*" + colon + verb, *rest[1:])), unquote(target)
