"""Wake-ups inside one process: whoever waits for news of a job sleeps until there is some.

Holds nothing that matters: a missed notice costs a look at the store, never a state. All methods are
called on the event loop's thread.
"""

import asyncio
from collections import defaultdict

from trainshed.core.names import JobUid


class Notices:
    """Counts news per job. A waiter remembers the count it saw and waits for a higher one."""

    def __init__(self) -> None:
        self._counts: dict[JobUid, int] = {}
        self._waiters: defaultdict[JobUid, set[asyncio.Future[None]]] = defaultdict(set)

    def count(self, uid: JobUid) -> int:
        """News so far; read it *before* looking at the store, then wait beyond it."""
        return self._counts.get(uid, 0)

    def publish(self, uid: JobUid) -> None:
        """There is news: a state, a timeline entry or log lines can be read now."""
        self._counts[uid] = self._counts.get(uid, 0) + 1
        for waiter in self._waiters.pop(uid, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait_beyond(self, uid: JobUid, count: int, patience: float) -> bool:
        """Wait until there is news beyond `count`, at most `patience` seconds; False if there was none."""
        if self.count(uid) > count:
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

    def forget(self, uid: JobUid) -> None:
        """The job is over and was told; keep no count of it while nobody waits."""
        if uid not in self._waiters:
            self._counts.pop(uid, None)

    def _discard(self, uid: JobUid, waiter: asyncio.Future[None]) -> None:
        waiters = self._waiters.get(uid)
        if waiters is not None:
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[uid]
