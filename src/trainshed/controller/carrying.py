"""What of one job is being carried out: its instructions in their order, one at a time, in one task.

An instruction that is not demanded any more is given up where that harms nothing: while environments are built,
and between two tries.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from trainshed.controller.carrier import Hands, carry_out, failed
from trainshed.core.lifecycle.demands import instructions
from trainshed.core.lifecycle.events import Instruction, PrepareRuntime, StartReplicas
from trainshed.core.lifecycle.records import Job
from trainshed.eventloop.background import begin, joined

log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds before what could not be carried out, for a reason that no port announces, is tried again."""


class Carrying:
    """`job`: the job as it is stored now. `finished`: called when nothing is left to be done for the moment."""

    def __init__(self, hands: Hands, job: Callable[[], Job], finished: Callable[[], None]) -> None:
        self._hands = hands
        self._job = job
        self._finished = finished
        self._done: set[Instruction] = set()
        self._current: Instruction | None = None
        self._changed = asyncio.Event()
        self._step: asyncio.Task[bool] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What works now, if anything does."""
        return self._task

    def look(self) -> None:
        """The stored job has changed, or is seen for the first time: begin what it demands."""
        wanted = instructions(self._job())
        self._done = {one for one in wanted if any(_includes(done, one) for done in self._done)}
        self._changed.set()
        if self._current not in wanted and isinstance(self._current, PrepareRuntime):
            assert self._step is not None
            self._step.cancel()  # nothing was started yet, so there is nothing to wait for
        if self._task is None:
            if self._next() is None:
                self._finished()
            else:
                self._task = begin(self._run(), f"job {self._job().uid}: carrying out", self._died)

    def cancel(self) -> None:
        """Stop in the middle; nothing more is begun."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        if self._step is not None:
            self._step.cancel()

    def _died(self, _: Exception) -> None:
        """Nothing of the job would be carried out any more: look again in a while."""
        self._task = None
        asyncio.get_running_loop().call_later(PAUSE, self.look)

    def _next(self) -> Instruction | None:
        if self._closed:
            return None
        return next((one for one in instructions(self._job()) if one not in self._done), None)

    async def _run(self) -> None:
        while (instruction := self._next()) is not None:
            self._current = instruction
            self._step = joined(self._do(instruction))
            done = False
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    done = await self._step
            finally:
                self._current = self._step = None
            if done:
                wanted = instructions(self._job())
                self._done.update(one for one in wanted if _includes(instruction, one))
        self._task = None
        self._finished()

    async def _do(self, instruction: Instruction) -> bool:
        """As `carry_out`, whatever goes wrong."""
        while True:
            try:
                return await carry_out(self._hands, self._job, instruction, self._pause)
            except Exception as failure:
                uid, name = self._job().uid, type(instruction).__name__
                log.exception("job %d: %s could not be carried out", uid, name)
                if isinstance(instruction, PrepareRuntime | StartReplicas):
                    failed(self._hands, uid, instruction, repr(failure), by_user=False)
                    return True
                # Nothing else would ever end the replica or give the slots back.
                if not await self._pause(PAUSE):
                    return False

    async def _pause(self, seconds: float) -> bool:
        """Wait; False if what is being done is not demanded any more."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._current in instructions(self._job()):
                    await self._changed.wait()
                    self._changed.clear()
        return self._current in instructions(self._job())


def _includes(done: Instruction, one: Instruction) -> bool:
    """Whether what was done includes the other: of a gang that was handed over, some replicas are reported sooner."""
    if isinstance(done, StartReplicas) and isinstance(one, StartReplicas):
        return done.attempt == one.attempt and set(one.waiting) <= set(done.waiting)
    return done == one
