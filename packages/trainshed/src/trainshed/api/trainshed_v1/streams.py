"""How streams of NDJSON keep pace: they are woken by notices, never poll, and look no faster than a reader
needs.

A blank line now and then keeps a silent stream alive; readers skip it.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from trainshed.core.names import JobUid
from trainshed.eventloop.background import first_of
from trainshed.store.notices import Notices
from trainshed.wire.trainshed_v1.record import Record, encoded

SIGN_OF_LIFE: Final = b"\n"
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


def line(value: Record) -> bytes:
    """Return one line of a stream."""
    return encoded(value) + b"\n"
