"""Reconciles tuning jobs: shows the machine what their trials did, asks the advisor for further ones."""

import asyncio
import logging
from collections.abc import Sequence

from trainshed.controller.parents import Doors, Next, consumed, intents
from trainshed.core.lifecycle.events import Event
from trainshed.core.lifecycle.records import Job
from trainshed.core.study.limits import limit_reached
from trainshed.core.study.spec import ConvexStopping
from trainshed.core.study.trials import Measurement, Trial, TrialState
from trainshed.core.tuning import machine
from trainshed.core.tuning.machine import BegunTrial, Sight
from trainshed.core.tuning.records import TuningJob
from trainshed.core.tuning.turn import Turn
from trainshed.core.works import Work
from trainshed.store.port import Commit, LiveJob, NewWork
from trainshed.studies.port import AdvisorFailed, Curve, EngineMissing, Seen

log = logging.getLogger(__name__)


class TuningReconciler:
    """`controller.parents.Reconciler` of tuning jobs."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors

    async def reconcile(self, live: LiveJob[Work], events: Sequence[Event]) -> Next:
        job = live.job
        assert isinstance(job, TuningJob)
        turn = Turn(job, self._doors.now())
        sights = [await self._sight(job, each.number) for each in job.running]
        machine.observe(turn, sights)
        for wish in intents(live, events):
            machine.cancel(turn, wish)
        await self._stop_early(turn, sights)
        begun = await self._begin(turn)
        result = turn.result()
        commit = None
        if result.job != job or live.intents or result.measurements or result.trials:
            commit = Commit(
                result.job,
                live.generation,
                result.timeline,
                consumed(live),
                trials=result.trials,
                measurements=result.measurements,
                made=tuple(NewWork(each.job, (each.entry,)) for each in begun),
            )
        return Next(
            result.job,
            commit,
            machine.to_cancel(result.job),
            machine.deadlines(result.job),
        )

    async def _sight(self, job: TuningJob, number: int) -> Sight:
        doors = self._doors
        trial = (await doors.studies.trial(job.study, number)).trial
        work = await doors.work(trial.job)
        assert work is None or isinstance(work, Job)
        if work is None or not work.started:
            return Sight(trial, work)
        measured = await asyncio.to_thread(doors.metrics.measurements, trial.job, work.started)
        wanted = tuple(_known_metrics(job, measured))
        stored = await doors.studies.measurements(job.study, (number,))
        tags: tuple[str, ...] = ()
        if work.state.is_final and not wanted:
            tags = await asyncio.to_thread(doors.metrics.tags, trial.job)
        return Sight(trial, work, wanted, stored.get(number, ()), tags)

    async def _stop_early(self, turn: Turn, sights: Sequence[Sight]) -> None:
        """Ask the study's rule about the trials that have measured something new."""
        job = turn.job
        fresh = [sight for sight in sights if set(sight.measurements) - set(sight.stored)]
        if job.spec.study.stopping is None or job.outcome is not None or not fresh:
            return
        curves = await self._curves(turn, sights)
        for sight in fresh:
            number = sight.trial.number
            if turn.running(number) is None:
                continue
            others = [curve for other, curve in curves.items() if other != number]
            try:
                verdict = await self._doors.advisor.should_stop(
                    job.spec.study, curves[number], others
                )
            except (AdvisorFailed, EngineMissing) as failure:
                log.warning(
                    "%s: whether to stop trial %d is not known: %s", job.name, number, failure
                )
                continue
            if verdict.should_stop:
                machine.stop_trial(turn, sight.trial, verdict.why)

    async def _curves(self, turn: Turn, sights: Sequence[Sight]) -> dict[int, Curve]:
        """The learning curves of all trials that have one, by number, as they are now."""
        job = turn.job
        stored = await self._doors.studies.measurements(job.study)
        seen = {sight.trial.number: sight.measurements for sight in sights if sight.measurements}
        trials = {trial.number: trial for trial in await self._doors.studies.history((job.study,))}
        trials |= {trial.number: trial for trial in turn.trials}
        return {
            number: curve_of(job.spec.study.convex_stopping, trials[number], points)
            for number, points in (stored | seen).items()
            if trials[number].state is not TrialState.INFEASIBLE
        }

    async def _begin(self, turn: Turn) -> tuple[BegunTrial, ...]:
        count = machine.wanted(turn.job)
        if count == 0:
            return ()
        job = turn.job
        history = await self._doors.studies.history((*job.spec.resumed, job.study))
        trials = {trial.number: trial for trial in (*history, *turn.trials)}
        own = [trial for number, trial in sorted(trials.items()) if number >= job.spec.first_trial]
        if reached := limit_reached(job.spec.study, own, job.created, turn.now):
            running = [trials[each.number] for each in job.running]
            machine.reach_limit(turn, reached, running)
            return ()
        if job.spec.study.limits.max_trials is not None:
            count = min(count, max(1, job.spec.study.limits.max_trials - len(own)))
        shown = [seen(trials[number]) for number in sorted(trials)]
        try:
            found = await self._doors.advisor.suggest(job.spec.study, shown, count, job.uid)
        except EngineMissing as failure:
            machine.fail(turn, "The tuning engine of this service is not installed.", str(failure))
            return ()
        pairs = [(parameters, self._doors.new_uid()) for parameters in found.parameters[:count]]
        exhausted = found.exhausted and len(pairs) < count
        return machine.begin(turn, pairs, exhausted=exhausted)


def seen(trial: Trial) -> Seen:
    """A trial as algorithms are shown it."""
    return Seen(trial.number, trial.state, trial.parameters, trial.final)


def curve_of(convex: ConvexStopping | None, trial: Trial, points: tuple[Measurement, ...]) -> Curve:
    """A trial's learning curve as stopping rules are shown it."""
    rate = dict(trial.parameters).get(convex.learning_rate) if convex else None
    return Curve(
        trial.number,
        points,
        trial.state.is_over,
        rate if isinstance(rate, float) else None,
    )


def _known_metrics(job: TuningJob, measured: Sequence[Measurement]) -> list[Measurement]:
    """Only what the study asks for: a program may report whatever else it likes."""
    known = {metric.id for metric in job.spec.study.metrics}
    found: list[Measurement] = []
    for one in measured:
        metrics = tuple(pair for pair in one.metrics if pair[0] in known)
        if metrics:
            found.append(Measurement(metrics, one.step, one.elapsed))
    return found
