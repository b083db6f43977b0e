"""The one way to start work that nobody awaits (docs/adr/0042): whose it is, who hears of its death, and what
heals it.

A task of asyncio's own that dies is not heard of before it is collected as garbage, and never while somebody
holds it.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_PAUSE: Final = 1.0
"""Seconds before what has died is begun again; twice as many each time."""
_LONGEST_PAUSE: Final = 60.0


def begin(
    work: Coroutine[Any, Any, T],
    what: str,
    died: Callable[[Exception], None] | None = None,
) -> asyncio.Task[T]:
    """Do `work` beside everything else. If it dies, that is logged as what happened to `what` ("job 12:
    suggesting"), with its traceback; then `died` heals. The caller holds the task: asyncio does not."""

    def ended(task: asyncio.Task[T]) -> None:
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, Exception):
            _tell(loop, f"{what} failed: {failure!r}", failure)
            if died is not None:
                died(failure)

    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=what)
    task.add_done_callback(ended)
    return task


def keep(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> asyncio.Task[None]:
    """Do what must not end before its time: whenever it dies it is begun again, after a pause that grows
    while it does not live. The task ends when `work` has come to its end."""
    return begin(_kept(work, what), what)


def joined(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task whose end its starter waits for and looks at: whatever it fails with is told there."""
    return asyncio.get_running_loop().create_task(work)


def heed(future: concurrent.futures.Future[Any], what: str) -> None:
    """Log it if what a thread was given to do, and nobody waits for, fails."""

    def ended(done: concurrent.futures.Future[Any]) -> None:
        if not done.cancelled() and (failure := done.exception()) is not None:
            log.error("%s failed: %r", what, failure, exc_info=failure)

    future.add_done_callback(ended)


async def in_turns(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """The items in blocks, between which others have their turn on the loop."""
    for first in range(0, len(items), size):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + size]


class Crew:
    """The tasks of one owner, who does not tell them apart."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """As `begin`."""
        self._hold(begin(work, what))

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        """As `keep`."""
        self._hold(keep(work, what))

    @property
    def is_busy(self) -> bool:
        """Whether one of them has not come to its end."""
        return bool(self._tasks)

    def cancel(self) -> None:
        """Have all of them stop."""
        for task in tuple(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Have all of them stop, and wait until they have."""
        self.cancel()
        await self.settled()

    async def settled(self) -> None:
        """Wait until all of them have come to their end."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hold(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _kept(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    loop, pause = asyncio.get_running_loop(), _PAUSE
    while True:
        begun = loop.time()
        try:
            return await work()
        except Exception as failure:
            if loop.time() - begun > _LONGEST_PAUSE:
                pause = _PAUSE
            _tell(loop, f"{what} failed: {failure!r}; once more in {pause:g} s", failure)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _tell(loop: asyncio.AbstractEventLoop, message: str, failure: Exception) -> None:
    """By the loop's own handler, which logs it, and under virtual time lets the test fail."""
    loop.call_exception_handler({"message": message, "exception": failure})
