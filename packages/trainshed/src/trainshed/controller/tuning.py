"""Reconciles tuning jobs: passes the trials' states to the state machine, and requests further trials from
the advisor.

Each request for suggestions runs in a task of its own, so that the waiting job is processed, stored and
cancelled like any other. Suggestions are kept only in memory. They follow from the stored trials, and are
requested again after a restart.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from trainshed.controller.measurements import Curves, known_metrics, of_lines, of_summaries, thin_out
from trainshed.controller.parents import ParentStores
from trainshed.core.lifecycle.events import Event, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.study.spec import Algorithm
from trainshed.core.tuning import machine, timeline
from trainshed.core.tuning.machine import Sight, Transition
from trainshed.core.tuning.records import TuningJob
from trainshed.core.tuning.trial_jobs import start_trials
from trainshed.core.works import Work
from trainshed.eventloop.background import begin as begin_task
from trainshed.store.port import Commit, LiveJob, NewWork
from trainshed.store.steps import Next, intents, last_intent
from trainshed.studies.port import AdvisorFailed, Proposals, TrialData, trial_data
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_MAX_FAILURES = 3
"""Maximum number of successive failed requests for suggestions. After these failures, trials are drawn at
random, so that no job waits forever for an algorithm that fails each time."""
_RETRY_INTERVAL = 1.0
"""Seconds before a failed request for suggestions is repeated. The pause doubles each time."""
_MAX_RETRY_INTERVAL = 60.0


class TuningReconciler:
    """The reconciler for tuning jobs (`controller.parents.Reconciler`). `wake`: wakes a job."""

    def __init__(self, stores: ParentStores, wake: Callable[[JobUid], None]) -> None:
        self._stores = stores
        self._curves = Curves(stores.studies)
        self._wake = wake
        #: Running requests for the next trials, at most one per job, until the job has used the result.
        self._asking: dict[JobUid, asyncio.Task[tuple[Proposals, str | None]]] = {}

    def close(self) -> None:
        """Stop all requests for suggestions."""
        for asking in self._asking.values():
            asking.cancel()

    async def reconcile(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        job = live.job
        assert isinstance(job, TuningJob)
        transition = Transition(job, self._stores.now())
        sights = [await self._sight(job, trial.number) for trial in job.running]
        machine.observe(transition, sights)
        for cancel_request in intents(live, events):
            machine.cancel(transition, cancel_request)
        await self._stop_early(transition, sights)
        begun = await self._start_trials(transition)
        step = transition.step()
        if step.job.state.is_final:
            self._curves.forget(job.uid)
        commit = None
        if step.job != job or live.intents or transition.measurements or transition.trials:
            commit = Commit(
                step.job,
                live.generation,
                step.timeline,
                last_intent(live),
                trials=tuple(transition.trials.values()),
                measurements=tuple(transition.measurements),
                made=tuple(NewWork(made, (entry,)) for made, entry in begun),
            )
        return Next(step.job, commit, machine.to_cancel(step.job), machine.deadlines(step.job))

    async def _sight(self, job: TuningJob, number: int) -> Sight:
        stores = self._stores
        trial = await stores.studies.trial(job.study, number)
        work = await stores.work(trial.job)
        assert work is None or isinstance(work, Job)
        # Without an attempt, the job has reported nothing. Do not check its state instead: the primary may
        # report measurements and end before all replicas run.
        if work is None or not work.attempt:
            return Sight(trial, work)
        study, is_over = job.spec.study, work.state.is_final
        reported = await asyncio.to_thread(stores.reported_measurements, trial.job, work.started)
        measured, metric, seen = reported, study.metrics[0].id, None
        # A program's own reports have priority over the output of its libraries.
        if all(measurement.value(metric) is None for measurement in measured):
            logged = await stores.logged_points(work, metric)
            if logged is not None:
                seen, points = logged
                measured = of_summaries(metric, points, work.started)
        if is_over and not any(measurement.value(metric) is not None for measurement in measured):
            lines = await stores.printed_lines(work)
            measured = await asyncio.to_thread(of_lines, metric, lines, work.started) or measured
        stored = (await stores.studies.measurements(job.study, (number,))).get(number, ())
        known = known_metrics(study, measured, stored)
        wanted = tuple(thin_out(study, known, is_over=is_over)) or stored
        tags = {tag for measurement in reported for tag, _ in measurement.metrics}
        return Sight(trial, work, wanted, stored, tuple(sorted(tags)), seen)

    async def _stop_early(self, transition: Transition, sights: Sequence[Sight]) -> None:
        """Apply the study's stopping rule to the trials with new measurements. When a trial has ended, apply
        the rule to all trials with measurements, because they are compared with it and may report nothing
        more."""
        job = transition.job
        one_is_over = any(transition.running(sight.trial.number) is None for sight in sights)
        due = [sight for sight in sights if sight.new_measurements or (one_is_over and sight.measurements)]
        if job.spec.study.median_stopping is None or job.outcome is not None or not due:
            return
        fresh = [sight for sight in due if transition.running(sight.trial.number) is not None]
        numbers = [sight.trial.number for sight in fresh]
        if not numbers:
            return
        curves = await self._curves.current_curves(transition, sights)
        verdicts = await self._stores.advisor.should_stop(job.spec.study, curves, numbers)
        for sight, verdict in zip(fresh, verdicts, strict=True):
            if verdict.should_stop:
                machine.stop_trial(transition, sight.trial, verdict.why)

    async def _start_trials(self, transition: Transition) -> tuple[tuple[Job, TimelineEntry], ...]:
        """Start the next trials, if suggestions for them exist. If not, request suggestions, and store other
        changes in the meantime."""
        job, count = transition.job, machine.startable_trials(transition.job)
        asking = self._asking.get(job.uid)
        if count == 0:
            if asking is not None and (job.outcome is not None or job.state.is_final):
                asking.cancel()
                del self._asking[job.uid]
            return ()
        if asking is None or asking.cancelled():
            history = await self._stores.studies.history((*job.spec.resumed, job.study))
            trials = {trial.number: trial for trial in (*history, *transition.trials.values())}
            shown = tuple(trial_data(trials[number]) for number in sorted(trials))
            self._asking[job.uid] = begin_task(self._suggest(job, shown, count), f"job {job.uid}: suggesting")
            return ()
        if not asking.done():
            return ()
        del self._asking[job.uid]
        proposals, drawn = asking.result()
        if drawn:
            transition.record(timeline.random_suggestions(count, drawn, transition.now))
        pairs = [(point, self._stores.new_uid()) for point in proposals.parameters[:count]]
        exhausted = proposals.exhausted and len(pairs) < count
        begun = start_trials(transition, pairs, exhausted=exhausted)
        if machine.startable_trials(transition.job):
            self._wake(job.uid)  # Request suggestions for further trials that can start now.
        return begun

    async def _suggest(
        self, job: TuningJob, shown: tuple[TrialData, ...], count: int
    ) -> tuple[Proposals, str | None]:
        """Return the points that the advisor suggests. If it drew them at random instead of by the study's
        algorithm, also return the reason. Wake the job afterwards."""
        spec, failures, drawn, pause = job.spec.study, 0, None, _RETRY_INTERVAL
        while True:
            try:
                proposals = await self._stores.advisor.suggest(spec, shown, count, job.uid)
                self._wake(job.uid)
                return proposals, drawn
            except Exception as failure:
                # All exceptions are caught, because an algorithm may fail in any way, and a job must not wait
                # forever.
                is_told = isinstance(failure, AdvisorFailed)
                text = "no suggestion: %s; retrying in %g s"
                trace = None if is_told else failure
                about(log, job.uid).warning(text, failure, pause, exc_info=trace)
                failures += 1
                if failures >= _MAX_FAILURES:
                    drawn = drawn or str(failure) or repr(failure)
                    spec = replace(spec, algorithm=Algorithm.RANDOM_SEARCH)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_INTERVAL)
