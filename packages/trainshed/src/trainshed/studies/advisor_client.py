"""Runs the advisor for the service: one process per request. Numeric libraries need 30 MB of memory and can
crash their process."""

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
from trainshed.studies.port import AdvisorFailed, Curve, Proposals, StoppingVerdict, TrialData
from trainshed.studies.stopping import decide_all
from trainshed.wire.trainshed_v1.jobs import Outlook

_MAX_CONCURRENT: Final = 2
"""Maximum concurrent suggestions. A request for many points then does not delay all others."""
_TIMEOUT: Final = 600.0
"""Seconds after which a request without a response fails. A thousand suggestions take half of this time."""
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""Environment of the advisor: one thread per library. Several threads add numbers in a varying order, but
equal inputs must give equal suggestions. The CPUs are also needed by jobs."""
T = TypeVar("T")


class ProcessAdvisor:
    """Calls the algorithms and stopping rules from an event loop. Outlooks are computed one by one, in
    parallel to suggestions."""

    def __init__(self) -> None:
        self._suggesting, self._looking = asyncio.Semaphore(_MAX_CONCURRENT), asyncio.Lock()
        self._running: set[Process] = set()
        self._closed = False

    async def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        """Return the proposals of the study's algorithm (`Algorithm.suggest`). Raises AdvisorFailed if the
        advisor's process fails or does not respond in time."""
        async with self._suggesting:
            return await self._ask(SuggestCall(spec, tuple(trials), count, seed), Proposals)

    async def should_stop(
        self, spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
    ) -> tuple[StoppingVerdict, ...]:
        """Return the verdicts of the study's stopping rule, if it has one, on the trials with these numbers,
        in the same order. Each trial is compared with all other trials of `curves`, and must have a curve
        there."""
        return await asyncio.to_thread(decide_all, spec, curves, numbers)

    async def outlook(
        self, spec: StudySpec, trials: Sequence[TrialData], parameters: Sequence[str]
    ) -> Outlook:
        """Return the model's expectation of the study's objective (`gp.bandit.outlook`). Raises AdvisorFailed
        if the advisor's process fails or does not respond in time."""
        async with self._looking:
            return await self._ask(ExpectCall(spec, tuple(trials), tuple(parameters)), Outlook)

    async def close(self) -> None:
        """Kill all processes. Requests in progress fail."""
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
            raise AdvisorFailed(f"the advisor process could not be started: {failure}") from None
        self._running.add(process)
        try:
            async with asyncio.timeout(_TIMEOUT):
                output, _ = await process.communicate(msgspec.json.encode(call))
        except TimeoutError:
            raise AdvisorFailed(f"the advisor process did not respond within {_TIMEOUT:g} seconds") from None
        finally:
            _kill(process)
            await process.wait()
            self._running.discard(process)
        if process.returncode:
            status = process.returncode
            raise AdvisorFailed(
                f"the advisor process ended with status {status}; the service's log shows its last output"
            )
        return msgspec.json.decode(output, type=answer)


async def start() -> Process:
    """Start an advisor's process, which reads one request. Raises OSError if it cannot be started."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",  # A file in the working directory must not shadow a library.
        "-m",
        "trainshed.studies.advisor_process",
        str(os.getpid()),
        stdin=PIPE,
        stdout=PIPE,
        env=os.environ | _ONE_THREAD,
        # Only the service reacts to Ctrl-C on the terminal.
        start_new_session=True,
    )


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
