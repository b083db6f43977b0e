"""uvicorn's HTTP protocol with limits: httptools itself accepts heads and trailers of any length.

It counts bytes as they arrive, before anything is kept of them. A connection has one request at a time: if
another one comes before the answer, the connection ends with that, and its caller may send it again (RFC
9112, 9.3.2). It knows no path and no application.
`server_config` is the same for all servers of the service's processes.
"""

import asyncio
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trainshed.httpd.connections import HOLD, Connections, Limits, Reason
from trainshed.httpd.messages import JSON, Application, error_body

_FIRST_REQUEST_SECONDS = 0.5
"""How long a connection without a request may delay the server's stop."""
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
"""Bytes that a caller may still send behind its last answer: closing at once would keep it from reading
that."""


class ConnectionGroups:
    """Chooses which counter a connection belongs to: one for all of TCP, and one for each Unix socket, so
    that programs do not take up people's places."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tcp = Connections(limits)
        self._unix: dict[str, Connections] = {}

    def of(self, transport: asyncio.BaseTransport) -> Connections:
        name = transport.get_extra_info("sockname")
        if not isinstance(name, str):
            return self.tcp
        return self._unix.setdefault(name, Connections(self._limits))


class _LingeringTransport:
    """The transport of a request that is the last of its connection. It closes when the body has been read: a
    client that still sends would lose its answer."""

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def guarded(groups: ConnectionGroups) -> "type[GuardedProtocol]":
    class Counted(GuardedProtocol):
        counting = groups

    return Counted


class GuardedProtocol(HttpToolsProtocol):
    """HTTP with limits. It is used through `guarded`, which adds the counters."""

    counting: ConnectionGroups
    _counted: Connections
    _limits: Limits
    #: Whether the next bytes belong to a head: since the start, or since the last message was complete.
    _in_head = True
    _is_idle = False
    #: Bytes since the last progress: those of a head, or those around the pieces of a body.
    _spent = 0
    #: Bytes of a body that came with the last read.
    _came = 0
    #: Bytes of a body that nobody waits for any more.
    _unread = 0
    #: The parser is being given a head again whose request has been started already.
    _is_head_known = False
    #: The connection ends with the answer and the request's body.
    _is_ending = False
    #: Something else came before the answer to a request: the connection ends with that.
    _is_last = False
    #: The next request, from a caller who has the whole answer before the application has said that it ends.
    _next = b""
    #: The server stops: the connection ends with the answer to its first request.
    _is_stopping = False
    #: Set after a refusal: the timer that closes the connection.
    _leaving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
        super().connection_made(transport)
        self._counted = self.counting.of(transport)
        self._limits = self._counted.limits
        self._counted.open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.closed(self)
        if self._leaving is not None:
            self._leaving.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._leaving is not None or self._is_last:
            self._unread += len(data)
            if self._unread > _LINGER_BYTES:
                self._abort()
            return
        if self._has_answered:
            self._next += data
            self.flow.pause_reading()  # Until the application says that its answer ends.
            return
        if self._is_idle:
            self._is_idle = False
            self._counted.opening(self)
        left = self._limits.head_bytes - self._spent
        if not self._in_head or len(data) <= left:
            self._feed(data)
            return
        self._feed(data[:left])
        if self._spent >= self._limits.head_bytes:
            self._refuse_head()
        elif not self.transport.is_closing():
            self.data_received(data[left:])

    def _feed(self, data: bytes) -> None:
        """Hand bytes to the parser. Its callbacks reset `_spent` where they were progress."""
        self._spent += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.refuse(400, "Invalid HTTP request received.")
            return
        if self._in_head:
            return
        self._counted.body(self, self._came)
        self._came = 0
        if self._spent > self._limits.head_bytes:
            self.refuse(400, "The chunk headers or trailers of this body are too long.")

    def _parse(self, data: bytes) -> None:
        assert self.parser is not None  # uvicorn sets it to None only when the connection is lost.
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
                return
            framing = self._framing()
            if framing:
                self._is_head_known = True
                self._parse(b"POST / HTTP/1.1\r\n%b\r\n" % framing)
                self._is_head_known = False
            if rest := data[upgrade.args[0] :]:
                self._parse(rest)

    def _framing(self) -> bytes:
        """Returns the headers of the last head that say where its body ends; b"" if it has no body.

        They are needed for a head that offers to switch to another protocol. A server that does not speak it
        answers as if there were no offer (RFC 9110, 7.8), and Java's HttpClient offers HTTP/2 with each first
        request. The parser takes all bytes behind such a head for the other protocol's, also the body, so it
        gets a head again.
        """
        lengths = (
            b"%b: %b\r\n" % (name, value)
            for name, value in self.headers
            if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        )
        return b"".join(lengths)

    @property
    def _has_answered(self) -> bool:
        """Whether all bytes of an answer of known length are sent, and its end is still to come."""
        cycle = self.cycle
        return (
            self._is_busy
            and self._in_head
            and cycle.response_started
            and not cycle.chunked_encoding
            and (cycle.expected_content_length == 0 or cycle.scope["method"] == "HEAD")
        )

    @property
    def _is_busy(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def on_message_begin(self) -> None:
        if self._is_busy and not self._is_head_known:
            raise ValueError("a request before the answer")  # This ends the parser's work.
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Behind a body come trailers, which no handler needs.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._spent = 0
        if self._is_head_known:
            return
        self._unread = 0
        self._counted.active(self)
        HOLD.set(partial(self._counted.held, self))
        super().on_headers_complete()
        # Before a WebSocket there is no cycle.
        if self.cycle and self._is_stopping:
            self.cycle.keep_alive = False
        if self.cycle and not self.cycle.keep_alive:
            self.cycle.transport = cast("Any", _LingeringTransport(self.transport, self._end))

    def on_body(self, body: bytes) -> None:
        self._spent = 0
        if self.cycle and self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self._limits.unread_bytes:
                self._abort()
                return
        self._came += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if self.parser.should_upgrade() and self._framing() and not self._should_upgrade():
            return  # The request's body is still to come.
        self._in_head = True
        self._spent = 0
        self._counted.body_ended(self)
        super().on_message_complete()
        if self._is_ending:
            self.transport.close()
        elif self.cycle and self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_last:
            self._leave()
        elif self._in_head:  # Else an unfinished body is still to be dropped.
            self._rest()
            if early := self._next:
                self._next = b""
                self.data_received(early)

    def _end(self) -> None:
        """Close the connection once the request's body has been read, within limits."""
        if self._in_head:
            self.transport.close()
        self._is_ending = True

    def shutdown(self) -> None:
        """Close the connection, after the answer to a request that has begun. A new connection may send its
        first request: it would not reach the next server."""
        if self.cycle or self.transport.is_closing():
            super().shutdown()
            return
        self._is_stopping = True
        self.loop.call_later(_FIRST_REQUEST_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self.cycle:
            self.transport.close()

    def _rest(self) -> None:
        self._is_idle = True
        self._counted.idle(self)

    def handle_websocket_upgrade(self) -> None:
        # From here on the WebSocket protocol counts the connection.
        self._counted.closed(self)
        super().handle_websocket_upgrade()

    def _abort(self) -> None:
        if self.cycle:
            self.cycle.disconnected = True  # It writes no more: the transport would raise.
        self.transport.abort()

    def is_held_back(self) -> bool:
        return self.flow.read_paused

    def drop(self, reason: Reason) -> None:
        if reason is Reason.CROWDED or (self._is_busy and self.cycle.response_started):
            self._abort()
        elif self._is_ending:
            self.transport.close()
        elif reason is Reason.HEAD_LATE:
            # A caller that has sent nothing gets no answer.
            if not self._spent:
                self.transport.close()
                return
            self.refuse(
                408, f"No complete request came within {self._limits.head_seconds:g} seconds."
            )
        else:
            self.refuse(
                408,
                f"Less than {self._limits.body_bytes} bytes of the request's body came in "
                f"{self._limits.body_seconds:g} seconds.",
            )

    def _refuse_head(self) -> None:
        most = f"{self._limits.head_bytes >> 10} KiB"
        # Before the first message there is neither a scope nor a URL: only line ends have come.
        if self.scope and len(self.url) > self._limits.head_bytes // 2:
            self.refuse(414, f"The request line is too long: it has at most {most} with headers.")
        else:
            self.refuse(
                431, f"The headers are too long: with the request line they have at most {most}."
            )

    def refuse(self, status: int, text: str) -> None:
        """Answer once, read nothing more, and close when the caller has had time to read the answer. What is
        wrong behind a request that waits for its answer must not be taken for that: then the connection ends
        with the answer."""
        if self.transport.is_closing() or self._leaving is not None:
            return
        if self._is_busy:
            if self._in_head:
                self._is_last, self._unread = True, 0
                return
            # The application waits for a body that will not come.
            if self.cycle.response_started:
                self._abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = error_body(status, text, "INVALID_ARGUMENT")
        head = b"content-type: %b\r\nconnection: close\r\n" % JSON
        self.transport.write(
            b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], head, len(body), body)
        )
        self._leave()

    def _leave(self) -> None:
        self._unset_keepalive_if_required()
        self._counted.body_ended(self)
        self._counted.idle(self)
        self._unread = 0
        self._leaving = self.loop.call_later(_LINGER_SECONDS, self.transport.close)


