"""Methods that return a stream of messages: the events that end a stream early, and the pace of a stream.

Notices wake a stream when its job has changed. Streams therefore never poll, and do not read faster than
necessary.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.core.names import JobUid
from trainshed.eventloop.background import first_of, joined
from trainshed.store.notices import Notices

if TYPE_CHECKING:
    from trainshed.api.calls.call import Call

StreamHandler = Callable[["Call", Any], Awaitable[AsyncGenerator[Message]]]
"""A function that checks the first request of a stream and returns the responses. The function and the
iteration over the responses raise the errors of `api.calls.errors`."""
StreamHandlers = Mapping[str, StreamHandler]
"""Stream handlers by full method name."""
_RIGHTS_INTERVAL: Final = 15.0
"""Maximum time in seconds between two checks of a program's right to a stream. A notice about the program's
job causes an earlier check."""

_KEEP_ALIVE: Final = 15.0
"""Seconds without a message after which a stream sends a blank line."""
_MAX_IMMEDIATE_READS: Final = 4
"""Maximum number of reads without a delay. After that, a stream waits before each read. This limits the cost
of readers if a job writes or changes all the time."""
_READ_INTERVAL: Final = 0.02
"""Seconds to wait between reads. Each such interval without a read allows one more immediate read. Rare
messages, such as the end of a job, are therefore sent at once."""
_IDLE_FACTOR: Final = 4
"""A stream waits at least this many times as long as its last read took, because a read of a job with
thousands of trials is expensive."""


async def wait_for_expiry(services: Services, principal: Principal) -> None:
    """Wait until the principal loses its right to a stream. A program loses the right when its job ends,
    which a notice announces."""
    if principal.program is None:
        await services.access.lapse(principal)
        return
    uid = JobUid(principal.program.job_uid)
    seen = services.notices.count(uid)
    while services.access.is_valid(principal):
        await services.notices.wait_beyond(uid, seen, _RIGHTS_INTERVAL)
        seen = services.notices.count(uid)


async def guard_stream(
    responses: AsyncGenerator[Message], services: Services, principal: Principal
) -> AsyncGenerator[Message]:
    """Yield the responses of a stream. Raises Unauthenticated when the principal loses its right to the
    stream, and Unavailable when the service stops."""
    end = joined(first_of(wait_for_expiry(services, principal), services.closing.wait()))
    try:
        while True:
            response = joined(_next(responses))
            try:
                await asyncio.wait((response, end), return_when=asyncio.FIRST_COMPLETED)
                if not response.done():
                    break
            finally:
                if not response.done():
                    response.cancel()
                    await asyncio.gather(response, return_exceptions=True)
            if (message := response.result()) is None:
                return
            yield message
    finally:
        end.cancel()
        await asyncio.gather(end, return_exceptions=True)
        await responses.aclose()
    if services.closing.is_set():
        raise Unavailable("The service is stopping. Start the stream again in a moment.")
    raise Unauthenticated(
        "The access token has expired, or its rights have changed. Start the stream again with a valid token."
    )


async def _next(responses: AsyncGenerator[Message]) -> Message | None:
    return await anext(responses, None)


class Pace:
    """Determines when a stream reads its sources again. Must be created on the stream's event loop."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._loop = asyncio.get_running_loop()
        self._last_message = self._began = self._loop.time()
        #: Seconds after which one more immediate read is allowed.
        self._span = _READ_INTERVAL
        #: Number of immediate reads that are currently allowed.
        self._allowed = float(_MAX_IMMEDIATE_READS)

    async def start_read(self) -> None:
        """Start a read. If there were too many immediate reads, wait first."""
        passed = self._loop.time() - self._began
        self._allowed = min(_MAX_IMMEDIATE_READS, self._allowed + passed / self._span)
        if self._allowed < 1:
            await asyncio.sleep((1 - self._allowed) * self._span)
            self._allowed = 1
        self._allowed -= 1
        self._began = self._loop.time()

    def finish_read(self) -> None:
        """Finish a read. Its duration determines the delay before the next read."""
        self._span = max(_READ_INTERVAL, (1 + _IDLE_FACTOR) * (self._loop.time() - self._began))

    def message_sent(self) -> None:
        """Restart the keep-alive interval after a message was sent."""
        self._last_message = self._loop.time()

    def is_keep_alive_due(self) -> bool:
        """Whether a keep-alive line is due. If so, restart the interval."""
        if self._seconds_left() > 0:
            return False
        self.message_sent()
        return True

    async def wait_for_news(self, counts: Mapping[JobUid, int]) -> None:
        """Wait until one of these jobs has a new notice, or until a keep-alive line is due. `counts`: by job,
        the number of notices that the stream has already handled."""
        notices, left = self._notices, self._seconds_left()
        if not any(notices.count(uid) > count for uid, count in counts.items()):
            await first_of(*(notices.wait_beyond(uid, count, left) for uid, count in counts.items()))

    def _seconds_left(self) -> float:
        """Return the seconds until a keep-alive line is due."""
        return self._last_message + _KEEP_ALIVE - self._loop.time()
