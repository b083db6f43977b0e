"""Model check: the record of a tuning job is consistent after all, or random, sequences of events."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.sim.tuning_jobs import study_spec, tuning
from tests.sim.tuning_play import SimulatedTuning
from trainshed.core.lifecycle.events import CancelCause
from trainshed.core.lifecycle.states import JobState
from trainshed.core.study.spec import Goal, Selection
from trainshed.core.tuning.records import TuningJob

S = JobState


def test_tuning_job_and_trials_stay_consistent_for_all_event_sequences() -> None:
    """The walk covers all sequences for two parallel trials and for three sequential trials. Trial jobs can
    reach any state, report measurements, or be deleted. Cancels and early stops can arrive at any time."""
    for trials, parallel, failed in ((2, 2, 0), (3, 1, 2)):
        assert _walk(tuning(trials=trials, parallel=parallel, failed=failed)) > 800


@pytest.mark.parametrize("block", range(4))
def test_tuning_job_ends_after_random_events(block: int) -> None:
    """The job has more trials than the exhaustive walk allows. After the random events, running trials
    succeed and the job must end."""
    for seed in range(block * 100, block * 100 + 100):
        dice = random.Random(seed)
        subject = _random(dice)
        for _ in range(200):
            if subject.job.state.is_final:
                break
            for trial in subject.job.running:
                job = subject.jobs[trial.number]
                if job is not None and not job.state.is_final and dice.random() < 0.5:
                    subject.succeeds(trial.number, dice.random())
            subject.execute_cancels().run_step()
            assert not subject.wrong(), f"seed {seed}"
        assert subject.job.state.is_final, f"seed {seed}"
        over = subject.job
        subject.run_step(cancel=CancelCause.USER)
        assert subject.job == over, "a finished job has changed"


def _random(dice: random.Random) -> SimulatedTuning:
    """Return a job after many random events. It may have finished."""
    spec = study_spec(dice.choice(tuple(Goal)), dice.choice(tuple(Selection)))
    trials = dice.randint(1, 9)
    subject = SimulatedTuning(
        tuning(
            trials=trials, parallel=dice.randint(1, trials), failed=dice.choice((0, 0, trials)), spec=spec
        ),
        points=dice.choice((None, None, dice.randint(0, 9))),
    )
    for _ in range(dice.randint(0, 60)):
        for number, job in list(subject.jobs.items()):
            if job is None or job.state.is_final or dice.random() < 0.6:
                continue
            if dice.random() < 0.5:
                subject.reports(number, dice.choice((0.1, 0.5, dice.random())))
            else:
                subject.becomes(number, dice.choice(_NEXT))
        _delete_some(dice, subject)
        if dice.random() < 0.5:
            subject.execute_cancels()
        stop = tuple(r.number for r in subject.job.running if dice.random() < 0.1)
        stop = tuple(n for n in stop if (job := subject.jobs[n]) is not None and job.started)
        cancel = CancelCause.USER if dice.random() < 0.02 else None
        subject.run_step(cancel=cancel, stop=stop)
        assert not subject.wrong()
    return subject


_NEXT = (S.PREPARING, S.PREPARING, S.RUNNING, S.RUNNING, S.SUCCEEDED, S.FAILED, S.CANCELLED)


def _delete_some(dice: random.Random, subject: SimulatedTuning) -> None:
    for number, job in subject.jobs.items():
        if job is not None and job.state.is_final and dice.random() < 0.1:
            subject.is_deleted(number)


def _walk(first: TuningJob) -> int:
    """Check all reachable states, and return their number."""
    states = {_key(start := SimulatedTuning(first).run_step()): start}
    todo = [start]
    while todo:
        for after in _after(todo.pop()):
            assert not (wrong := after.wrong()), f"{wrong}: {after.kinds}"
            key = _key(after)
            if key not in states:
                states[key] = after
                todo.append(after)
    ends = {subject.job.state for subject in states.values() if subject.job.state.is_final}
    assert ends == {S.SUCCEEDED, S.FAILED, S.CANCELLED}
    stuck = [s for s in states.values() if not s.job.state.is_final and not s.job.running]
    assert not stuck, "the job has not finished, but no trial runs"
    return len(states)


def _key(subject: SimulatedTuning) -> object:
    """Return the key of a play. Plays with equal keys have the same future.

    The key excludes times and the history of finished trials.
    """
    job = subject.job
    running = [(trial, subject.jobs[trial.number]) for trial in job.running]
    return (
        job.state,
        job.next_trial,
        job.outcome.state if job.outcome else None,
        (job.succeeded, job.infeasible, job.failed, job.best),
        tuple(
            (
                trial,
                made and (made.state, bool(made.started)),
                subject.trials[trial.number].state,
                len(subject.measurements.get(trial.number, ())),
                len(subject.stored_measurements.get(trial.number, ())),
            )
            for trial, made in running
        ),
    )


def _after(subject: SimulatedTuning) -> Iterator[SimulatedTuning]:
    """Yield the play after each possible next event."""
    yield _copy(subject).run_step(cancel=CancelCause.USER)
    if subject.job.state.is_final:
        return
    yield _copy(subject).run_step()
    for trial in subject.job.running:
        number, job = trial.number, subject.jobs[trial.number]
        if job is None:
            continue
        if job.state.is_final:
            yield _copy(subject).is_deleted(number)
            continue
        if not subject.measurements.get(number):
            yield _copy(subject).reports(number, number / 10)
        if job.started and not trial.stopping:
            yield _copy(subject).run_step(stop=(number,))
        for state in (S.RUNNING, S.SUCCEEDED, S.FAILED, S.CANCELLED):
            if state is not job.state:
                yield _copy(subject).becomes(number, state)


def _copy(subject: SimulatedTuning) -> SimulatedTuning:
    return replace(
        subject,
        trials=dict(subject.trials),
        jobs=dict(subject.jobs),
        measurements=dict(subject.measurements),
        stored_measurements=dict(subject.stored_measurements),
        timeline=[],
    )
