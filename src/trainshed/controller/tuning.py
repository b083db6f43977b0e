"""Reconciles tuning jobs: shows the machine what their trials did, asks the advisor for further ones.

A suggestion is asked for in a task of its own, so that a job which waits for one is looked at, stored and
cancelled like any other. Answers live in memory alone: they follow from the stored trials, and after a
restart they are asked for again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainshed.controller.measurements import Curves, known_metrics, of_summaries, thinned
from trainshed.controller.parents import Next, ParentStores, consumed, intents
from trainshed.controller.trial_summaries import TrialSummaries
from trainshed.core.lifecycle.events import Event, LimitNears
from trainshed.core.lifecycle.machine import Deadline
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.study.progress import limit_reached, moments
from trainshed.core.study.records import Trial
from trainshed.core.study.spec import Algorithm, Limits
from trainshed.core.tuning import machine, timeline
from trainshed.core.tuning.machine import Sight
from trainshed.core.tuning.records import SeenSummaries, TuningJob
from trainshed.core.tuning.transition import Transition
from trainshed.core.tuning.trial_jobs import BegunTrial, begin
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.eventloop.background import begin as begin_task
from trainshed.store.port import Commit, LiveJob, NewWork
from trainshed.studies.port import Advisor, AdvisorFailed, EngineMissing, Proposals, Seen
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_PATIENCE = 3
"""Suggestions that may fail in a row. A failure of the algorithm itself would come each time: then trials are
drawn at random, so that no job waits for ever."""
_PAUSE = 1.0
"""Seconds before a suggestion that failed is asked for again; twice as many each time."""
_LONGEST_PAUSE = 60.0


class TuningReconciler:
    """`controller.parents.Reconciler` of tuning jobs. `wake`: looks at a job again."""

    def __init__(self, stores: ParentStores, wake: Callable[[JobUid], None]) -> None:
        self._stores = stores
        self._curves = Curves(stores.studies)
        self._wake = wake
        self._proposals = TrialProposals(stores.advisor, wake)
        self._summaries = TrialSummaries(stores.summaries, stores.now, wake)

    def close(self) -> None:
        """Ask for nothing more."""
        self._proposals.close()
        self._summaries.close()

    async def reconcile(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        job = live.job
        assert isinstance(job, TuningJob)
        transition = Transition(job, self._stores.now())
        sights = [await self._sight(job, trial.number) for trial in job.running]
        machine.observe(transition, sights)
        for cancel_request in intents(live, events):
            machine.cancel(transition, cancel_request)
        await self._stop_early(transition, sights)
        own, shown = await self._history(transition)
        self._end_at_limit(transition, own)
        begun = self._begin(transition, own, shown)
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
            result.job,
            commit,
            machine.to_cancel(result.job),
            (*machine.deadlines(result.job), *_moments(result.job, own, transition.now)),
        )

    async def _sight(self, job: TuningJob, number: int) -> Sight:
        stores = self._stores
        trial = (await stores.studies.trial(job.study, number)).trial
        work = await stores.work(trial.job)
        assert work is None or isinstance(work, Job)
        # A primary may report, and end, before the others are up and its job has started.
        if work is None or not work.attempt:
            self._summaries.forget(trial.job)
            return Sight(trial, work)
        study, is_over = job.spec.study, work.state.is_final
        measured = await asyncio.to_thread(stores.metrics.measurements, trial.job, work.started)
        metric, summaries = study.metrics[0].id, None
        # What a program reports itself counts before what its libraries write.
        if all(one.value(metric) is None for one in measured):
            summaries = await self._summaries.of(job.uid, work, metric)
            if summaries is not None:
                measured = of_summaries(metric, summaries.points, work.started)
        stored = (await stores.studies.measurements(job.study, (number,))).get(number, ())
        known = known_metrics(study, measured, stored)
        # A program may have removed its summaries since.
        wanted = tuple(thinned(study, known, is_over=is_over)) or stored
        tags: tuple[str, ...] = ()
        if is_over and not wanted:
            tags = await asyncio.to_thread(stores.metrics.tags, trial.job)
        if is_over:
            await asyncio.to_thread(stores.metrics.forget, trial.job)
            self._summaries.forget(trial.job)
        seen = SeenSummaries(summaries.uri, summaries.tags) if summaries is not None else None
        return Sight(trial, work, wanted, stored, tags, seen)

    async def _stop_early(self, transition: Transition, sights: Sequence[Sight]) -> None:
        """Ask the study's rule about the trials that have measured something new, and as soon as one is over
        about all that have measured anything: it is what they are compared with, and some will not measure
        any more."""
        job = transition.job
        one_is_over = any(transition.running(sight.trial.number) is None for sight in sights)
        due = [sight for sight in sights if sight.news or (one_is_over and sight.measurements)]
        if job.spec.study.stopping is None or job.outcome is not None or not due:
            return
        fresh = [sight for sight in due if transition.running(sight.trial.number) is not None]
        numbers = [sight.trial.number for sight in fresh]
        if not numbers:
            return
        curves = await self._curves.of(transition, sights)
        try:
            verdicts = await self._stores.advisor.should_stop(job.spec.study, curves, numbers)
        except (AdvisorFailed, EngineMissing) as failure:
            about(log, job.uid).warning("early stopping not decided: %s", failure)
            return
        for sight, verdict in zip(fresh, verdicts, strict=True):
            if verdict.should_stop:
                machine.stop_trial(transition, sight.trial, verdict.why, verdict.predicted)
                for updated, predicted in verdict.updated:
                    stored = await self._stores.studies.trial(job.study, updated)
                    machine.update_final(transition, stored.trial, predicted)

    async def _history(self, transition: Transition) -> tuple[list[Trial], list[Trial]]:
        """The job's own trials as this transition has made them, and all that its algorithm is shown, both
        ascending by number; nothing where nobody needs them."""
        job = transition.job
        asks = machine.wanted(job) and self._proposals.is_idle(job.uid)
        if not asks and job.spec.study.limits == Limits():
            return [], []
        history = await self._stores.studies.history((*job.spec.resumed, job.study))
        trials = {trial.number: trial for trial in (*history, *transition.trials)}
        shown = [trials[number] for number in sorted(trials)]
        return [trial for trial in shown if trial.number >= job.spec.first_trial], shown

    def _end_at_limit(self, transition: Transition, own: Sequence[Trial]) -> None:
        """The study's limits of time hold also while all trials run that may run at once; how many there are
        counts only once another one is wanted, so that the last ones are not stopped as soon as they have
        begun."""
        job = transition.job
        if job.state.is_final or job.exhausted:
            return
        study = job.spec.study
        if not machine.wanted(job):
            study = replace(study, limits=replace(study.limits, max_trials=None))
        if reached := limit_reached(study, own, job.created, transition.now):
            running = {trial.number for trial in job.running}
            machine.reach_limit(transition, reached, [one for one in own if one.number in running])

    def _begin(
        self, transition: Transition, own: Sequence[Trial], shown: Sequence[Trial]
    ) -> tuple[BegunTrial, ...]:
        """The next trials, as far as it is known which. What else is new is stored meanwhile."""
        count = machine.wanted(transition.job)
        if count == 0:
            if transition.job.outcome is not None or transition.job.state.is_final:
                self._proposals.forget(transition.job.uid)
            return ()
        job = transition.job
        if job.spec.study.limits.max_trials is not None:
            count = min(count, max(1, job.spec.study.limits.max_trials - len(own)))
        answer = self._proposals.take(job, [seen(trial) for trial in shown], count)
        if isinstance(answer, NoEngine):
            if not job.waits_for_engine:
                transition.change(waits_for_engine=True)
                transition.record(timeline.waits_for_engine(answer.why, transition.now))
            return ()
        if answer is None:
            return ()
        if answer.drawn:
            transition.record(timeline.drawn(count, answer.drawn, transition.now))
        transition.change(waits_for_engine=False)
        points = answer.proposals.parameters[:count]
        pairs = [(parameters, self._stores.new_uid()) for parameters in points]
        exhausted = answer.proposals.exhausted and len(pairs) < count
        begun = begin(transition, pairs, exhausted=exhausted)
        if machine.wanted(transition.job):
            self._wake(job.uid)  # More than were asked for are wanted by now.
        return begun


def seen(trial: Trial) -> Seen:
    """A trial as algorithms are shown it."""
    return Seen(trial.number, trial.state, trial.parameters, trial.final)


def _moments(job: TuningJob, own: Sequence[Trial], now: Nanos) -> tuple[Deadline, ...]:
    """When to look whether the study has come to a limit of time. Parents are only woken by it, whatever the
    event."""
    if job.state.is_final or job.outcome is not None or job.exhausted:
        return ()
    times = moments(job.spec.study, own, job.created)
    return tuple(Deadline(at, LimitNears(at)) for at in times if at > now)


class Answer(Struct, frozen=True):
    """Points that the advisor suggests."""

    proposals: Proposals
    #: Why they were drawn at random; "" = they are the study's own algorithm's.
    drawn: str = ""


class NoEngine(Struct, frozen=True):
    """The library of the engine is not installed. The next look asks again."""

    #: What to do about it.
    why: str


class TrialProposals:
    """Suggestions of the next trials, asked of the advisor one job's after the other."""

    def __init__(self, advisor: Advisor, wake: Callable[[JobUid], None]) -> None:
        """`wake`: looks at a job, because there is an answer for it."""
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
            self._asking[job.uid] = begin_task(
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
                # As broad as this: an algorithm may fail with anything, and a job must not wait for ever.
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
