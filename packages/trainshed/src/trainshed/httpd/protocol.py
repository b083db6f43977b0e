"""uvicorn's HTTP protocol with limits: httptools itself accepts heads, trailers and pipelines of any length.

It counts bytes as they arrive, before anything is kept of them. It knows no path and no application.
`server_config` is the same for all servers of the service's processes.
"""

import asyncio
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from trainshed.httpd.connections import HOLD, Connections, Limits, Reason
from trainshed.httpd.messages import JSON, Application, error_body

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 1 << 20
"""Bytes that a refused caller may still send: closing at once would keep it from reading the reason."""


class ConnectionGroups:
    """Chooses which counter a connection belongs to: one for all of TCP, and one for each Unix socket, so
    that programs do not take up people's places."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.tcp = Connections(limits)
        self._unix: dict[str, Connections] = {}

    def of(self, transport: asyncio.BaseTransport) -> Connections:
        """Returns the counter of this transport's listener."""
        name = transport.get_extra_info("sockname")
        if not isinstance(name, str):
            return self.tcp
        return self._unix.setdefault(name, Connections(self._limits))


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
    #: Whether part of a head has come.
    _begun = False
    #: Bytes since the last progress: those of a head, or those around the pieces of a body.
    _spent = 0
    #: Bytes of a body that came with the last read.
    _came = 0
    #: Bytes of a body that nobody waits for any more.
    _unread = 0
    #: The parser is being given a head again whose request has been started already.
    _is_head_known = False
    #: The request whose answer is next; `cycle` is the request that came last.
    _answered: RequestResponseCycle | None = None
    #: What is wrong with the head that is being read.
    _fault = "Invalid HTTP request received."
    #: The refusal (status, message) to send once all earlier requests are answered; until then nothing is
    #: read.
    _refusal: tuple[int, str] | None = None
    #: Set after a refusal: the timer that closes the connection.
    _leaving: asyncio.TimerHandle | None = None
    #: Set when the caller has closed its side while it waits for an answer: the timer that ends the waiting.
    _half_closed: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
        super().connection_made(transport)
        self._counted = self.counting.of(transport)
        self._limits = self._counted.limits
        self._counted.open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._counted.closed(self)
        for timer in (self._leaving, self._half_closed):
            if timer is not None:
                timer.cancel()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's is None
        """Close the connection, unless a complete request still has to be answered: `nc -N` and some proxies
        close their own side behind a request. A caller who has left altogether looks the same until something
        is written to it, so nobody is kept for long, and nobody whose answer has begun. TLS cannot be closed
        by half."""
        is_waiting = self.cycle and not (
            self.cycle.response_complete or self.cycle.response_started
        )
        if (
            not is_waiting
            or not self._in_head
            or self._leaving is not None
            or self.scheme == "https"
        ):
            return None
        self.cycle.keep_alive = False
        self._half_closed = self.loop.call_later(
            self._limits.half_closed_seconds, self.transport.close
        )
        return True

    def data_received(self, data: bytes) -> None:
        if self._leaving is not None or self._refusal is not None:
            self._unread += len(data)
            if self._unread > _LINGER_BYTES:
                self._abort()
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
            self.refuse(400, self._fault)
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
                if self.cycle and not self.cycle.response_complete:
                    self.refuse(
                        400, "A WebSocket begins when what was asked before it is answered."
                    )
                else:
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

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        # Behind a body come trailers, which no handler needs.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined and not self._is_head_known:
            # Raising here ends the parser's work.
            self._fault = (
                f"At most {self._limits.pipelined} requests may wait for their answers on one connection: "
                "this one was not read."
            )
            raise ValueError(self._fault)
        self._in_head = False
        self._begun = False
        self._spent = 0
        if self._is_head_known:
            return
        self._unread = 0
        self._counted.active(self)
        before = self.cycle
        HOLD.set(partial(self._counted.held, self))
        super().on_headers_complete()
        # uvicorn has just made the cycle that answers this request.
        if self.cycle is not before and not self.pipeline:
            self._answered = self.cycle

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
        if self.cycle and self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        if not is_last:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if self._refusal is not None:
            if is_last:
                refusal, self._refusal = self._refusal, None
                self.refuse(*refusal)
            return
        # An unfinished body is still to be dropped; the next request begins at its end.
        if self._in_head and not self.pipeline and not self.transport.is_closing():
            self._rest()

    def _rest(self) -> None:
        if self._begun:
            self._counted.opening(self)
            return
        self._is_idle = True
        self._counted.idle(self)

    def handle_websocket_upgrade(self) -> None:
        # From here on the WebSocket protocol counts the connection.
        self._counted.closed(self)
        super().handle_websocket_upgrade()

    def _abort(self) -> None:
        if self._answered is not None:
            self._answered.disconnected = True  # It writes no more: the transport would raise.
        self.transport.abort()

    def is_held_back(self) -> bool:
        return self.flow.read_paused

    def drop(self, reason: Reason) -> None:
        answering = self.cycle and not self.cycle.response_complete
        if reason is Reason.CROWDED or (answering and self.cycle.response_started):
            self._abort()
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
        """Answer once, read nothing more, and close when the caller has had time to read the answer.

        Answers come in the order of requests, so this one waits until all earlier requests are answered: it
        must not be taken for one of their answers.
        """
        if self.transport.is_closing() or self._leaving is not None:
            return
        if self.cycle and not self.cycle.response_complete:
            if self._in_head:
                self._refusal = status, text
                self._unread = 0
                return
            # The application waits for a body that will not come.
            if self.cycle.response_started or self.pipeline:
                self._abort()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = error_body(status, text, "INVALID_ARGUMENT")
        head = b"content-type: %b\r\nconnection: close\r\n" % JSON
        self.transport.write(
            b"%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINE[status], head, len(body), body)
        )
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
            self.transport.abort()

    return CountedWebSocket
