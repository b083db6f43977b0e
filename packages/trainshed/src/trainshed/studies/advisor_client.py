"""The service's side of the advisor: a process for each question, because numeric libraries take 30 MB and
can crash their process."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from trainshed.core.study.spec import StudySpec
from trainshed.studies.advisor_process import Call, ExpectCall, SuggestCall
from trainshed.studies.port import AdvisorFailed, Curve, Proposals, Seen, StoppingVerdict
from trainshed.studies.stopping import decide_all
from trainshed.wire.trainshed_v1.jobs import Outlook

_MAX_CONCURRENT: Final = 2
"""Suggestions that are computed at once: one for many points does not hold up the others."""
_TIMEOUT: Final = 600.0
"""Seconds after which a call without an answer fails; a thousand suggestions take half of that."""
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""With several threads, sums are added in another order each time, but a suggestion has to be the same each
time; besides, the processors belong to the jobs."""
T = TypeVar("T")


class ProcessAdvisor:
    """Algorithms and stopping rules, for callers on an event loop. Outlooks are computed one after the other,
    beside suggestions."""

    def __init__(self) -> None:
        self._suggesting, self._looking = asyncio.Semaphore(_MAX_CONCURRENT), asyncio.Lock()
        self._running: set[Process] = set()
        self._closed = False

    async def suggest(
        self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int
    ) -> Proposals:
        """Do as `Algorithm.suggest` of the algorithm that the study asks for. Raises AdvisorFailed."""
        async with self._suggesting:
            return await self._ask(SuggestCall(spec, tuple(trials), count, seed), Proposals)

    async def should_stop(
        self, spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
    ) -> tuple[StoppingVerdict, ...]:
        """Return whether the study's rule, if it has one, wants the trials of these numbers stopped early,
        each compared with all others of `curves`. Verdicts are in the order of `numbers`; each must have a
        curve."""
        return await asyncio.to_thread(decide_all, spec, curves, numbers)

    async def outlook(
        self, spec: StudySpec, trials: Sequence[Seen], parameters: Sequence[str]
    ) -> Outlook:
        """Return what the study's model expects (`gp.bandit.outlook`). Raises AdvisorFailed."""
        async with self._looking:
            return await self._ask(ExpectCall(spec, tuple(trials), tuple(parameters)), Outlook)

    async def close(self) -> None:
        """End all processes; calls under way fail."""
        self._closed = True
        for process in self._running:
            _kill(process)
        await asyncio.gather(*(process.wait() for process in self._running))

    async def _ask(self, call: Call, answer: type[T]) -> T:
        if self._closed:
            raise AdvisorFailed("the service is stopping")
        try:
            process = await start()
        except OSError as failure:
            raise AdvisorFailed(f"its process could not be started: {failure}") from None
        self._running.add(process)
        try:
            async with asyncio.timeout(_TIMEOUT):
                output, _ = await process.communicate(msgspec.json.encode(call))
        except TimeoutError:
            raise AdvisorFailed(f"it did not respond within {_TIMEOUT:g} seconds") from None
        finally:
            _kill(process)
            await process.wait()
            self._running.discard(process)
        if process.returncode:
            status = process.returncode
            raise AdvisorFailed(
                f"its process ended with status {status}; the log shows its last output"
            )
        return msgspec.json.decode(output, type=answer)


async def start() -> Process:
    """Start a process that reads a call. Raises OSError."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # A file in the working directory must not take the place of a library.
        "-m",
        "trainshed.studies.advisor_process",
        str(os.getpid()),
        stdin=PIPE,
        stdout=PIPE,
        env=os.environ | _ONE_THREAD,
        # Ctrl-C at the terminal is the service's to take.
        start_new_session=True,
    )


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
