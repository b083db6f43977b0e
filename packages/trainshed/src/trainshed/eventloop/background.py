"""The one way to start work that nobody awaits (docs/adr/0042): every task has an owner, a log line when it
fails, and something that heals the failure.

A plain asyncio task that fails is noticed only when it is collected as garbage, and never while somebody
holds it.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_PAUSE: Final = 1.0
"""Seconds before failed work is begun again; the pause doubles each time."""
_LONGEST_PAUSE: Final = 60.0


def begin(
    work: Coroutine[Any, Any, T], what: str, died: Callable[[Exception], None] | None = None
) -> asyncio.Task[T]:
    """Run `work` as a task. If it fails, that is logged with its traceback under the name `what` ("job 12:
    suggesting"), and then `died` is called, which heals. The caller must hold the task: asyncio does not."""

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
    """Run work that should never fail for good: whenever it fails it is begun again, after a pause that grows
    with each quick failure. The task ends when `work` returns."""
    return begin(_kept(work, what), what)


def joined(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run work as a task that its starter awaits, and so hears of its failure itself."""
    return asyncio.get_running_loop().create_task(work)


async def first_of(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run works beside each other until one of them has ended, and cancel the others. Return their tasks, in
    order, all of which have ended."""
    tasks = [joined(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)
    return tasks


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def outliving(task: asyncio.Future[T]) -> T:
    """Wait for a task that goes on if its caller is cancelled. Nobody is told of its failure then, which
    `asyncio.shield` does from Python 3.14 on."""
    task.add_done_callback(looked_at)
    await asyncio.wait((task,))
    return task.result()


def looked_at(done: asyncio.Future[T]) -> None:
    """Read a failure, so that the event loop does not report that nobody did."""
    if not done.cancelled():
        done.exception()


def done_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Have another thread's loop do something, and wait for that here: return or raise what it does."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def heed(future: concurrent.futures.Future[Any], what: str) -> None:
    """Log the failure of work that was given to a thread and that nobody waits for."""

    def ended(done: concurrent.futures.Future[Any]) -> None:
        if not done.cancelled() and (failure := done.exception()) is not None:
            log.error("%s failed: %r", what, failure, exc_info=failure)

    future.add_done_callback(ended)


async def in_turns(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """Yield the items in blocks, and let other tasks run on the loop between two blocks."""
    for first in range(0, len(items), size):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + size]


class Crew:
    """The tasks of one owner that treats them all alike."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None], what: str) -> None:
        self._hold(begin(work, what))

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
        self._hold(keep(work, what))

    def cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        await cancel_all(self._tasks)

    async def settled(self) -> None:
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
    """Report a failure to the loop's exception handler: it logs it, and under virtual time the test fails."""
    loop.call_exception_handler({"message": message, "exception": failure})
