"""What tuning jobs are to try next: asked of the advisor beside everything else that happens to them.

A job that waits for a suggestion is looked at, stored and cancelled meanwhile like any other. Answers live in memory
alone: they follow from the stored trials, and after a restart they are asked for again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trainshed.core.names import JobUid
from trainshed.core.study.spec import Algorithm
from trainshed.core.tuning.records import TuningJob
from trainshed.eventloop.background import begin
from trainshed.studies.port import Advisor, AdvisorFailed, EngineMissing, Proposals, Seen

log = logging.getLogger(__name__)

_PATIENCE = 3
"""Suggestions that may fail in a row. A failure of the algorithm itself would come each time: then trials are drawn at
random, so that no job waits for ever."""
_PAUSE = 1.0
"""Seconds before a suggestion that failed is asked for again; twice as many each time."""
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """`drawn`: why the points were drawn at random ("" = they are the study's own algorithm's)."""

    proposals: Proposals
    drawn: str = ""


@dataclass(frozen=True, slots=True)
class NoEngine:
    """The library of the engine is not installed: `why` says what to do. The next look asks again."""

    why: str


class Proposing:
    """`wake`: looks at a job, because there is an answer for it."""

    def __init__(self, advisor: Advisor, wake: Callable[[JobUid], None]) -> None:
        self._advisor = advisor
        self._wake = wake
        self._asking: dict[JobUid, asyncio.Task[None]] = {}
        self._answers: dict[JobUid, Answer | NoEngine] = {}

    def take(self, job: TuningJob, shown: Sequence[Seen], count: int) -> Answer | NoEngine | None:
        """The answer to what was asked last; None: it is asked now, or still being worked out."""
        answer = self._answers.pop(job.uid, None)
        if answer is not None:
            return answer
        if self.is_idle(job.uid):
            self._asking[job.uid] = begin(
                self._ask(job, tuple(shown), count), f"job {job.uid}: suggesting"
            )
        return None

    def is_idle(self, uid: JobUid) -> bool:
        """Whether nothing is asked for the job, and no answer waits: only then `take` looks at `shown`."""
        asking = self._asking.get(uid)
        return uid not in self._answers and (asking is None or asking.done())

    def forget(self, uid: JobUid) -> None:
        """The job wants no further trial."""
        self._answers.pop(uid, None)
        asking = self._asking.pop(uid, None)
        if asking is not None:
            asking.cancel()

    def close(self) -> None:
        """Ask nothing more."""
        for uid in tuple(self._asking):
            self.forget(uid)

    async def _ask(self, job: TuningJob, shown: tuple[Seen, ...], count: int) -> None:
        self._answers[job.uid] = await self._answer(job, shown, count)
        self._asking.pop(job.uid, None)
        self._wake(job.uid)

    async def _answer(
        self, job: TuningJob, shown: tuple[Seen, ...], count: int
    ) -> Answer | NoEngine:
        spec, failures, drawn, pause = job.spec.study, 0, "", _PAUSE
        while True:
            try:
                found = await self._advisor.suggest(spec, shown, count, job.uid)
                return Answer(found, drawn)
            except EngineMissing as missing:
                return NoEngine(str(missing))
            except Exception as failure:
                is_told = isinstance(failure, AdvisorFailed)
                text = "job %d: no suggestion: %s; once more in %g s"
                log.warning(text, job.uid, failure, pause, exc_info=None if is_told else failure)
                failures += 1
                if failures >= _PATIENCE:
                    drawn = drawn or str(failure) or repr(failure)
                    spec = replace(spec, algorithm=Algorithm.RANDOM_SEARCH)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
