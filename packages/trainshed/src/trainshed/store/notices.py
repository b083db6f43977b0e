"""Wakes tasks of this process that wait for news of a job. All methods are called on the event loop's thread.

The object holds no essential state. A task that misses a notification reads the store again later.
"""

import asyncio
from collections import defaultdict

from trainshed.core.names import JobUid

_LIMIT = 10_000
_PUBLISH_DELAY = 0.01
"""Delay of `publish_soon` in seconds. The delay is long enough for an engine to receive a start that results
from the news."""


class Notices:
    """Numbers the news of all jobs. A waiting task remembers the last number, and waits for a higher one.

    `limit`: the maximum number of jobs for which the number of their last news is stored. For all other jobs,
    only a common upper bound of these numbers is known.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._latest = 0
        self._numbers: dict[JobUid, int] = {}
        self._forgotten = 0
        #: Waiting tasks by job. The key None is for tasks that wait for news of any job.
        self._waiters: defaultdict[JobUid | None, set[asyncio.Future[None]]] = defaultdict(set)
        #: Timers by job, each for news that will be published soon.
        self._soon: dict[JobUid, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Return the number of jobs for which the number of their last news is stored."""
        return len(self._numbers)

    @property
    def latest(self) -> int:
        """The number of the last news of any job. To miss nothing, read this number *before* reading the
        store, and then wait for later news."""
        return self._latest

    def count(self, uid: JobUid) -> int:
        """Return the number of the last news of a job. To miss nothing, read this number *before* reading the
        store, and then wait for later news."""
        return self._numbers.get(uid, self._forgotten)

    def since(self, count: int) -> list[JobUid] | None:
        """Return the jobs that have notices with a number greater than `count`. Return None if some of these
        notices are no longer stored."""
        if count < self._forgotten:
            return None
        news: list[JobUid] = []
        for uid, number in reversed(self._numbers.items()):
            if number <= count:
                break
            news.append(uid)
        return news

    def publish(self, uid: JobUid) -> None:
        """Announce news of a job: readers can now read a new state, timeline entry or log line."""
        if (soon := self._soon.pop(uid, None)) is not None:
            soon.cancel()
        if len(self._numbers) >= self._limit and uid not in self._numbers:
            self._forgotten = self._latest
            self._numbers.clear()
        self._latest += 1
        # Removing the key first keeps the dict in the order of numbers.
        self._numbers.pop(uid, None)
        self._numbers[uid] = self._latest
        for waiter in (*self._waiters.pop(uid, ()), *self._waiters.pop(None, ())):
            if not waiter.done():
                waiter.set_result(None)

    def publish_soon(self, uid: JobUid) -> None:
        """Publish all news of a job once, after a short delay. Without the delay, readers would use the event
        loop before the tasks that create further news."""
        if uid not in self._soon:
            loop = asyncio.get_running_loop()
            self._soon[uid] = loop.call_later(_PUBLISH_DELAY, self.publish, uid)

    async def wait_beyond(self, uid: JobUid | None, count: int, patience: float) -> bool:
        """Wait at most `patience` seconds for news of a job after the number `count`. `uid`: None = any job.
        Return False if no news arrived.

        The method may also return True without news. The caller then reads the store in vain.
        """
        if (self._latest if uid is None else self.count(uid)) > count:
            return True
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[uid].add(waiter)
        try:
            await asyncio.wait_for(waiter, patience)
        except TimeoutError:
            return False
        finally:
            self._discard(uid, waiter)
        return True

    def _discard(self, uid: JobUid | None, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(uid)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[uid]
