"""A WebSocket protocol whose connections are counted like all others.

It loads the library for WebSockets, so it is imported with the first connection.
"""

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from trainshed.httpd.connections import Connections, Reason
from trainshed.httpd.protocol import ConnectionGroups

_NOT_UTF8 = 1007
"""The close code for a text message that is not UTF-8 (RFC 6455, 7.4.1)."""


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
