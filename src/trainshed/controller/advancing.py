"""From a stored job and what happened to the job as it is to be stored next: the machine's steps and the scheduler's
decisions, in the order in which they may be told. Writes nothing; what concerns other jobs is reported to them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from trainshed.controller.carrier import preparation, ready
from trainshed.controller.room import Room
from trainshed.controller.sightings import event_of_decision
from trainshed.core.lifecycle.events import Event, NodeLeft, RuntimePrepared, TimelineEntry
from trainshed.core.lifecycle.giving_up import give_up
from trainshed.core.lifecycle.machine import step
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState
from trainshed.core.lifecycle.turn import FailurePolicy
from trainshed.core.names import JobUid
from trainshed.runtimes.port import Runtimes
from trainshed.store.port import LiveJob

log = logging.getLogger(__name__)

_LONGEST = 24 * 3600.0
"""Seconds; a later moment is looked at again then, so that a changed clock is noticed."""
_CROWD = 100
"""Up to so many waiting jobs are told on their timelines why they wait."""


class Advancing:
    """`stored`: a live job as it was stored last. `report`: gives an event to the job that it is about."""

    def __init__(
        self,
        *,
        room: Room,
        runtimes: Runtimes,
        now: Callable[[], int],
        failures: FailurePolicy,
        stored: Callable[[JobUid], Job | None],
        report: Callable[[JobUid, Event], None],
    ) -> None:
        self._room = room
        self._runtimes = runtimes
        self._now = now
        self._failures = failures
        self._stored = stored
        self._report = report
        self._look_again: asyncio.TimerHandle | None = None
        self._closing = False

    def advance(
        self, live: LiveJob[Job], events: Sequence[Event]
    ) -> tuple[Job, tuple[TimelineEntry, ...]]:
        """The job after its intents and these events, and what is told of it."""
        job, told = live.job, list[TimelineEntry]()
        current = (event for event in events if self._room.counts(job.uid, event))
        for event in (*(intent.event for intent in live.intents), *current):
            job = self._fold(job, event, told)
        for node in sorted({r.node for r in job.replicas if r.node and not r.leaving}):
            if job.is_placed and (news := self._room.unfit(node)) is not None:
                job = self._fold(job, NodeLeft(node, news.cause), told)
        job = self._take_room(job, told)
        if job.phase is AttemptState.PREPARING:
            job = self._prepare(live.job, job, told)
        if live.generation == 1 and job.attempt == 0 and not told and job.outcome is None:
            self._tell_why(job, told)
        return job, tuple(told)

    def decide(self) -> None:
        """Have the scheduler look at what changed. Whoever calls goes on, whatever becomes of it."""
        if self._closing:
            return
        try:
            for uid, event in self._decisions():
                self._report(uid, event)
        except Exception:
            log.exception("the scheduler failed; it is asked again at the next change")

    def decide_at(self, at: int) -> None:
        """The passing of time alone may let a job start at `at` (ns)."""
        if self._look_again is not None:
            self._look_again.cancel()
        delay = max(at - self._now(), 0) / 1e9
        loop = asyncio.get_running_loop()
        self._look_again = loop.call_later(min(delay, _LONGEST), self._time_passed)

    def close(self) -> None:
        """Decide nothing more."""
        self._closing = True
        if self._look_again is not None:
            self._look_again.cancel()

    def _time_passed(self) -> None:
        self._room.time_passed()
        self.decide()

    def _fold(self, job: Job, event: Event, told: list[TimelineEntry]) -> Job:
        try:
            outcome = step(job, event, self._now(), self._failures)
        except Exception as failure:  # Whatever it is, it would come again each time.
            log.exception("job %d: %r could not be applied; the job is given up", job.uid, event)
            outcome = give_up(job, event, str(failure) or repr(failure), self._now())
        told.extend(outcome.timeline)
        return outcome.job

    def _take_room(self, job: Job, told: list[TimelineEntry]) -> Job:
        """Tell the scheduler where the job stands and take what it decides about it into the same commit. Room that
        the job gives back is not given away before that is stored."""
        if job.state.is_final or self._room.gives_back(job):
            return job
        self._room.put(job)
        for uid, event in self._decisions(job):
            if uid == job.uid:
                job = self._fold(job, event, told)
            else:
                self._report(uid, event)
        return job

    def _decisions(self, current: Job | None = None) -> Iterator[tuple[JobUid, Event]]:
        """New decisions as events of the jobs that they are about. `current`: a job as it is about to be stored."""
        for decision in self._room.decide(self._now()):
            is_current = current is not None and current.uid == decision.uid
            job = current if is_current else self._stored(decision.uid)
            if (event := event_of_decision(decision, job)) is not None:
                yield decision.uid, event

    def _prepare(self, before: Job, job: Job, told: list[TimelineEntry]) -> Job:
        """A job whose runtime is there starts in the same commit."""
        if ready(self._runtimes, job):
            return self._fold(job, RuntimePrepared(job.attempt), told)
        if job.attempt != before.attempt:
            told.append(TimelineEntry(self._now(), "preparing", preparation(job)))
        return job

    def _tell_why(self, job: Job, told: list[TimelineEntry]) -> None:
        """The first entry of a job that has to wait. Not in a crowd: there it would cost every job a commit, and to be
        one of many is all that it would say; whoever asks about the job is told in any case."""
        if self._room.crowd > _CROWD:
            return
        waiting = self._room.why(job.uid, self._now())
        if waiting is not None:
            message = f"{waiting.message} {waiting.hint}".strip()
            details = {"reason": waiting.reason.value, "blockers": list(waiting.blockers)}
            told.append(TimelineEntry(self._now(), "waiting", message, details))
