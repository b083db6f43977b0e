"""What is heard while a job's environments are built: every line goes to the job's log, a few to its timeline.

Builds run in threads and know no job. Here their lines come to the event loop, are gathered, and leave it as writes to the
log and as events; nothing is committed for a line.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import chain, count
from types import TracebackType
from typing import Protocol, Self

from trainshed.core.lifecycle.events import Event, PreparationAdvanced
from trainshed.core.names import JobUid
from trainshed.eventloop.background import keep

log = logging.getLogger(__name__)

_GATHER = 0.2
"""Seconds for which lines are gathered before they are written."""
_LONGEST_TOLD = 300
"""Characters of a line on the timeline; the log has all of them."""


class PreparationLog(Protocol):
    """The service's own part of a job's log (`store.logs.service_log.ServiceLog`)."""

    async def begin(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> None:
        """Have an attempt's log begin with the notices, unless it has begun. Raises OSError."""
        ...

    async def append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        """Write lines, which can be read when it returns. Raises OSError."""
        ...


class Hearing:
    """The ear of one preparation, as a context: when it is left, every line that came is written."""

    def __init__(
        self,
        uid: JobUid,
        attempt: int,
        written_to: PreparationLog,
        report: Callable[[JobUid, Event], None],
    ) -> None:
        self._uid = uid
        self._attempt = attempt
        self._log = written_to
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._began = _now(self._loop)
        # Ever more seldom: half an hour of building is ten entries.
        self._moments = chain((3.0, 10.0, 30.0), (60.0 * 2**n for n in count()))
        self._next = next(self._moments)
        self._lines: list[str] = []
        self._left = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._heard = False

    @property
    def took(self) -> int:
        """ns for which was built; 0 = nothing was."""
        # The clock of the loop may stand still for a millisecond.
        return max(1, round((_now(self._loop) - self._began) * 1e9)) if self._heard else 0

    def hear(self, line: str) -> None:
        """Take a line. From any thread, also when nobody listens any more."""
        # The service may have gone while a build was on its way to its end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._take, line)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is GeneratorExit:
            return  # Dropped with its loop, which never turns again.
        # What was heard before is on its way.
        await asyncio.sleep(0)
        self._left.set()
        if self._writing is not None:
            # Not awaited itself: whoever is cancelled here cancels no write.
            await asyncio.wait([self._writing])

    def _take(self, line: str) -> None:
        if self._left.is_set():
            return
        self._heard = True
        self._lines.append(line)
        if self._writing is None:
            self._writing = keep(self._write, f"job {self._uid}: writing what its preparation says")

    async def _write(self) -> None:
        while self._lines:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER):
                    await self._left.wait()
            lines, self._lines = self._lines, []
            try:
                await self._log.append(self._uid, self._attempt, lines)
            except OSError as failure:
                log.warning("job %d: its log cannot be written: %s", self._uid, failure)
            self._tell(lines[-1])
        self._writing = None

    def _tell(self, line: str) -> None:
        passed = _now(self._loop) - self._began
        if self._left.is_set() or passed < self._next:
            return
        while passed >= self._next:
            self._next = next(self._moments)
        message = line.strip()[:_LONGEST_TOLD]
        self._report(self._uid, PreparationAdvanced(self._attempt, message, self.took))


def _now(loop: asyncio.AbstractEventLoop) -> float:
    """Seconds on the loop's own clock, which a simulation drives."""
    return loop.time()
