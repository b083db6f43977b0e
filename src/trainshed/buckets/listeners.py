"""The bucket process's listeners, and what each of them believes about a caller.

Owns the HTTP protocol class that marks every request with its listener: a replica's relay introduces the program it
speaks for before the first byte of HTTP, and nothing that the program sends later can change that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from trainshed.buckets.callers import UnreadableCaller, introduced
from trainshed.httpd.protocol import GuardedProtocol, Ways, guarded

LISTENER = "trainshed.listener"
CALLER = "trainshed.caller"
"""Keys of the connection's state, which the application finds in the scope of each request."""
_LONGEST = 4096


class Listener(StrEnum):
    """The listener that a request reached, as the access log calls it."""

    GATEWAY = "gateway"
    """The Unix socket that only the API's process opens: it says in a header who calls."""
    REPLICA = "replica"
    """The Unix socket of the replicas' relays."""
    PORT = "port"
    """The TCP port, which anyone reaches."""


def protocol(listeners: Mapping[object, Listener], ways: Ways) -> type[GuardedProtocol]:
    """The server's protocol. `listeners`: by what a listening socket calls itself; any other is the port. `ways`: who
    counts the connections."""

    class Marking(guarded(ways)):
        """HTTP on a connection whose listener is known; on a relay's, after its introduction."""

        _waiting: bytearray | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
            super().connection_made(transport)
            listener = listeners.get(transport.get_extra_info("sockname"), Listener.PORT)
            self.app_state = {**self.app_state, LISTENER: listener}
            if listener is Listener.REPLICA:
                self._waiting = bytearray()

        def data_received(self, data: bytes) -> None:
            if self._waiting is None:
                super().data_received(data)
                return
            self._waiting += data
            line, end, rest = bytes(self._waiting).partition(b"\n")
            if not end and len(line) <= _LONGEST:
                return
            try:
                if len(line) > _LONGEST:
                    raise UnreadableCaller(f"it has more than {_LONGEST} bytes")
                introduction = introduced(line)
            except UnreadableCaller as error:
                self.send_400_response(_told(error))
                return
            self._waiting = None
            self.scheme = introduction.scheme
            self.app_state = {**self.app_state, CALLER: introduction.caller}
            if rest:
                super().data_received(rest)

    return Marking


def listener_of(state: Mapping[str, Any]) -> Listener:
    """The listener of a request whose connection has this state."""
    return state.get(LISTENER, Listener.PORT)


def _told(error: UnreadableCaller) -> str:
    text = (
        "This replica does not say on whose behalf it asks: it was started by an older version of the service. "
        f"Start its job again. ({error})"
    )
    return text.encode("ascii", "backslashreplace").decode()
