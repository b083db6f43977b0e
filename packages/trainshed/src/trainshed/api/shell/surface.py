"""`/shell/...`: the page of a shell, its tickets, and the WebSocket of shells.

- `GET /shell/` returns the page. The replica and the key follow the `#` of its address, so browsers do not
  send them to a server.
- `GET /shell/NAME` returns a file of the page: a script or a style sheet.
- `POST /shell/ticket` with {job, replica, key} from a job's link returns {token, title}.
- `WS /shell/connect` opens a shell. The first message of the client is {token, rows, columns, term, command,
  terminal, label}. The service responds with {title}, or {error}. With a ticket for a port, the WebSocket
  carries the connection to the port instead of a shell.

After that, binary messages carry input and output. Text messages are JSON:

- The client sends `{"resize": [rows, columns]}`, and `{"end": true}` at the end of its input.
- The service sends `{"exit": status}` at the end of the shell (null: the replica has ended), or
  `{"error": text}`.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from trainshed.api.calls.audit import audit_call
from trainshed.api.calls.errors import public_error
from trainshed.api.calls.http import (
    LinkPage,
    json_response,
    public_error_response,
    read_json_object,
    unknown_method,
)
from trainshed.api.calls.links import Ticket, count_guesses, link_owner, shell_of
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import OPEN_SHELL
from trainshed.api.shell.opening import (
    enabled_shells,
    open_port,
    open_shell,
    record_end,
    record_port_use,
    running_replica,
    shell_title,
)
from trainshed.core.errors import FailedPrecondition, NotFound, PermissionDenied, RequestError
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import MAX_ROWS, Terminal, TerminalRequest
from trainshed.eventloop.background import first_of
from trainshed.httpd.messages import Receive, Request, Response, Scope, Send
from trainshed.wire.json import decode_text, encode_text
from trainshed.wire.status import WireError

# The policy allows inline styles, because the terminal emulator uses them.
_PAGE: Final = LinkPage(
    "/shell/",
    Path(__file__).parent / "page",
    "style-src 'self' 'unsafe-inline'; img-src data:; font-src 'self'",
)
IDLE_TIMEOUT: Final = 1800.0
"""Seconds without input and output after which a shell is closed."""
_FIRST_MESSAGE_TIMEOUT: Final = 10.0
"""Time in seconds within which a client must send its ticket."""
_MAX_TICKET_REQUEST_SIZE: Final = 4096
"""Maximum size in bytes of a request for a ticket. Such a request needs no authentication."""
_STOPPING_TEXT: Final = "The service is stopping; the job continues. Try again later."
_EXPIRED_TEXT: Final = (
    "You are signed out, or your rights have changed. The connection was closed. If you still have "
    "access, open it again."
)
_MAX_RECORDED_USES: Final = 1000
"""Maximum number of remembered uses of ports. After the service has forgotten a use, the next use of that
port adds another timeline entry."""
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
REFUSED: Final = 1008


class ShellSurface:
    """Handles requests and WebSockets below `/shell`. They need the key of a link or a ticket, but no
    token."""

    def __init__(self, services: Services) -> None:
        self._services = services
        #: The uses of ports for which the timeline contains an entry, oldest first.
        self._recorded_uses: dict[tuple[JobUid, ReplicaId, str | None, str], None] = {}

    async def answer(self, request: Request) -> Response:
        """Handle a request. Raises the errors of a request for a ticket."""
        if (request.method, request.raw_path) == ("POST", "/shell/ticket"):
            request.api = "trainshed_v1"
            link = await read_json_object(request, _MAX_TICKET_REQUEST_SIZE)
            with count_guesses(request.scope):
                ticket, title = await self._ticket_for_link(link)
            token, _ = self._services.tickets.issue(ticket)
            return json_response(encode_text({"token": token, "title": title}))
        return _PAGE.answer(request) or public_error_response(unknown_method(request))

    async def _ticket_for_link(self, link: Mapping[str, Any]) -> tuple[Ticket, str]:
        """Return the ticket and the title for the key in a link to a job's shell. Raises PermissionDenied and
        FailedPrecondition."""
        enabled_shells(self._services)
        known = self._services.access.current_principal
        shown, uid, replica = None, JobUid(0), ReplicaId(0, 0)
        with contextlib.suppress(KeyError, ValueError):
            uid = JobUid(int(str(link["job"])))
            replica = ReplicaId.parse(str(link["replica"]))
            shown = self._services.links.read(shell_of(uid, replica), str(link["key"]))
        link_owner(known, shown, OPEN_SHELL, ())
        try:
            job, _ = await self._services.reader.job_by_uid(uid)
        except NotFound:
            raise FailedPrecondition("The job of this link has been deleted.") from None
        assert isinstance(job, Job), "only jobs with replicas have links"
        principal = link_owner(known, shown, OPEN_SHELL, (job.name.project_id,))

        async def check_access() -> None:
            running_replica(job, replica, (), principal)

        project, name = job.name.project_id, str(job.name)
        await audit_call(check_access, self._services, principal, OPEN_SHELL, project=project, resource=name)
        ticket = Ticket(uid, replica, f"a user with a link of {principal.email}", principal)
        return ticket, shell_title(job, ticket)

    async def connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket: check its ticket, and connect it to a shell or a port."""
        await receive()  # Receive the client's connect event.
        if scope["path"] != "/shell/connect":
            # A close before the accept causes a response with status 403.
            await close_socket(send, REFUSED)
            return
        await send({"type": "websocket.accept"})
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_TIMEOUT):
                message = await receive()
        except TimeoutError:
            await _refuse(send, "The first message, with a token, did not arrive in time. Try again.")
            return
        if message["type"] == "websocket.disconnect":
            return
        try:
            ticket, terminal_request = self._read_first_message(message.get("text") or "")
            shells = enabled_shells(self._services)
            if ticket.port:
                await self._connect_port(ticket, receive, send)
                return
            job, terminal = await open_shell(self._services, shells, ticket, terminal_request)
        except (RequestError, WireError) as error:
            await _refuse(send, public_error(error, "trainshed_v1", scope["path"]).message)
            return
        opened_at = self._services.now()
        try:
            await send_json(send, {"title": shell_title(job, ticket)})
            await bridge(receive, send, terminal, IDLE_TIMEOUT, self._wait_for_end(ticket))
        finally:
            terminal.close()
            # Add the entry about the end even if the client has disconnected.
            await asyncio.shield(record_end(self._services, job, ticket, opened_at))

    async def _connect_port(self, ticket: Ticket, receive: Receive, send: Send) -> None:
        """Connect a WebSocket to a port. Only a user's first connection to the port adds a timeline entry.
        Raises the errors of `open_port`."""
        terminal = await open_port(self._services, ticket)
        try:
            use = (ticket.job_uid, ticket.replica, ticket.port, ticket.who)
            if use not in self._recorded_uses:
                await record_port_use(self._services, ticket)
                while len(self._recorded_uses) >= _MAX_RECORDED_USES:
                    del self._recorded_uses[next(iter(self._recorded_uses))]
                self._recorded_uses[use] = None
            await send_json(send, {"title": ticket.name})
            await bridge(receive, send, terminal, 0.0, self._wait_for_end(ticket))
        finally:
            terminal.close()

    async def _wait_for_end(self, ticket: Ticket) -> str:
        """Wait until the service stops or the user loses access. Return the reason as a message."""
        lapse = self._services.access.lapse(ticket.principal)
        closing, _ = await first_of(self._services.closing.wait(), lapse)
        return _EXPIRED_TEXT if closing.cancelled() else _STOPPING_TEXT

    def _read_first_message(self, text: str) -> tuple[Ticket, TerminalRequest]:
        """Return the ticket and the terminal request from the first message. Raises WireError,
        PermissionDenied and FailedPrecondition."""
        message_ = decode_text(text.encode())
        try:
            token = str(message_["token"])
        except (KeyError, TypeError):
            raise FailedPrecondition(
                "The first message must be a JSON object with a `token`. Use `trainshed jobs shell JOB`, "
                "which requests a token and sends it."
            ) from None
        enabled_shells(self._services)
        ticket = self._services.tickets.redeem(token)
        shown = ticket.principal.credential if ticket is not None else None
        if ticket is None or (shown and self._services.access.current_principal(shown) != ticket.principal):
            raise PermissionDenied(
                "The token of this shell was used before, is older than a minute, or its user's rights have "
                "changed. Open the job's link again, or run `trainshed jobs shell JOB`."
            )
        try:
            label = f"{message_.get('label') or ticket.job_uid} {ticket.replica}"
            terminal_request = TerminalRequest(
                label=re.sub(r"[^\w .-]", "", label),
                is_terminal=bool(message_.get("terminal", True)),
                rows=int(message_.get("rows") or 24),
                columns=int(message_.get("columns") or 80),
                term=str(message_.get("term") or "xterm-256color"),
                command=str(message_["command"]) if message_.get("command") else None,
            )
        except (ValueError, TypeError, OverflowError) as wrong:
            raise FailedPrecondition(
                f"The terminal request is invalid: {wrong}. Correct the first message."
            ) from None
        return ticket, terminal_request


