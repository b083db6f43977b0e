"""The Model Context Protocol (revision 2026-07-28) over HTTP. Each POST is one stateless JSON-RPC request.
Its token identifies the caller."""

import asyncio
import base64
import binascii
import json
import re
from typing import Any, Final, cast

from msgspec import Struct

from trainshed.api.calls.http import MAX_BODY, error_response, parse_by_size
from trainshed.api.calls.services import ApiSettings, Authenticate
from trainshed.api.trainshed_v1.call import read_record
from trainshed.core.errors import InvalidRequest
from trainshed.httpd.messages import JSON, Receive, Request, Response, Scope, Send, serve, sized_response
from trainshed.wire.json import decode_text
from trainshed.wire.status import CallRejected, WireError
from trainshed_console.in_process import InProcessCaller
from trainshed_console.mcp.tools import BY_NAME, MAX_CHARACTERS, TOOLS, Arguments, CallerApi

VERSION: Final = "2026-07-28"
_META: Final = "io.modelcontextprotocol/"
_CACHED: Final = {"ttlMs": 3_600_000, "cacheScope": "public"}
_ENCODED: Final = ("=?base64?", "?=")
_INSTRUCTIONS: Final = (
    "Training jobs of this service. To submit a job, call submit_job with dry_run and fix the reported "
    "faults. Then call it with an idempotency_key and without dry_run. Call wait_for_job until the job has "
    "finished. If the job failed, call why_failed and job_logs."
)


class _Fault(Struct, frozen=True):
    """A JSON-RPC error with its HTTP status."""

    code: int
    message: str
    status: int = 400
    data: Any = None


class McpSurface:
    """Responds to requests at `/mcp`, as an ASGI application."""

    def __init__(self, settings: ApiSettings, authenticate: Authenticate, caller: InProcessCaller) -> None:
        self._settings = settings
        self._authenticate = authenticate
        self._caller = caller
        self._submitting = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await serve(Request(scope, receive), self._answer, error_response, receive, send)

    async def _answer(self, call: Request) -> Response:
        """Respond to a request. Raises Unauthenticated, BodyTooLarge, BodyNotRead."""
        if call.method != "POST":
            return sized_response(b"", JSON, 405, [(b"allow", b"POST")])
        call.api = "trainshed_v1"
        principal = await self._authenticate(call.headers.get("authorization"))
        body = await call.decoded_body(MAX_BODY)
        try:
            message = await parse_by_size(len(body), lambda: decode_text(body))
        except WireError as error:
            return _error_response(None, _Fault(-32700, str(error)))
        if fault := _find_fault(message):
            return _error_response(None, fault)
        if "id" not in message:
            return sized_response(b"", JSON, 202)
        identity, method, params = message["id"], message["method"], message.get("params", {})
        if fault := _mismatch(call, method, params):
            return _error_response(identity, fault)
        settings = self._settings
        match method:
            case "server/discover":
                result: dict[str, Any] = {
                    "supportedVersions": [VERSION],
                    "capabilities": {"tools": {}},
                    "instructions": _INSTRUCTIONS,
                    **_CACHED,
                    "_meta": {f"{_META}serverInfo": {"name": "trainshed", "version": settings.version}},
                }
            case "tools/list":
                result = {"tools": [tool.public for tool in TOOLS], **_CACHED}
            case "tools/call":
                tool = BY_NAME.get(params.get("name"))
                arguments = params.get("arguments", {})
                if tool is None or not isinstance(arguments, dict):
                    known = ", ".join(BY_NAME)
                    wrong = f"Call one of the tools {known}. Pass its arguments as an object."
                    return _error_response(identity, _Fault(-32602, wrong))
                api = CallerApi(self._caller, principal, settings.project, settings.region, self._submitting)
                try:
                    tool_arguments, faults = read_record(
                        cast("dict[str, Any]", arguments), Arguments, tool.arguments
                    )
                    faults.refuse()
                    text, is_error = _cut(await tool.call(api, tool_arguments)), False
                except (CallRejected, InvalidRequest) as refused:
                    text, is_error = _cut(str(refused)), True
                result = {"content": [{"type": "text", "text": text}], "isError": is_error}
            case _:
                return _error_response(
                    identity, _Fault(-32601, f"The method {method!r} does not exist.", 404)
                )
        return _rpc_response({"id": identity, "result": {"resultType": "complete", **result}})


def _find_fault(message: Any) -> _Fault | None:
    if isinstance(message, dict):
        members = cast("dict[str, Any]", message)
        identity = members.get("id", 0)
        is_id = isinstance(identity, str | int) and not isinstance(identity, bool)
        if (
            members.get("jsonrpc") == "2.0"
            and isinstance(members.get("method"), str)
            and isinstance(members.get("params", {}), dict)
            and is_id
        ):
            return None
    return _Fault(
        -32600, 'Send one request: {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}.'
    )


_IGNORABLE: Final = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""Invisible characters of Unicode: the default-ignorable ones, such as variation selectors and tags, and the
blank Braille pattern. People do not see them, but models read them."""


def _mismatch(call: Request, method: str, params: dict[str, Any]) -> _Fault | None:
    """Return a fault if the protocol version of a request is unsupported, or if the request's headers differ
    from its body."""
    metadata = params.get("_meta")
    meta = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
    version = meta.get(f"{_META}protocolVersion")
    expected: dict[str, Any] = {"mcp-protocol-version": version, "mcp-method": method}
    if method == "tools/call":
        expected["mcp-name"] = params.get("name")
    for header, value in expected.items():
        if _decode(call.headers.get(header, "")) != value:
            return _Fault(
                -32020, f"The header {header} differs from the body. This server supports {VERSION}."
            )
    if version != VERSION:
        data: dict[str, Any] = {"supported": [VERSION], "requested": version}
        return _Fault(-32022, "Unsupported protocol version", data=data)
    return None


def _decode(value: str) -> str:
    """Decode a value of a header. Return "" if the value is malformed."""
    before, after = _ENCODED
    if not (value.startswith(before) and value.endswith(after)):
        return value
    try:
        return base64.b64decode(value[len(before) : -len(after)], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _cut(answer: Any) -> str:
    """Return a tool's result as text, cut to the limit of an agent's context.

    Invisible characters, such as bidirectional marks, are escaped, because a program may print hidden
    instructions with them (prompt injection).
    """
    text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    escaped = (c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    text = text if text.isprintable() else "".join(escaped)
    text = _IGNORABLE.sub(lambda match: json.dumps(match[0])[1:-1], text)
    more = f"… ({len(text) - MAX_CHARACTERS} more characters; request less)"
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - len(more)] + more


def _error_response(identity: object, fault: _Fault) -> Response:
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = fault.data
    return _rpc_response({"id": identity, "error": error}, fault.status)


def _rpc_response(message: dict[str, Any], status: int = 200) -> Response:
    return sized_response(json.dumps({"jsonrpc": "2.0", **message}).encode(), JSON, status)
