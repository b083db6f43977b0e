"""uvicorn's HTTP protocol with limits: httptools accepts heads and trailers of any length.

The protocol counts bytes as they arrive, before anything is stored. A connection has one request at a time.
If another request arrives before the answer, the connection closes after the answer, and the client may send
the request again (RFC 9112, 9.3.2). This also prevents request smuggling by pipelined requests.
`server_config` is the same for all servers of the service's processes.
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
"""Maximum delay of the server's stop by a connection without a request."""
_LINGERING_TIMEOUT = 1.0
_MAX_LINGERING_BYTES = 1 << 20
"""Bytes that a client may still send after its last answer. An immediate close would keep it from reading the
answer."""


class ConnectionGroups:
    """Selects the counter of a connection: one for TCP, and one per Unix socket, so that programs cannot use
    up the connections of users."""

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
    """The transport of the last request of a connection. It closes after the body has been read, since a
    client that is still sending would lose its answer."""

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
    """HTTP with limits. Use it through `guarded_protocol`, which adds the counters."""

    counting: ConnectionGroups
    _counted: Connections
    _limits: Limits
    #: Whether the next bytes belong to a head: at the start, and after each complete message.
    _in_head = True
    _is_idle = False
    #: Bytes since the last progress: those of a head, or those around the parts of a body.
    _spent = 0
    #: Bytes of a body in the last read.
    _received = 0
    #: Bytes of a body that the application no longer reads.
    _unread = 0
    #: The parser receives the head again of a request that has already started.
    _is_head_known = False
    #: The connection closes after the answer and the request's body.
    _is_ending = False
    #: Further data came before the answer to a request: the connection closes after the answer.
    _is_last = False
    #: The next request, if it arrives after the whole answer but before the application has finished.
    _next = b""
    #: The server stops: the connection closes after the answer to its first request.
    _is_stopping = False
    #: Set after a rejection: the timer that closes the connection.
    _closing_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
        super().connection_made(transport)
        self._counted = self.counting.of(transport)
        self._limits = self._counted.limits
        self._counted.open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.closed(self)
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
            self.flow.pause_reading()  # Until the application has finished its answer.
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
        """Pass bytes to the parser. Its callbacks reset `_spent` on progress."""
        self._spent += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.refuse(400, "Invalid HTTP request received.")
            return
        if self._in_head:
            return
        self._counted.body(self, self._received)
        self._received = 0
        if self._spent > self._limits.head_bytes:
            self.refuse(
                400, "The chunk headers or trailers of this body are too long. Send a plain body."
            )

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
        """Return the headers of the last head that determine the end of its body; b"" if it has no body.

        They are needed for a head that offers a switch to another protocol. A server without that protocol
        answers as if there were no offer (RFC 9110, 7.8), and Java's HttpClient offers HTTP/2 with each first
        request. The parser assigns all bytes after such a head, including the body, to the other protocol. So
        it receives a head again.
        """
        lengths = (
            b"%b: %b\r\n" % (name, value)
            for name, value in self.headers
            if name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        )
        return b"".join(lengths)

    @property
    def _has_answered(self) -> bool:
        """Whether an answer of known length was sent completely, but the application has not finished."""
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
            raise ValueError("a request before the answer")  # This stops the parser.
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Headers after a body are trailers, which no handler needs.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._spent = 0
        if self._is_head_known:
            return
        self._unread = 0
        self._counted.active(self)
        SET_HOLDER.set(partial(self._counted.set_holder, self))
        super().on_headers_complete()
        # A WebSocket has no cycle.
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
        self._received += len(body)
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
            self._close_later()
        elif self._in_head:  # Otherwise the rest of a body must be dropped first.
            self._rest()
            if next_data := self._next:
                self._next = b""
                self.data_received(next_data)

    def _end(self) -> None:
        """Close the connection once the request's body has been read, within limits."""
        if self._in_head:
            self.transport.close()
        self._is_ending = True

    def shutdown(self) -> None:
        """Close the connection after the answer to the current request. A new connection may send its first
        request, which would not reach the next server."""
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
        # From now on, the WebSocket protocol counts the connection.
        self._counted.closed(self)
        super().handle_websocket_upgrade()

    def _abort(self) -> None:
        if self.cycle:
            self.cycle.disconnected = True  # It stops writing, since the transport would raise.
        self.transport.abort()

    def is_held_back(self) -> bool:
        return self.flow.read_paused

    def drop(self, reason: Reason) -> None:
        if reason is Reason.CROWDED or (self._is_busy and self.cycle.response_started):
            self._abort()
        elif self._is_ending:
            self.transport.close()
        elif reason is Reason.HEAD_LATE:
            # A silent client gets no answer.
            if not self._spent:
                self.transport.close()
                return
            self.refuse(
                408, f"No complete request arrived within {self._limits.head_seconds:g} seconds."
            )
        else:
            self.refuse(
                408,
                f"Less than {self._limits.body_bytes} bytes of the request's body arrived in "
                f"{self._limits.body_seconds:g} seconds. Send it faster.",
            )

    def _refuse_head(self) -> None:
        size = f"{self._limits.head_bytes >> 10} KiB"
        # Before the first message there is neither a scope nor a URL: only line ends have arrived.
        if self.scope and len(self.url) > self._limits.head_bytes // 2:
            self.refuse(
                414, f"The request line is too long. The limit is {size} including headers."
            )
        else:
            self.refuse(
                431, f"The headers are too long. The limit is {size} including the request line."
            )

    def refuse(self, status: int, text: str) -> None:
        """Send an error, read nothing more, and close when the client has had time to read it.

        An error after a request without an answer must not look like the answer to that request (response
        splitting). In that case the connection closes after the answer.
        """
        if self.transport.is_closing() or self._closing_timer is not None:
            return
        if self._is_busy:
            if self._in_head:
                self._is_last, self._unread = True, 0
                return
            # The application waits for a body that will never arrive.
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
        self._counted.body_ended(self)
        self._counted.idle(self)
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
    """Return uvicorn's configuration. `grace`: seconds until running requests are aborted when the server
    stops. `websockets`: the counters of WebSockets; None = no WebSockets."""
    return Config(
        cast("Any", application),
        http=protocol,
        ws=cast("Any", _counted(websockets)) if websockets is not None else "none",
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


def _counted(groups: ConnectionGroups) -> Callable[..., asyncio.Protocol]:
    """Return the factory of a WebSocket's protocol. It imports the library with the first one, since most
    services never have any."""

    def create(**options: Any) -> asyncio.Protocol:
        return _websocket()(groups, **options)

    return create


@cache
def _websocket() -> Callable[..., asyncio.Protocol]:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

    class CountedWebSocket(WebSocketsSansIOProtocol):
        """A WebSocket that counts as opening until its first message, as other connections do until their
        first head."""

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
                self._counted.active(self)  # It was accepted and may be silent.
            else:
                self.transport.abort()

    return CountedWebSocket