async def _refuse(send: Send, text: str) -> None:
    await send_json(send, {"error": text})
    await close_socket(send, REFUSED)


async def bridge(
    receive: Receive, send: Send, terminal: Terminal, idle: float, end: Coroutine[Any, Any, str]
) -> None:
    """Copy input and output between a WebSocket and a shell until one of them ends.

    `idle`: seconds without input and output after which the connection is closed; 0 = never. `end`: waits
    until the shell must end, and returns the reason.
    """
    timeout = asyncio.timeout(idle or None)

    def restart_timeout() -> None:
        if idle:
            # Ignore the error if the timeout has just expired and cannot be moved. The task that waits then
            # handles the timeout.
            with contextlib.suppress(RuntimeError):
                timeout.reschedule(asyncio.get_running_loop().time() + idle)

    async def copy_output() -> None:
        while data := await terminal.read():
            restart_timeout()
            await send({"type": "websocket.send", "bytes": data})

    async def copy_input() -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            restart_timeout()
            if (data := message.get("bytes")) is not None:
                await terminal.write(data)
            else:
                await _handle_message(terminal, message.get("text") or "")

    try:
        try:
            async with timeout:
                output, input_, reason = await first_of(copy_output(), copy_input(), end)
        except TimeoutError:
            text = f"No input or output for {idle / 60:g} minutes. The connection was closed."
            await send_json(send, {"error": text})
            await close_socket(send, NORMAL)
            return
        if not input_.cancelled() or (not output.cancelled() and output.exception() is not None):
            return  # If the client has disconnected, no message can be sent.
        if not output.cancelled():
            await send_json(send, {"exit": terminal.status})
            await close_socket(send, NORMAL)
        else:
            await send_json(send, {"error": reason.result()})
            await close_socket(send, GOING_AWAY)
    finally:
        terminal.close()


async def send_json(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "websocket.send", "text": encode_text(value).decode()})


async def close_socket(send: Send, code: int) -> None:
    await send({"type": "websocket.close", "code": code})


async def _handle_message(terminal: Terminal, text: str) -> None:
    """Handle a text message. Unknown messages are ignored, because a newer page may send other messages."""
    try:
        message_ = json.loads(text)
    except ValueError:
        return
    match message_:
        case {"resize": [int(rows), int(columns)]}:
            if 0 < rows <= MAX_ROWS and 0 < columns <= MAX_ROWS:
                terminal.resize(rows, columns)
        case {"end": True}:
            await terminal.end_input()
        case _:
            return
