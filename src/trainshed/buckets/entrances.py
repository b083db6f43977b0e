"""The ways into the bucket process, and who is believed what about a caller at each of them.

Owns the HTTP protocol class that marks every request with its way: a replica's relay introduces the program it
speaks for before the first byte of HTTP, and nothing that the program sends later can change that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from trainshed.buckets.callers import UnreadableCaller, introduced
from trainshed.httpd.protocol import GuardedProtocol, Ways, guarded

ENTRANCE = "trainshed.entrance"
CALLER = "trainshed.caller"
"""Keys of the connection's state, which the application finds in the scope of each request."""
_LONGEST = 4096


class Entrance(StrEnum):
    """Which way a request came, as the access log calls it."""

    GATEWAY = "gateway"
    """The Unix socket that only the API's process opens: it says in a header who calls."""
    REPLICA = "replica"
    """The Unix socket of the replicas' relays."""
    PORT = "port"
    """The TCP port, which anyone reaches."""


def protocol(entrances: Mapping[object, Entrance], ways: Ways) -> type[GuardedProtocol]:
    """The server's protocol. `entrances`: by what a listening socket calls itself; any other is the port. `ways`: who
    counts the connections."""

    class Marking(guarded(ways)):
        """HTTP on a connection whose way in is known; on a relay's, after its introduction."""

        _waiting: bytearray | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] uvicorn's own narrowing
            super().connection_made(transport)
            entrance = entrances.get(transport.get_extra_info("sockname"), Entrance.PORT)
            self.app_state = {**self.app_state, ENTRANCE: entrance}
            if entrance is Entrance.REPLICA:
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


def entrance_of(state: Mapping[str, Any]) -> Entrance:
    """The way in of a request whose connection has this state."""
    return state.get(ENTRANCE, Entrance.PORT)


def _told(error: UnreadableCaller) -> str:
    text = (
        "This replica does not say on whose behalf it asks: it was started by an older version of the service. "
        f"Start its job again. ({error})"
    )
    return text.encode("ascii", "backslashreplace").decode()
