"""Methods that return a stream of messages, the events that end a stream early, and the pace of streams: they
are woken by notices, never poll, and look no faster than a reader needs."""

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
"""Checks the first request of a stream and returns the responses. Raises the errors of `api.calls.errors`,
before and between responses."""
StreamHandlers = Mapping[str, StreamHandler]
"""Stream handlers by full method name."""
_RIGHTS_INTERVAL: Final = 15.0
"""Seconds after which a program's right to a stream is checked again without a notice of its job."""

_KEEP_ALIVE: Final = 15.0
"""Seconds of silence after which a blank line is sent."""
_EAGER: Final = 4
"""How many times a stream may look again without a pause. After that it pauses before each look, so that a
job which writes or changes all the time does not make its readers cost as much as itself."""
_PAUSE: Final = 0.02
"""Seconds of the pause. Each such time without a look allows one more without a pause, so that rare news,
above all a job's end, are sent as soon as they come."""
_SHARE: Final = 4
"""A stream pauses at least this many times as long as its last look took, because looking at a job with
thousands of trials is expensive."""


async def lapse_of(services: Services, principal: Principal) -> None:
    """Return when the principal loses its right to a stream. A program loses it with the end of its job,
    which notices announce."""
    if principal.program is None:
        await services.access.lapse(principal)
        return
    uid = JobUid(principal.program.job_uid)
    seen = services.notices.count(uid)
    while services.access.is_valid(principal):
        await services.notices.wait_beyond(uid, seen, _RIGHTS_INTERVAL)
        seen = services.notices.count(uid)


async def guarded(
    responses: AsyncGenerator[Message], services: Services, principal: Principal
) -> AsyncGenerator[Message]:
    """Yield the responses. Raises Unauthenticated when the principal loses its rights, and Unavailable when
    the service stops."""
    end = joined(first_of(lapse_of(services, principal), services.closing.wait()))
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
        "The rights of this access token have changed or expired. Start the stream again with a valid "
        "token."
    )


async def _next(responses: AsyncGenerator[Message]) -> Message | None:
    return await anext(responses, None)


class Pace:
    """Decides when a stream looks again. Must be created on the event loop that the stream runs on."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._loop = asyncio.get_running_loop()
        self._silent_since = self._began = self._loop.time()
        #: Seconds after which one more immediate look is allowed.
        self._span = _PAUSE
        #: Immediate looks that are allowed.
        self._allowed = float(_EAGER)

    async def begin(self) -> None:
        """Call before each look. Pauses if there were too many immediate looks already."""
        passed = self._loop.time() - self._began
        self._allowed = min(_EAGER, self._allowed + passed / self._span)
        if self._allowed < 1:
            await asyncio.sleep((1 - self._allowed) * self._span)
            self._allowed = 1
        self._allowed -= 1
        self._began = self._loop.time()

    def looked(self) -> None:
        """Call after a look. Its duration decides how long to pause before the next one."""
        self._span = max(_PAUSE, (1 + _SHARE) * (self._loop.time() - self._began))

    def spoke(self) -> None:
        """Note that something is sent, which ends the silence."""
        self._silent_since = self._loop.time()

    def is_silent(self) -> bool:
        """Whether a sign of life is due. If so, the silence begins anew."""
        if self._left() > 0:
            return False
        self.spoke()
        return True

    async def news(self, counts: Mapping[JobUid, int]) -> None:
        """Wait until there is news of one of these jobs beyond its count, or a sign of life is due."""
        notices, left = self._notices, self._left()
        if not any(notices.count(uid) > count for uid, count in counts.items()):
            await first_of(
                *(notices.wait_beyond(uid, count, left) for uid, count in counts.items())
            )

    def _left(self) -> float:
        """Seconds until a sign of life is due."""
        return self._silent_since + _KEEP_ALIVE - self._loop.time()
