"""Slows those who show unknown credentials again and again, by their address, and tells of it.

A token has 256 random bits, so a brute-force attack leads nowhere; this keeps it from being cheap, and lets
an operator see it. Known credentials never wait: many people may have one address.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Final

SOURCE: Final[ContextVar[str]] = ContextVar("source", default="")
"""The address that the request under way came from."""
GUESS: Final = "trainshed.guess"
"""Key of a request's scope: its session password or link key is unknown, which no status 401 shows."""
SOURCE_HEADER: Final = "x-trainshed-source"
"""What the bucket process sends it in, when it asks whose a token is."""
_FREE: Final = 30
"""Refusals of one address within `_SPAN` that cost it nothing."""
_SPAN: Final = 60.0
"""Seconds."""
_DELAY: Final = 1.0
"""Seconds between the answers to further ones of a network, however many are sent at once."""
_LONGEST_DELAY: Final = 60.0
"""Seconds that an answer is delayed at most: so many connections held are a limit of their own."""
_MOST: Final = 10_000
"""Callers that are remembered; the oldest are forgotten first."""


def network_of(source: str) -> str:
    """Return what one caller has: an address, or of version 6 all addresses of its network."""
    return ip_address(source).exploded[:19] if ":" in source and "." not in source else source


class Refusals:
    """How often each caller was refused within a span, in seconds."""

    def __init__(self, span: float) -> None:
        self._span = span
        #: When the span of a caller began, and the refusals since.
        self._counts: dict[str, tuple[float, int]] = {}

    def count(self, caller: str) -> int:
        """Count a refusal, and return how many there are of this caller within the span."""
        now = time.monotonic()
        began, count = self._counts.pop(caller, (now, 0))
        if now - began >= self._span:
            began, count = now, 0
        self._counts[caller] = began, count + 1
        if len(self._counts) > _MOST:
            del self._counts[next(iter(self._counts))]
        return count + 1


class Strangers(Refusals):
    """The refusals of one port. `tell`: called with an address that has to wait from now on, and why."""

    def __init__(self, tell: Callable[[str, Mapping[str, object]], Awaitable[None]]) -> None:
        super().__init__(_SPAN)
        self._tell = tell
        #: When the last delayed answer of a network is due, oldest first.
        self._due: dict[str, float] = {}

    def count(self, caller: str) -> int:
        """Count a refusal of an address."""
        return super().count(network_of(caller))

    async def refused(self, source: str) -> None:
        """Return when an answer that refuses unknown credentials may be sent. `source`: the address that they
        came from; "" = this machine itself."""
        count = self.count(source) if source else 0
        if count <= _FREE:
            return
        if count == _FREE + 1:
            await self._tell(source, {"refusals": count, "seconds": _SPAN})
        network, now = network_of(source), time.monotonic()
        due = max(self._due.pop(network, now), now) + _DELAY
        self._due[network] = due = min(due, now + max(_DELAY, _LONGEST_DELAY))
        if len(self._due) > _MOST:
            del self._due[next(iter(self._due))]
        await asyncio.sleep(due - now)
