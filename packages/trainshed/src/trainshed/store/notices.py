"""Wakes, inside one process, tasks that wait for news of a job.

Holds no state that matters: a missed notice only costs another look at the store. All methods are called on
the event loop's thread.
"""

import asyncio
from collections import defaultdict

from trainshed.core.names import JobUid

_LIMIT = 10_000
_PUBLISH_DELAY = 0.01
"""Seconds by which `publish_soon` delays news: by then a start that results from it has been handed on."""


class Notices:
    """Numbers the news of all jobs. A waiter remembers the last number it saw and waits for a higher one.

    `limit`: the number of jobs whose last number is kept; of all others it is only known that theirs is not
    above a common one.
    """

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._latest = 0
        self._numbers: dict[JobUid, int] = {}
        self._forgotten = 0
        #: By job; None = for any.
        self._waiters: defaultdict[JobUid | None, set[asyncio.Future[None]]] = defaultdict(set)
        #: News that is about to be published.
        self._soon: dict[JobUid, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """The number of jobs whose last number is kept."""
        return len(self._numbers)

    @property
    def latest(self) -> int:
        """The number of the last news of any job; read it *before* looking at the store, then wait for later
        ones."""
        return self._latest

    def count(self, uid: JobUid) -> int:
        """Return the number of the last news of a job; read it *before* looking at the store, then wait for
        later ones."""
        return self._numbers.get(uid, self._forgotten)

    def since(self, count: int) -> list[JobUid] | None:
        """Return the jobs with news after `count`; None if that is no longer known."""
        if count < self._forgotten:
            return None
        news: list[JobUid] = []
        for uid, number in reversed(self._numbers.items()):
            if number <= count:
                break
            news.append(uid)
        return news

    def publish(self, uid: JobUid) -> None:
        """Announce news of a job: a state, a timeline entry or log lines can be read now."""
        if (soon := self._soon.pop(uid, None)) is not None:
            soon.cancel()
        if len(self._numbers) >= self._limit and uid not in self._numbers:
            self._forgotten = self._latest
            self._numbers.clear()
        self._latest += 1
        self._numbers.pop(uid, None)  # The dict is in the order of numbers.
        self._numbers[uid] = self._latest
        for waiter in (*self._waiters.pop(uid, ()), *self._waiters.pop(None, ())):
            if not waiter.done():
                waiter.set_result(None)

    def publish_soon(self, uid: JobUid) -> None:
        """Publish in a moment, once for all news that comes until then: readers take time on the loop that
        the tasks which carry the news on need first."""
        if uid not in self._soon:
            loop = asyncio.get_running_loop()
            self._soon[uid] = loop.call_later(_PUBLISH_DELAY, self.publish, uid)

    async def wait_beyond(self, uid: JobUid | None, count: int, patience: float) -> bool:
        """Wait until there is news of a job (None: of any) after `count`, for at most `patience` seconds;
        False if there was none.

        May also return True for news that was seen already: the caller then looks once in vain.
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
