"""Rate limits for failed authentication: delays and reports brute-force attacks, by network address.

A token has 256 random bits and cannot be guessed. The limits make attempts expensive and visible to an
operator. Requests with valid credentials are never delayed, since many users may share one address.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from ipaddress import ip_address
from typing import Final

SOURCE: Final[ContextVar[str]] = ContextVar("source", default="")
"""Network address of the client of the current request."""
GUESS: Final = "trainshed.guess"
"""Key in the ASGI scope. If its value is true, the request counts as a failed authentication even if the
response does not have the status 401: the request contained an unknown session password or link key."""
SOURCE_HEADER: Final = "x-trainshed-source"
"""The header in which the bucket process sends its client's address to the API when it checks a token."""
_FREE_FAILURES: Final = 30
"""Number of failures of one address within `_WINDOW_SECONDS` whose responses are not delayed."""
_WINDOW_SECONDS: Final = 60.0
_DELAY_SECONDS: Final = 1.0
"""Interval between the responses to later failures of a network, even if the requests are concurrent."""
_MAX_DELAY_SECONDS: Final = 60.0
"""Maximum delay of a response. It limits the number of open connections."""
_MAX_CALLERS: Final = 10_000
"""Maximum number of callers in memory. Beyond it, the oldest caller is dropped."""


def network_of(source: str) -> str:
    """Return the unit of the limits: an IPv4 address, or the /64 network of an IPv6 address."""
    return ip_address(source).exploded[:19] if ":" in source and "." not in source else source


class FailureCounter:
    """Counts failures per caller within a window, in seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        #: The start of each caller's window, and the number of failures since then.
        self._counts: dict[str, tuple[float, int]] = {}

    def count(self, caller: str) -> int:
        """Count a failure, and return the caller's number of failures within the window."""
        now = time.monotonic()
        start, count = self._counts.pop(caller, (now, 0))
        if now - start >= self._window:
            start, count = now, 0
        self._counts[caller] = start, count + 1
        if len(self._counts) > _MAX_CALLERS:
            del self._counts[next(iter(self._counts))]
        return count + 1


class AuthenticationLimiter(FailureCounter):
    """Counts and delays failed authentications at one port. `report` is called when the delays of an address
    start, with the address and details."""

    def __init__(self, report: Callable[[str, Mapping[str, object]], Awaitable[None]]) -> None:
        super().__init__(_WINDOW_SECONDS)
        self._report = report
        #: The time of the last delayed response to each network, oldest first.
        self._due: dict[str, float] = {}

    def count(self, caller: str) -> int:
        """Count a failure of an address."""
        return super().count(network_of(caller))

    async def delay_failure(self, source: str) -> None:
        """Wait until the response to unknown credentials may be sent. `source`: the client's address; "" =
        this machine."""
        count = self.count(source) if source else 0
        if count <= _FREE_FAILURES:
            return
        if count == _FREE_FAILURES + 1:
            await self._report(source, {"refusals": count, "seconds": _WINDOW_SECONDS})
        network, now = network_of(source), time.monotonic()
        due = max(self._due.pop(network, now), now) + _DELAY_SECONDS
        self._due[network] = due = min(due, now + max(_DELAY_SECONDS, _MAX_DELAY_SECONDS))
        if len(self._due) > _MAX_CALLERS:
            del self._due[next(iter(self._due))]
        await asyncio.sleep(due - now)
