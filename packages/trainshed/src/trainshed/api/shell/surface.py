"""`/shell/...`: the page of a shell, the tickets that it fetches, and the WebSocket that serves shells.

GET  /shell/           the page; the shell that it is to open stands behind the # of its address, so that no
                       server is sent it
GET  /shell/NAME       a part of the page: script, style
POST /shell/ticket     {job, replica, key} of a job's link: answers {token, title}
WS   /shell/connect    first message of the client: {token, rows, columns, term, command, terminal, label};
                       the answer is {title}, and what follows below, or {error}

With a ticket for a port the connection to it takes the place of a shell.

On the WebSocket, binary messages carry input and output. Text messages are JSON: from the client
`{"resize": [rows, columns]}` and `{"end": true}` (the input has ended), to the client `{"exit":
status}` at the shell's end (null: it ended with its replica) or `{"error": text}`.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from trainshed.api.calls.audit import audited
from trainshed.api.calls.errors import public_error
from trainshed.api.calls.http import (
    LinkPage,
    json_response,
    public_error_response,
    read_json_object,
    unknown_method,
)
from trainshed.api.calls.links import Ticket, guesses, holder, shell_of
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import OPEN
from trainshed.api.shell.opening import (
    live_replica,
    open_port,
    open_shell,
    shells_of,
    tell_of_end,
    tell_of_port,
    title_of,
)
from trainshed.core.errors import FailedPrecondition, NotFound, PermissionDenied, RequestError
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import MAX_ROWS, Terminal, TerminalRequest
from trainshed.eventloop.background import first_of
from trainshed.httpd.messages import Receive, Request, Response, Scope, Send
from trainshed.wire.json import decode_text, encode_text
from trainshed.wire.status import WireError

# The terminal emulator sets styles of its own.
_PAGE: Final = LinkPage(
    "/shell/",
    Path(__file__).parent / "page",
    "style-src 'self' 'unsafe-inline'; img-src data:; font-src 'self'",
)
IDLE: Final = 1800.0
"""Seconds without a byte after which a shell is closed."""
_PATIENCE: Final = 10.0
"""Seconds that a client has to send its ticket."""
_MOST: Final = 4096
"""Most bytes of a request for a ticket, which anybody may send."""
_STOPS: Final = "The service is stopping; the job continues. Try again later."
_LAPSED: Final = (
    "You are signed out, or your rights have changed. The connection was closed. If you still have "
    "access, open it again."
)
_MOST_NOTED: Final = 1000
"""Uses of ports that are remembered; an older one is on its timeline once more if it goes on."""
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
REFUSED: Final = 1008


class ShellSurface:
    """Answers requests below `/shell`, and its WebSocket. They need no token, but the key of a link or a
    ticket."""

    def __init__(self, services: Services) -> None:
        self._services = services
        #: Uses of ports that are on timelines, oldest first.
        self._noted: dict[tuple[JobUid, ReplicaId, str | None, str], None] = {}

    async def answer(self, request: Request) -> Response:
        """Answer a request. Raises whatever is wrong with a request for a ticket."""
        if (request.method, request.raw_path) == ("POST", "/shell/ticket"):
            request.api = "trainshed_v1"
            link = await read_json_object(request, _MOST)
            with guesses(request.scope):
                ticket, title = await self._ticket_by_link(link)
            token, _ = self._services.tickets.issue(ticket)
            return json_response(encode_text({"token": token, "title": title}))
        return _PAGE.answer(request) or public_error_response(unknown_method(request))

    async def _ticket_by_link(self, link: Mapping[str, Any]) -> tuple[Ticket, str]:
        """Return the ticket for the key of a job's link, and a title. Raises PermissionDenied,
        FailedPrecondition."""
        shells_of(self._services)
        known = self._services.access.current_principal
        shown, uid, replica = None, JobUid(0), ReplicaId(0, 0)
        with contextlib.suppress(KeyError, ValueError):
            uid = JobUid(int(str(link["job"])))
            replica = ReplicaId.parse(str(link["replica"]))
            shown = self._services.links.read(shell_of(uid, replica), str(link["key"]))
        holder(known, shown, OPEN, ())
        try:
            job, _ = await self._services.reader.job_by_uid(uid)
        except NotFound:
            raise FailedPrecondition("The job of this link has been deleted.") from None
        assert isinstance(job, Job), "only jobs with replicas have links"
        principal = holder(known, shown, OPEN, (job.name.project_id,))

        async def checked() -> None:
            live_replica(job, replica, (), principal)

        project, name = job.name.project_id, str(job.name)
        await audited(checked, self._services, principal, OPEN, project=project, resource=name)
        ticket = Ticket(uid, replica, f"somebody with a link of {principal.email}", principal)
        return ticket, title_of(job, ticket)

    async def connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket."""
        await receive()  # The client's wish to connect.
        if scope["path"] != "/shell/connect":
            await hang_up(send, REFUSED)  # Closing before accepting answers 403.
            return
        await send({"type": "websocket.accept"})
        try:
            async with asyncio.timeout(_PATIENCE):
                message = await receive()
        except TimeoutError:
            await _refuse(send, "No ticket came.")
            return
        if message["type"] == "websocket.disconnect":
            return
        try:
            ticket, wish = self._order(message.get("text") or "")
            shells = shells_of(self._services)
            if ticket.port:
                await self._connect_port(ticket, receive, send)
                return
            job, terminal = await open_shell(self._services, shells, ticket, wish)
        except (RequestError, WireError) as error:
            await _refuse(send, public_error(error, "trainshed_v1", scope["path"]).message)
            return
        opened = self._services.now()
        try:
            await say(send, {"title": title_of(job, ticket)})
            await bridge(receive, send, terminal, IDLE, self._end(ticket))
        finally:
            terminal.close()
            # Also if the client is gone, because the end belongs to the timeline.
            await asyncio.shield(tell_of_end(self._services, job, ticket, opened))

    async def _connect_port(self, ticket: Ticket, receive: Receive, send: Send) -> None:
        """Carry a connection to a port. Only the first of somebody to a port is told in the timeline. Raises
        as `open_port`."""
        terminal = await open_port(self._services, ticket)
        try:
            use = (ticket.job_uid, ticket.replica, ticket.port, ticket.who)
            if use not in self._noted:
                await tell_of_port(self._services, ticket)
                while len(self._noted) >= _MOST_NOTED:
                    del self._noted[next(iter(self._noted))]
                self._noted[use] = None
            await say(send, {"title": ticket.name})
            await bridge(receive, send, terminal, 0.0, self._end(ticket))
        finally:
            terminal.close()

    async def _end(self, ticket: Ticket) -> str:
        """Return why a shell ends that nobody has left, when it does."""
        lapse = self._services.access.lapse(ticket.principal)
        closing, _ = await first_of(self._services.closing.wait(), lapse)
        return _LAPSED if closing.cancelled() else _STOPS

    def _order(self, text: str) -> tuple[Ticket, TerminalRequest]:
        """Return the ticket and the terminal that the first message asks for. Raises WireError,
        PermissionDenied, FailedPrecondition."""
        order = decode_text(text.encode())
        try:
            token = str(order["token"])
        except (KeyError, TypeError):
            raise FailedPrecondition("The first message must be JSON with a token.") from None
        shells_of(self._services)
        ticket = self._services.tickets.redeem(token)
        shown = ticket.principal.credential if ticket is not None else None
        if ticket is None or (
            shown and self._services.access.current_principal(shown) != ticket.principal
        ):
            raise PermissionDenied(
                "This ticket was used, is older than a minute, or its user's rights have changed. Get a "
                "new one: open the job's link again, or run `trainshed jobs shell`."
            )
        try:
            label = f"{order.get('label') or ticket.job_uid} {ticket.replica}"
            wish = TerminalRequest(
                label=re.sub(r"[^\w .-]", "", label),
                is_terminal=bool(order.get("terminal", True)),
                rows=int(order.get("rows") or 24),
                columns=int(order.get("columns") or 80),
                term=str(order.get("term") or "xterm-256color"),
                command=str(order["command"]) if order.get("command") else None,
            )
        except (ValueError, TypeError, OverflowError) as wrong:
            raise FailedPrecondition(f"There is no such terminal: {wrong}.") from None
        return ticket, wish


