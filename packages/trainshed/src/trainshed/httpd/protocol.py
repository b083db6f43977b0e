"""uvicorn's HTTP protocol with size and time limits. httptools itself accepts heads and trailers of any
length.

The protocol counts bytes as they arrive, before anything is stored. A connection has one request at a time.
If another request arrives before the response, the connection closes after the response, and the client may
send that request again (RFC 9112, 9.3.2). This also prevents request smuggling by pipelined requests.
`server_config` returns the configuration that all servers of the service's processes share.
"""

import asyncio
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from trainshed.httpd.connections import SET_HOLDER, Connections, Limits, Reason
from trainshed.httpd.messages import JSON, Application, error_body

_FIRST_REQUEST_SECONDS = 0.5
"""Maximum delay in seconds that a connection without a request adds to the server's shutdown."""
_LINGERING_TIMEOUT = 1.0
_MAX_LINGERING_BYTES = 1 << 20
"""Maximum number of bytes that a client may still send after its last response. An immediate close would
prevent the client from reading the response."""


class ConnectionGroups:
    """Selects the counter of a connection. TCP has one counter, and each Unix socket has its own. Programs of
    jobs therefore cannot use up the connections of users."""

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
    """The transport of a connection's last request. The transport closes only after the request's body has
    been read. Otherwise a client that is still sending would lose the response."""

    def __init__(self, transport: Any, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def guarded_protocol(groups: ConnectionGroups) -> "type[GuardedProtocol]":
    class Counted(GuardedProtocol):
        counting = groups

    return Counted


class GuardedProtocol(HttpToolsProtocol):
    """HTTP with limits. `guarded_protocol` returns a subclass with the counters."""

    counting: ConnectionGroups
    _counter: Connections
    _limits: Limits
    #: Whether the next bytes belong to a head, as at the start and after each complete message.
    _in_head = True
    _is_idle = False
    #: Number of bytes of the head since its start, or number of bytes since the last part of a body.
    _spent = 0
    #: Number of body bytes in the data that is currently parsed.
    _received = 0
    #: Number of body bytes that arrived after the application's response.
    _unread = 0
    #: Whether the parser receives the head of a started request a second time (`_framing`).
    _is_head_known = False
    #: Whether the connection closes at the end of the request's body, because the response is complete.
    _is_ending = False
    #: Whether the connection closes after the current response, because more data arrived before it.
    _is_last = False
    #: The bytes of the next request, if they arrive after the complete response but before the application
    #: has finished.
    _next = b""
    #: Whether the server is stopping. The connection then closes after the response to its first request.
    _is_stopping = False
    #: The timer that closes the connection after an error response.
    _closing_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
        super().connection_made(transport)
        self._counter = self.counting.of(transport)
        self._limits = self._counter.limits
        self._counter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counter.remove(self)
        if self._closing_timer is not None:
            self._closing_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._closing_timer is not None or self._is_last:
            self._unread += len(data)
            if self._unread > _MAX_LINGERING_BYTES:
                self._abort()
            return
        if self._has_answered:
            self._next += data
            self.flow.pause_reading()  # Reading resumes when the application has finished its response.
            return
        if self._is_idle:
            self._is_idle = False
            self._counter.mark_opening(self)
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
        """Pass bytes to the parser. The parser's callbacks reset `_spent` after each parsed head or part of a
        body."""
        self._spent += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.refuse(400, "Invalid HTTP request received.")
            return
        if self._in_head:
            return
        self._counter.count_body(self, self._received)
        self._received = 0
        if self._spent > self._limits.head_bytes:
            self.refuse(400, "The chunk headers or trailers of this body are too long. Send a plain body.")

    def _parse(self, data: bytes) -> None:
        # uvicorn sets the parser to None only when the connection is lost.
        assert self.parser is not None
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
        """Return the headers of the last head that determine the length of its body; "" without a body.

        A head may offer a switch to another protocol. A server without that protocol responds as without the
        offer (RFC 9110, 7.8). For example, Java's HttpClient offers HTTP/2 with each first request. After
        such a head, the parser assigns all bytes to the other protocol, including the body of the request.
        Therefore the parser receives these headers again, in a head without the offer.
        """
        lengths = (
            b"%b: %b\r\n" % (name, value)
            for name, value in self.headers
            if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        )
        return b"".join(lengths)

    @property
    def _has_answered(self) -> bool:
        """Whether a response of known length was sent completely, but the application has not finished."""
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
            # The exception stops the parser.
            raise ValueError("the client sent a request before the previous response")
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Ignore headers after a body. They are trailers, which no handler needs.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._spent = 0
        if self._is_head_known:
            return
        self._unread = 0
        self._counter.mark_active(self)
        SET_HOLDER.set(partial(self._counter.set_holder, self))
        super().on_headers_complete()
        # Skip WebSockets, for which uvicorn has no request cycle.
        if self.cycle and self._is_stopping:
            self.cycle.keep_alive = False
        if self.cycle and not self.cycle.keep_alive:
            self.cycle.transport = cast("Any", _LingeringTransport(self.transport, self._close_after_body))

    def on_body(self, body: bytes) -> None:
        self._spent = 0
        if self.cycle and self.cycle.response_complete:
            self._unread += len(body)
            if self._unread > self._limits.unread_bytes:
                self._abort()
                return
        self._received += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        assert self.parser is not None
        if self.parser.should_upgrade() and self._framing() and not self._should_upgrade():
            return  # Not complete: the body has not been parsed yet.
        self._in_head = True
        self._spent = 0
        self._counter.end_body(self)
        super().on_message_complete()
        if self._is_ending:
            self.transport.close()
        elif self.cycle and self.cycle.response_complete:
            self._become_idle()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_last:
            self._close_later()
        elif self._in_head:  # Not idle until the rest of the body was dropped.
            self._become_idle()
            if next_data := self._next:
                self._next = b""
                self.data_received(next_data)

    def _close_after_body(self) -> None:
        """Close the connection at the end of the request's body, which is read within limits."""
        if self._in_head:
            self.transport.close()
        self._is_ending = True

    def shutdown(self) -> None:
        """Close the connection after the response to its current request. A new connection may send its first
        request, because the client would not send that request to the next server."""
        if self.cycle or self.transport.is_closing():
            super().shutdown()
            return
        self._is_stopping = True
        self.loop.call_later(_FIRST_REQUEST_SECONDS, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self.cycle:
            self.transport.close()

    def _become_idle(self) -> None:
        self._is_idle = True
        self._counter.mark_idle(self)

    def handle_websocket_upgrade(self) -> None:
        # From now on, the WebSocket protocol counts the connection.
        self._counter.remove(self)
        super().handle_websocket_upgrade()

    def _abort(self) -> None:
        if self.cycle:
            # Let the application stop writing, because the transport would raise an exception.
            self.cycle.disconnected = True
        self.transport.abort()

    def is_reading_paused(self) -> bool:
        return self.flow.read_paused

    def drop(self, reason: Reason) -> None:
        if reason is Reason.CROWDED or (self._is_busy and self.cycle.response_started):
            self._abort()
        elif self._is_ending:
            self.transport.close()
        elif reason is Reason.HEAD_LATE:
            # If the client has sent nothing, close the connection without a response.
            if not self._spent:
                self.transport.close()
                return
            self.refuse(408, f"No complete request arrived within {self._limits.head_seconds:g} seconds.")
        else:
            self.refuse(
                408,
                f"Less than {self._limits.body_bytes} bytes of the request's body arrived in "
                f"{self._limits.body_seconds:g} seconds. Send it faster.",
            )

    def _refuse_head(self) -> None:
        size = f"{self._limits.head_bytes >> 10} KiB"
        # Before the first message, only line breaks have arrived, so neither a scope nor a URL exists.
        if self.scope and len(self.url) > self._limits.head_bytes // 2:
            self.refuse(414, f"The request line is too long. The limit is {size} including headers.")
        else:
            self.refuse(431, f"The headers are too long. The limit is {size} including the request line.")

    def refuse(self, status: int, text: str) -> None:
        """Send an error, read nothing more, and close the connection when the client has had time to read the
        error.

        If an earlier request has no response yet, the client would treat the error as that response (response
        splitting). In this case the error is not sent, and the connection closes after the response.
        """
        if self.transport.is_closing() or self._closing_timer is not None:
            return
        if self._is_busy:
            if self._in_head:
                self._is_last, self._unread = True, 0
                return
            # The rest of the body will not be read, but the application may wait for it. If the response has
            # started, abort the connection. Otherwise, wake the application.
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
        self._close_later()

    def _close_later(self) -> None:
        self._unset_keepalive_if_required()
        self._counter.end_body(self)
        self._counter.mark_idle(self)
        self._unread = 0
        self._closing_timer = self.loop.call_later(_LINGERING_TIMEOUT, self.transport.close)


_KEEP_ALIVE: Final = 75
"""Seconds until a connection without a request is closed."""
_MAX_MESSAGE: Final = 1 << 20
"""Maximum size of a WebSocket message in bytes."""
_NOT_UTF8: Final = 1007
"""The close code for a text message that is not UTF-8 (RFC 6455, 7.4.1)."""


def server_config(
    application: Application,
    protocol: type[GuardedProtocol],
    *,
    grace: int,
    websockets: ConnectionGroups | None = None,
) -> Config:
    """Return uvicorn's configuration. `grace`: seconds after which running requests are aborted when the
    server stops. `websockets`: the counters of WebSockets; None = no WebSockets."""
    return Config(
        cast("Any", application),
        http=protocol,
        ws=cast("Any", _websocket_factory(websockets)) if websockets is not None else "none",
        ws_max_size=_MAX_MESSAGE,
        ws_per_message_deflate=False,
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=grace,
    )


def _websocket_factory(groups: ConnectionGroups) -> Callable[..., asyncio.Protocol]:
    """Return the factory of WebSocket protocols. The factory imports the library for the first WebSocket,
    since most services never have one."""

    def create(**options: Any) -> asyncio.Protocol:
        return _websocket()(groups, **options)

    return create


@cache
def _websocket() -> Callable[..., asyncio.Protocol]:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class CountedWebSocket(WebSocketsSansIOProtocol):
        """A WebSocket that counts as opening until its first message, as other connections do until the end
        of their first head."""

        _counter: Connections

        def __init__(self, groups: ConnectionGroups, **options: Any) -> None:
            super().__init__(**options)
            self._groups = groups

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
            super().connection_made(transport)
            self._counter = self._groups.of(transport)
            self._counter.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._counter.remove(self)
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
            self._counter.mark_active(self)
            super().send_receive_event_to_app()

        def is_reading_paused(self) -> bool:
            return self.read_paused

        def drop(self, reason: Reason) -> None:
            if reason is Reason.HEAD_LATE and self.handshake_complete:
                # The server has accepted the WebSocket, whose client may be silent.
                self._counter.mark_active(self)
            else:
                self.transport.abort()

    return CountedWebSocket
