"""The service's side of the advisor: one process, started by a call and ended when there was no call for a
while.
"""

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from trainshed.core.study.records import Parameters, TrialState
from trainshed.core.study.spec import StudySpec
from trainshed.studies.advisor_process import HEAD, Call, ExpectCall, StopCall, SuggestCall, frame
from trainshed.studies.port import AdvisorFailed, Curve, Proposals, Seen, StoppingVerdict
from trainshed.wire.trainshed_v1.jobs import Outlook

log = logging.getLogger(__name__)

_IDLE: Final = 300.0
"""Seconds without a call after which the process is ended; a new one takes about a second to be ready."""
_TURN: Final = 4
"""Most points that are computed in one call of the process."""
_LONGEST: Final = 120.0
"""Seconds after which a call without an answer fails."""
_ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)
"""With several threads, sums are added in another order each time, but a suggestion has to be the same each
time; besides, the processors belong to the jobs."""
T = TypeVar("T")


class ProcessAdvisor:
    """Algorithms and stopping rules in a process, for callers on an event loop. Calls are answered one after
    the other; they raise AdvisorFailed."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    async def suggest(
        self, spec: StudySpec, trials: Sequence[Seen], count: int, seed: int
    ) -> Proposals:
        """Do as `Algorithm.suggest` of the algorithm that the study asks for, in short turns, so that a call
        for many points does not hold up the others: to ask for some and to ask again with these pending is
        the same (`studies.port`)."""
        shown, points = list(trials), list[Parameters]()
        while True:
            some = min(_TURN, count - len(points))
            call = SuggestCall(spec, tuple(shown), some, seed)
            proposals = await self._ask(call, Proposals)
            points += proposals.parameters
            if len(points) >= count or len(proposals.parameters) < some:
                return Proposals(tuple(points), proposals.exhausted)
            latest = max((trial.number for trial in shown), default=0)
            shown += [
                Seen(latest + ahead, TrialState.REQUESTED, parameters)
                for ahead, parameters in enumerate(proposals.parameters, start=1)
            ]

    async def should_stop(
        self, spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
    ) -> tuple[StoppingVerdict, ...]:
        """Return whether the study's rule, if it has one, wants the trials of these numbers stopped early,
        each compared with all others of `curves`. Verdicts are in the order of `numbers`; each must have a
        curve."""
        call = StopCall(spec, tuple(curves), tuple(numbers))
        return await self._ask(call, tuple[StoppingVerdict, ...])

    async def outlook(
        self, spec: StudySpec, trials: Sequence[Seen], parameters: Sequence[str]
    ) -> Outlook:
        """Return what the study's model expects (`gp.bandit.outlook`). Those who only look wait for each
        other: suggestions wait for one of them at most."""
        async with self._looking:
            return await self._ask(ExpectCall(spec, tuple(trials), tuple(parameters)), Outlook)

    async def close(self) -> None:
        """End the process; calls under way fail."""
        self._closed = True
        await self._end()

    async def _ask(self, call: Call, answer: type[T]) -> T:
        message = frame(call)
        async with self._turn:
            if self._idle is not None:
                self._idle.cancel()
            try:
                async with asyncio.timeout(_LONGEST):
                    return msgspec.json.decode(await self._answered(message), type=answer)
            except _Told as told:
                raise AdvisorFailed(str(told)) from None
            except BaseException as failure:
                # Half an exchange leaves the stream in an unknown state.
                await self._end()
                if isinstance(failure, Exception):
                    raise _failed(failure) from failure
                raise
            finally:
                loop = asyncio.get_running_loop()
                self._idle = loop.call_later(_IDLE, self._dismiss)

    async def _answered(self, message: bytes) -> bytes:
        """Ask the process; if it has ended, before or during this call, ask a new one, but only once, since a
        computation that kills its process would kill each."""
        try:
            return await self._exchange(message)
        except _Ended:
            log.warning("the advisor's process has ended; asking a new one")
        await self._end()
        return await self._exchange(message)

    async def _exchange(self, message: bytes) -> bytes:
        """Send a message and return the answer. Raises _Ended, _Told."""
        process = self._process = self._process or await self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.returncode is not None or process.stdin.is_closing():
                raise _Ended
            process.stdin.write(message)
            await process.stdin.drain()
            failed, length = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
            body = await process.stdout.readexactly(length)
        except (EOFError, OSError, RuntimeError) as failure:
            # uvloop raises RuntimeError for a pipe whose other end has been closed since.
            raise _Ended from failure
        if failed:
            raise _Told(msgspec.json.decode(body, type=str))
        return body

    async def _start(self) -> Process:
        if self._closed:
            raise AdvisorFailed("the service is stopping")
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # A file in the working directory must not take the place of a library.
            "-m",
            "trainshed.studies.advisor_process",
            str(os.getpid()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | _ONE_THREAD,
            start_new_session=True,
        )

    def _dismiss(self) -> None:
        """End the process by closing its input."""
        if self._process is not None and self._process.stdin is not None:
            process, self._process = self._process, None
            assert process.stdin is not None
            process.stdin.close()

    async def _end(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class _Told(Exception):
    """The process reported that the call failed; the process goes on."""


class _Ended(Exception):
    """The process has ended without an answer."""


def _failed(failure: Exception) -> AdvisorFailed:
    """Return the error for an exchange that failed: whatever the cause, the caller gets an answer."""
    match failure:
        case AdvisorFailed():
            return failure
        case TimeoutError():
            return AdvisorFailed(f"it had no answer within {_LONGEST:g} seconds")
        case _Ended():
            return AdvisorFailed("its process ended, twice; its last words are in the log")
        case OSError():
            return AdvisorFailed(f"its process could not be started: {failure}")
        case msgspec.DecodeError():
            return AdvisorFailed(f"its answer makes no sense: {failure}")
        case _:
            return AdvisorFailed(f"it could not be asked: {failure!r}")