_KEEP_ALIVE: Final = 75
"""Seconds without a request after which a connection is closed."""
_MOST_MESSAGE: Final = 1 << 20
"""Bytes that a WebSocket message may have."""
_NOT_UTF8: Final = 1007
"""The close code for a text message that is not UTF-8 (RFC 6455, 7.4.1)."""


def server_config(
    application: Application,
    protocol: type[GuardedProtocol],
    *,
    grace: int,
    websockets: ConnectionGroups | None = None,
) -> Config:
    """Returns uvicorn's configuration. `grace`: seconds that requests have to finish when the server stops.
    `websockets`: the counters of WebSockets; None = they are not served."""
    return Config(
        cast("Any", application),
        http=protocol,
        ws=cast("Any", _counted(websockets)) if websockets is not None else "none",
        ws_max_size=_MOST_MESSAGE,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )


def _counted(groups: ConnectionGroups) -> Callable[..., asyncio.Protocol]:
    """Returns what makes the protocol of a WebSocket. Its library is loaded with the first one: most services
    never have any."""

    def made(**options: Any) -> asyncio.Protocol:
        return _websocket()(groups, **options)

    return made


@cache
def _websocket() -> Callable[..., asyncio.Protocol]:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class CountedWebSocket(WebSocketsSansIOProtocol):
        """A WebSocket counts as opening until its first message, as other connections do until their first
        head."""

        _counted: Connections

        def __init__(self, groups: ConnectionGroups, **options: Any) -> None:
            super().__init__(**options)
            self._groups = groups

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
            super().connection_made(transport)
            self._counted = self._groups.of(transport)
            self._counted.open(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._counted.closed(self)
            super().connection_lost(exc)

        def send_receive_event_to_app(self) -> None:
            if self.curr_msg_data_type == "text" and not self.close_sent:
                try:
                    b"".join(self.frames).decode()
                except UnicodeDecodeError:
                    self.frames = []
                    self.conn.send_close(_NOT_UTF8, "a text message must be UTF-8")
                    self.handle_parser_exception()
                    return
            self._counted.active(self)
            super().send_receive_event_to_app()

        def is_held_back(self) -> bool:
            return self.read_paused

        def drop(self, reason: Reason) -> None:
            if reason is Reason.HEAD_LATE and self.handshake_complete:
                self._counted.active(self)  # It was accepted, and need not say anything.
            else:
                self.transport.abort()

    return CountedWebSocket
