"""Virtual time: a clock that only moves when no task is runnable, and its event loop.

The world (nodes, programs) schedules its own events on the clock. They continue while no loop runs, like real
ones without a service. No real time passes: a year takes as long as the computation of its events.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, ParamSpec, TypeVar

from tests.sim.engine.clock import Clock

P = ParamSpec("P")
T = TypeVar("T")

SECOND = 10**9
_BUSY = 20_000
"""This many iterations of the loop without a step of the clock are an endless loop."""


class Deadlock(Exception):
    """Raised if all tasks wait, and no timer or event of the world remains."""


class Livelock(Exception):
    """Raised if the event loop iterates forever without any progress of the clock."""


class _Selector:
    """Replaces the selector of `BaseEventLoop`: it moves the clock instead of sleeping."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turns = 0
        self._at = -1

    def select(self, timeout: float | None) -> list[Any]:
        clock = self._clock
        if timeout is not None and timeout <= 0:
            self._count()
            clock.run_due()
            return []
        upcoming = clock.next_at()
        if timeout is None and upcoming is None:
            raise Deadlock(f"at {clock.now / SECOND:.3f} s everything waits for nothing")
        wake = None if timeout is None else clock.now + max(1, round(timeout * SECOND))
        target = min(at for at in (wake, upcoming) if at is not None)
        clock.advance(target)
        return []

    def close(self) -> None: ...

    def _count(self) -> None:
        if self._at != self._clock.now:
            self._at, self._turns = self._clock.now, 0
        self._turns += 1
        if self._turns > _BUSY:
            raise Livelock(f"at {self._clock.now / SECOND:.3f} s time stands still")


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on a `Clock`, without sockets, signals and threads. `to_thread` runs immediately, in the
    same thread.
    """

    def __init__(self, clock: Clock, failures: list[BaseException]) -> None:
        super().__init__()
        self._failures = failures
        self._clock = clock
        self._selector = _Selector(clock)
        self._clock_resolution = 1e-6
        #: A thread works while the loop stands still (`group_commit`).
        self.waits_for_thread = False
        self.set_exception_handler(self._record_failure)

    def _record_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failure = context.get("exception")
        if isinstance(failure, Exception):
            self._failures.append(failure)

    def time(self) -> float:
        return self._clock.now / SECOND

    def run_in_executor(  # pyright: ignore[reportIncompatibleMethodOverride] - no executor is ever used
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as failure:
            future.set_exception(failure)
        else:
            future.set_result(result)
        return future

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if not self.waits_for_thread:
            raise RuntimeError("a thread under virtual time: nobody could say when it is done")
        return self.call_soon(callback, *args, context=context)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Do nothing: a generator that is dropped with its loop is never closed, as in a killed process."""

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        raise RuntimeError("nobody else may wake this loop")


def run(clock: Clock, body: Coroutine[Any, Any, T], failures: list[BaseException] | None = None) -> T:
    """Run `body` to its end under virtual time. Its remaining tasks are dropped immediately, as by SIGKILL:
    their `finally` blocks do not run. A `SystemExit` from anywhere ends the run immediately. `failures`:
    receives unhandled exceptions of tasks.
    """
    loop = VirtualLoop(clock, failures if failures is not None else [])
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(body)
    finally:
        abandon(loop)
        asyncio.set_event_loop(None)


def under_virtual_time(story: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine in which hours pass immediately."""

    @functools.wraps(story)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        run(Clock(), story(*args, **kwargs))

    return test


def abandon(loop: VirtualLoop) -> None:
    """Forget every task of a loop that will never run again."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - asyncio would log intended drops
        with contextlib.suppress(BaseException):
            task.get_coro().close()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess,reportUnknownMemberType,reportAttributeAccessIssue] - a task has one until it is done
    loop.close()
