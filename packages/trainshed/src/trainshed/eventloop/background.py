"""The only way to start background work (docs/adr/0042). Every task has an owner, a log line about its
failure, and a way to recover from it.

asyncio itself reports the failure of a task only when the task is garbage-collected. It never reports the
failure while a reference to the task exists.
"""

import asyncio
import concurrent.futures
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

_MIN_RETRY_INTERVAL: Final = 1.0
"""Seconds before a failed coroutine is restarted. The interval doubles with each further failure."""
_MAX_RETRY_INTERVAL: Final = 60.0


def begin(
    work: Coroutine[Any, Any, T], what: str, died: Callable[[Exception], None] | None = None
) -> asyncio.Task[T]:
    """Run `work` as a task. The caller must keep a reference to the task, because asyncio does not.

    `what`: the name of the task in the log ("job 12: suggesting"). A failure is logged with its traceback.
    `died`: called after a failure, to repair the damage.
    """

    def ended(task: asyncio.Task[T]) -> None:
        failure = None if task.cancelled() else task.exception()
        if isinstance(failure, Exception):
            _report(loop, f"{what} failed: {failure!r}", failure)
            if died is not None:
                died(failure)

    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=what)
    task.add_done_callback(ended)
    return task


def keep(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> asyncio.Task[None]:
    """Run the coroutine that `work` returns, and restart it after each failure. If it fails repeatedly within
    a short time, the intervals grow. The task ends when the coroutine returns."""
    return begin(_run_forever(work, what), what)


def joined(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a coroutine as a task that the caller will await. If the coroutine fails, `await` raises the
    exception in the caller. The failure is not logged here."""
    return asyncio.get_running_loop().create_task(work)


async def first_of(*works: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    """Run several coroutines concurrently. When one of them ends, cancel the others. Return all tasks in the
    order of `works`."""
    tasks = [joined(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks)
    return tasks


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until all have ended."""
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def wait_shielded(task: asyncio.Future[T]) -> T:
    """Wait for a task. If the caller is cancelled, the task continues, and its failure is ignored.
    `asyncio.shield` behaves like this from Python 3.14 on."""
    task.add_done_callback(consume_exception)
    await asyncio.wait((task,))
    return task.result()


def consume_exception(done: asyncio.Future[T]) -> None:
    """Retrieve a task's exception, so that the event loop does not report it as never retrieved."""
    if not done.cancelled():
        done.exception()


def run_in_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on another thread's event loop and wait for it. Return its result, or raise its
    exception."""
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def log_failure(future: concurrent.futures.Future[Any], what: str) -> None:
    """Log the failure of a function that runs in a thread. Use this if no caller awaits the function's
    result."""

    def ended(done: concurrent.futures.Future[Any]) -> None:
        if not done.cancelled() and (failure := done.exception()) is not None:
            log.error("%s failed: %r", what, failure, exc_info=failure)

    future.add_done_callback(ended)


async def in_turns(items: Sequence[T], size: int) -> AsyncIterator[Sequence[T]]:
    """Yield the items in blocks, and let other tasks of the loop run between them."""
    for first in range(0, len(items), size):
        if first:
            await asyncio.sleep(0)
        yield items[first : first + size]


class Crew:
    """The tasks of one component, which are cancelled and awaited together."""

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
        """Cancel all tasks and wait until all have ended."""
        await cancel_all(self._tasks)

    async def wait(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hold(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _run_forever(work: Callable[[], Coroutine[Any, Any, None]], what: str) -> None:
    loop, interval = asyncio.get_running_loop(), _MIN_RETRY_INTERVAL
    while True:
        start = loop.time()
        try:
            return await work()
        except Exception as failure:
            if loop.time() - start > _MAX_RETRY_INTERVAL:
                interval = _MIN_RETRY_INTERVAL
            _report(loop, f"{what} failed: {failure!r}; retry in {interval:g} s", failure)
        await asyncio.sleep(interval)
        interval = min(2 * interval, _MAX_RETRY_INTERVAL)


def _report(loop: asyncio.AbstractEventLoop, message: str, failure: Exception) -> None:
    """Pass a failure to the loop's exception handler, which logs it. In tests with virtual time, the handler
    makes the test fail."""
    loop.call_exception_handler({"message": message, "exception": failure})
