"""Reconciles tuning jobs: shows the machine what their trials did, asks the advisor for further ones.

Suggestions are asked for in tasks of their own, so that a job that waits for one is looked at, stored and
cancelled like any other. Answers are only kept in memory: they follow from the stored trials, and are asked
for again after a restart.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainshed.controller.measurements import Curves, known_metrics, of_lines, of_summaries, thinned
from trainshed.controller.parents import Next, ParentStores, consumed, intents
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.study.records import Trial
from trainshed.core.study.spec import Algorithm
from trainshed.core.tuning import machine, timeline
from trainshed.core.tuning.machine import Sight
from trainshed.core.tuning.records import TuningJob
from trainshed.core.tuning.transition import Transition
from trainshed.core.tuning.trial_jobs import BegunTrial, begin
from trainshed.core.works import Work
from trainshed.eventloop.background import begin as begin_task
from trainshed.store.port import Commit, LiveJob, NewWork
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.studies.port import AdvisorFailed, Proposals, Seen, seen
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_PATIENCE = 3
"""Suggestions that may fail in a row. A failure of the algorithm itself would repeat each time, so after that
trials are drawn at random, and no job waits for ever."""
_PAUSE = 1.0
"""Seconds before a suggestion that failed is asked for again, doubled each time."""
_LONGEST_PAUSE = 60.0


class TuningReconciler:
    """The `controller.parents.Reconciler` for tuning jobs. `wake`: has a job looked at again."""

    def __init__(self, stores: ParentStores, wake: Callable[[JobUid], None]) -> None:
        self._stores = stores
        self._curves = Curves(stores.studies)
        self._wake = wake
        self._proposals = TrialProposals(stores.advisor, wake)

    def close(self) -> None:
        """Ask for nothing more."""
        self._proposals.close()

    async def reconcile(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        job = live.job
        assert isinstance(job, TuningJob)
        transition = Transition(job, self._stores.now())
        sights = [await self._sight(job, trial.number) for trial in job.running]
        machine.observe(transition, sights)
        for cancel_request in intents(live, events):
            machine.cancel(transition, cancel_request)
        await self._stop_early(transition, sights)
        begun = self._begin(transition, await self._history(transition))
        result = transition.result()
        if result.job.state.is_final:
            self._curves.forget(job.uid)
        commit = None
        if result.job != job or live.intents or result.measurements or result.trials:
            commit = Commit(
                result.job,
                live.generation,
                result.timeline,
                consumed(live),
                trials=result.trials,
                measurements=result.measurements,
                made=tuple(NewWork(trial.job, (trial.entry,)) for trial in begun),
            )
        return Next(
            result.job, commit, machine.to_cancel(result.job), machine.deadlines(result.job)
        )

    async def _sight(self, job: TuningJob, number: int) -> Sight:
        stores = self._stores
        trial = await stores.studies.trial(job.study, number)
        work = await stores.work(trial.job)
        assert work is None or isinstance(work, Job)
        # A primary may report, and end, before the others are up and its job has started.
        if work is None or not work.attempt:
            return Sight(trial, work)
        study, is_over = job.spec.study, work.state.is_final
        reported = await asyncio.to_thread(stores.reported, trial.job, work.started)
        measured, metric, seen = reported, study.metrics[0].id, None
        # What a program reports itself takes precedence over what its libraries write.
        if all(measurement.value(metric) is None for measurement in measured):
            logged = await stores.logged(work, metric)
            if logged is not None:
                seen, points = logged
                measured = of_summaries(metric, points, work.started)
        if is_over and not any(measurement.value(metric) is not None for measurement in measured):
            lines = await stores.printed(work)
            measured = await asyncio.to_thread(of_lines, metric, lines, work.started) or measured
        stored = (await stores.studies.measurements(job.study, (number,))).get(number, ())
        known = known_metrics(study, measured, stored)
        wanted = tuple(thinned(study, known, is_over=is_over)) or stored
        tags = {tag for measurement in reported for tag, _ in measurement.metrics}
        return Sight(trial, work, wanted, stored, tuple(sorted(tags)), seen)

    async def _stop_early(self, transition: Transition, sights: Sequence[Sight]) -> None:
        """Ask the study's stopping rule about the trials that have measured something new. As soon as one
        trial is over, ask about all that have measured anything: they are compared with it, and some will
        measure nothing more."""
        job = transition.job
        one_is_over = any(transition.running(sight.trial.number) is None for sight in sights)
        due = [sight for sight in sights if sight.news or (one_is_over and sight.measurements)]
        if job.spec.study.median_stopping is None or job.outcome is not None or not due:
            return
        fresh = [sight for sight in due if transition.running(sight.trial.number) is not None]
        numbers = [sight.trial.number for sight in fresh]
        if not numbers:
            return
        curves = await self._curves.of(transition, sights)
        verdicts = await self._stores.advisor.should_stop(job.spec.study, curves, numbers)
        for sight, verdict in zip(fresh, verdicts, strict=True):
            if verdict.should_stop:
                machine.stop_trial(transition, sight.trial, verdict.why)

    async def _history(self, transition: Transition) -> list[Trial]:
        """Return the trials that the algorithm is shown, as this transition has made them, ascending by
        number; none if it is not asked now."""
        job = transition.job
        if not machine.wanted(job) or not self._proposals.is_idle(job.uid):
            return []
        history = await self._stores.studies.history((*job.spec.resumed, job.study))
        trials = {trial.number: trial for trial in (*history, *transition.trials)}
        return [trials[number] for number in sorted(trials)]

    def _begin(self, transition: Transition, shown: Sequence[Trial]) -> tuple[BegunTrial, ...]:
        """Begin the next trials, if suggestions for them are there. If not, other changes are stored
        meanwhile."""
        count = machine.wanted(transition.job)
        if count == 0:
            if transition.job.outcome is not None or transition.job.state.is_final:
                self._proposals.forget(transition.job.uid)
            return ()
        job = transition.job
        answer = self._proposals.take(job, [seen(trial) for trial in shown], count)
        if answer is None:
            return ()
        if answer.drawn:
            transition.record(timeline.drawn(count, answer.drawn, transition.now))
        points = answer.proposals.parameters[:count]
        pairs = [(parameters, self._stores.new_uid()) for parameters in points]
        exhausted = answer.proposals.exhausted and len(pairs) < count
        begun = begin(transition, pairs, exhausted=exhausted)
        if machine.wanted(transition.job):
            self._wake(job.uid)  # By now more trials are wanted than were asked for.
        return begun


class Answer(Struct, frozen=True):
    """Points that the advisor suggests."""

    proposals: Proposals
    #: Why they were drawn at random; "" = they come from the study's own algorithm.
    drawn: str = ""


class TrialProposals:
    """Asks the advisor for the next trials, with one request per job at a time."""

    def __init__(self, advisor: ProcessAdvisor, wake: Callable[[JobUid], None]) -> None:
        """`wake`: has a job looked at, because there is an answer for it."""
        self._advisor = advisor
        self._wake = wake
        self._asking: dict[JobUid, asyncio.Task[None]] = {}
        self._answers: dict[JobUid, Answer] = {}

    def take(self, job: TuningJob, shown: Sequence[Seen], count: int) -> Answer | None:
        """Return the answer to the last request. None: a request has begun, now or before, and is not
        answered yet."""
        answer = self._answers.pop(job.uid, None)
        if answer is not None:
            return answer
        if self.is_idle(job.uid):
            self._asking[job.uid] = begin_task(
                self._ask(job, tuple(shown), count), f"job {job.uid}: suggesting"
            )
        return None

    def is_idle(self, uid: JobUid) -> bool:
        """Whether nothing is asked for the job, and no answer waits: only then does `take` use `shown`."""
        asking = self._asking.get(uid)
        return uid not in self._answers and (asking is None or asking.done())

    def forget(self, uid: JobUid) -> None:
        """Drop the request and the answer of a job that wants no further trial."""
        self._answers.pop(uid, None)
        asking = self._asking.pop(uid, None)
        if asking is not None:
            asking.cancel()

    def close(self) -> None:
        """Drop all requests."""
        for uid in tuple(self._asking):
            self.forget(uid)

    async def _ask(self, job: TuningJob, shown: tuple[Seen, ...], count: int) -> None:
        self._answers[job.uid] = await self._answer(job, shown, count)
        self._asking.pop(job.uid, None)
        self._wake(job.uid)

    async def _answer(self, job: TuningJob, shown: tuple[Seen, ...], count: int) -> Answer:
        spec, failures, drawn, pause = job.spec.study, 0, "", _PAUSE
        while True:
            try:
                suggestions = await self._advisor.suggest(spec, shown, count, job.uid)
                return Answer(suggestions, drawn)
            except Exception as failure:
                # Broad on purpose: an algorithm may fail with anything, and a job must not wait for ever.
                is_told = isinstance(failure, AdvisorFailed)
                text = "no suggestion: %s; once more in %g s"
                trace = None if is_told else failure
                about(log, job.uid).warning(text, failure, pause, exc_info=trace)
                failures += 1
                if failures >= _PATIENCE:
                    drawn = drawn or str(failure) or repr(failure)
                    spec = replace(spec, algorithm=Algorithm.RANDOM_SEARCH)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