async def _refuse(send: Send, text: str) -> None:
    await say(send, {"error": text})
    await hang_up(send, REFUSED)


async def bridge(
    receive: Receive, send: Send, terminal: Terminal, idle: float, end: Coroutine[Any, Any, str]
) -> None:
    """Carry a shell's input and output over a WebSocket until either side ends. `idle`: seconds without a
    byte either way after which it hangs up, 0 = never. `end`: returns when it has to end, and says why."""
    patience = asyncio.timeout(idle or None)

    def moved() -> None:
        if idle:
            # If the time has just run out, the waiting task notices it.
            with contextlib.suppress(RuntimeError):
                patience.reschedule(asyncio.get_running_loop().time() + idle)

    async def show() -> None:
        while data := await terminal.read():
            moved()
            await send({"type": "websocket.send", "bytes": data})

    async def type_() -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            moved()
            if (data := message.get("bytes")) is not None:
                await terminal.write(data)
            else:
                await _obey(terminal, message.get("text") or "")

    try:
        try:
            async with patience:
                showing, typing, ending = await first_of(show(), type_(), end)
        except TimeoutError:
            text = f"No input or output for {idle / 60:g} minutes. The connection was closed."
            await say(send, {"error": text})
            await hang_up(send, NORMAL)
            return
        if not typing.cancelled() or (not showing.cancelled() and showing.exception() is not None):
            return  # The client is gone.
        if not showing.cancelled():
            await say(send, {"exit": terminal.status})
            await hang_up(send, NORMAL)
        else:
            await say(send, {"error": ending.result()})
            await hang_up(send, GOING_AWAY)
    finally:
        terminal.close()


async def say(send: Send, value: dict[str, Any]) -> None:
    await send({"type": "websocket.send", "text": encode_text(value).decode()})


async def hang_up(send: Send, code: int) -> None:
    await send({"type": "websocket.close", "code": code})


async def _obey(terminal: Terminal, text: str) -> None:
    """Carry out a text message. Unknown ones are ignored, since a newer page may send more."""
    try:
        order = json.loads(text)
    except ValueError:
        return
    match order:
        case {"resize": [int(rows), int(columns)]}:
            if 0 < rows <= MAX_ROWS and 0 < columns <= MAX_ROWS:
                terminal.resize(rows, columns)
        case {"end": True}:
            await terminal.end_input()
        case _:
            return
