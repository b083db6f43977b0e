"""Every way through a small tuning job keeps its record true."""

from collections.abc import Iterator
from dataclasses import replace

from tests.sim.tuning_jobs import tuning
from tests.sim.tuning_play import Play
from trainshed.core.lifecycle.events import CancelCause
from trainshed.core.lifecycle.states import JobState
from trainshed.core.tuning.records import TuningJob

S = JobState


def test_every_way_through_two_small_jobs_keeps_the_record_true() -> None:
    """Exhaustive: two trials at once, and three one after the other; each job of a trial may come to any
    state, measure, or be deleted; cancels, early stops and the service's own failure may come at any time."""
    for trials, parallel, failed in ((2, 2, 0), (3, 1, 2)):
        assert _walk(tuning(trials=trials, parallel=parallel, failed=failed)) > 1_000


def _walk(first: TuningJob) -> int:
    """All states that can be reached, each checked; how many they are."""
    states = {_key(start := Play(first).look()): start}
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
    assert not stuck, "it is not over, and nothing of it runs"
    return len(states)


def _key(subject: Play) -> object:
    """Two plays with the same key go on alike: neither times decide anything, nor how a trial that is over
    came to it."""
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
                len(subject.measured.get(trial.number, ())),
                len(subject.stored.get(trial.number, ())),
            )
            for trial, made in running
        ),
    )


def _after(subject: Play) -> Iterator[Play]:
    """Everything that may happen next."""
    yield _copy(subject).look(cancel=CancelCause.USER)
    if subject.job.state.is_final:
        return
    yield _copy(subject).look()
    yield _copy(subject).look(broken=True)
    for trial in subject.job.running:
        number, job = trial.number, subject.jobs[trial.number]
        if job is None:
            continue
        if job.state.is_final:
            yield _copy(subject).is_deleted(number)
            continue
        if not subject.measured.get(number):
            yield _copy(subject).reports(number, number / 10)
        if job.started and not trial.stopping:
            yield _copy(subject).look(stop=(number,))
        for state in (S.RUNNING, S.SUCCEEDED, S.FAILED, S.CANCELLED):
            if state is not job.state:
                yield _copy(subject).becomes(number, state)


def _copy(subject: Play) -> Play:
    return replace(
        subject,
        trials=dict(subject.trials),
        jobs=dict(subject.jobs),
        measured=dict(subject.measured),
        stored=dict(subject.stored),
        told=[],
    )
