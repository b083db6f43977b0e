"""What reducers and workers have to say, on the timeline of their job (SPEC §7)."""

import pytest

from tests.unit.jobs import CREATED, PRIMARY, REDUCER, SECOND, WORKER, Life, job
from trainshed.core.lifecycle.events import ReplicaNoted
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import ReplicaId


def noted(
    number: int,
    text: str = "pure: 4 reducers",
    *,
    replica: ReplicaId = REDUCER,
    incarnation: int = 1,
    attempt: int = 1,
    severity: str = "INFO",
) -> ReplicaNoted:
    at = CREATED + number * SECOND
    return ReplicaNoted(attempt, replica, incarnation, number, at, "mode", severity, text)


def told(life: Life) -> list[str]:
    return [entry.message for entry in life.told if entry.kind.startswith("reduction")]


@pytest.fixture
def life() -> Life:
    return Life(job(1, 1, 1, reducers=True)).up()


def test_a_note_is_an_entry_with_who_said_it_and_how_bad_it_is(life: Life) -> None:
    life.see(noted(1), noted(2, "rank 3 is slow", replica=WORKER, severity="WARNING"))
    good, bad = life.told[-2:]
    assert (good.kind, good.at, good.message) == (
        "reduction",
        CREATED + SECOND,
        "workerpool2-0: pure: 4 reducers",
    )
    assert (bad.kind, bad.message) == ("reduction_warning", "workerpool1-0: rank 3 is slow")
    assert bad.details == {
        "attempt": 1,
        "replica": "workerpool1-0",
        "incarnation": 1,
        "note": "mode",
        "severity": "WARNING",
        "text": "rank 3 is slow",
    }
    assert life.job.state is JobState.RUNNING


def test_whoever_tells_twice_is_told_once(life: Life) -> None:
    """A service that comes back hears every note again, and goes on where it was."""
    life.see(noted(1, "a"), noted(2, "b"), noted(1, "a"), noted(2, "b"), noted(3, "c"))
    assert told(life) == [f"workerpool2-0: {text}" for text in "abc"]


def test_a_restarted_replica_says_its_own(life: Life) -> None:
    life.see(noted(1, "a"))
    life.loses(REDUCER, "its shim was killed")
    assert life.replica(REDUCER).incarnation == 2
    life.see(noted(1, "late"), noted(1, "b", incarnation=2), noted(1, "no", attempt=2))
    assert told(life) == ["workerpool2-0: a", "workerpool2-0: b"]


def test_a_job_that_is_over_is_told_nothing_more(life: Life) -> None:
    life.exits(PRIMARY).exits(WORKER).exits(REDUCER)
    assert life.job.state.is_final
    assert told(life.see(noted(1))) == []
