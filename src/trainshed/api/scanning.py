"""Applies a caller's filter to many rows: off the event loop, one after the other, and no longer than a request may.

All scans share one thread, in which each has a short turn: however many callers send expensive filters, everybody else
waits for one busy thread at most, and the scans share it fairly.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from trainshed.api.filters.matching import everything

T = TypeVar("T")

SECONDS: Final = 1.0
"""Computing time that one request may use; then it answers what it has, with a token to go on."""
_TURN: Final = 0.02
"""Seconds of computing time after which another scan gets its turn."""
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="scans")


class Scan(Generic[T]):
    """The filter of one request, and how long it was applied."""

    def __init__(self, passes: Callable[[T], bool], *, seconds: float | None = None) -> None:
        self._passes = passes
        self._left = SECONDS if seconds is None else seconds

    async def judge(self, rows: Sequence[T]) -> list[bool]:
        """Whether each row passes; of fewer rows once the time is used up, but of the first one in any case."""
        if self._passes is everything:
            return [True] * len(rows)
        verdicts: list[bool] = []
        loop = asyncio.get_running_loop()
        while len(verdicts) < len(rows) and (not verdicts or self._left > 0):
            verdicts += await loop.run_in_executor(_THREAD, self._turn, rows, len(verdicts))
        return verdicts

    def _turn(self, rows: Sequence[T], at: int) -> list[bool]:
        began = time.thread_time()
        turn, verdicts = min(_TURN, self._left), list[bool]()
        while at + len(verdicts) < len(rows):
            verdicts.append(self._passes(rows[at + len(verdicts)]))
            if time.thread_time() - began >= turn:
                break
        self._left -= time.thread_time() - began
        return verdicts
