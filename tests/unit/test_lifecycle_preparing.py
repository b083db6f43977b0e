"""An attempt's environments on the job's timeline (spec/operations#why-it-waits: it says at every moment why
a job waits)."""

from tests.unit.jobs import PRIMARY, SECOND, Life, job
from trainshed.core.lifecycle.events import (
    CancelCause,
    CancelRequested,
    JobAdmitted,
    PreparationAdvanced,
    RuntimePrepared,
)
from trainshed.core.lifecycle.states import AttemptState, JobState

PLACES = JobAdmitted(((PRIMARY, "a"),))


def _said(life: Life) -> list[tuple[str, str]]:
    return [(entry.kind, entry.message) for entry in life.told]


def test_what_is_built_is_told_until_it_is_there_and_how_long_it_took() -> None:
    life = Life(job(1)).see(PLACES)
    before = life.job
    life.see(PreparationAdvanced(1, "Downloading torch (180MiB)", 12 * SECOND))
    assert life.job == before
    assert _said(life)[-1] == ("building", "After 12 s: Downloading torch (180MiB)")
    life.see(RuntimePrepared(1, 28_140_000_000))
    assert _said(life)[-1] == (
        "launching",
        "The runtime is ready after 28 s; starting all replicas.",
    )


def test_what_was_there_before_is_told_without_a_time() -> None:
    life = Life(job(1)).see(PLACES, RuntimePrepared(1))
    assert _said(life)[-1] == ("launching", "The runtime is ready; starting all replicas.")


def test_news_that_come_late_or_of_another_attempt_are_passed_over() -> None:
    life = Life(job(1)).see(PLACES)
    count = len(life.told)
    life.see(PreparationAdvanced(2, "of no attempt yet", 1), PreparationAdvanced(0, "old", 1))
    assert len(life.told) == count
    life.see(RuntimePrepared(1))
    assert life.job.phase is AttemptState.STARTING
    count = len(life.told)
    life.see(PreparationAdvanced(1, "late", SECOND))
    assert len(life.told) == count
    life.see(CancelRequested(CancelCause.USER, life.now))
    assert life.job.state is JobState.CANCELLING
