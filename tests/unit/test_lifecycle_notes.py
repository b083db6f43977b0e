"""What reducers and workers have to say, on the timeline of their job (spec/reduction#reports). An attempt's
environments on the job's timeline (spec/operations#why-it-waits: it says at every moment why a job waits)."""

import pytest

from tests.unit.jobs import CREATED, PRIMARY, REDUCER, SECOND, WORKER, Life, job
from trainshed.core.lifecycle.events import (
    JobAdmitted,
    PauseOver,
    PreparationAdvanced,
    RuntimePrepared,
)
from trainshed.core.lifecycle.machine import deadlines
from trainshed.core.lifecycle.notes import GATHER
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import ReplicaId


def noted(
    number: int,
    text: str = "pure: 4 reducers",
    *,
    name: str = "mode",
    replica: ReplicaId = REDUCER,
    incarnation: int = 1,
    attempt: int = 1,
    severity: str = "INFO",
) -> ReplicaNoted:
    at = CREATED + number * SECOND
    return ReplicaNoted(attempt, replica, incarnation, number, at, name, severity, text)


def told(life: Life) -> list[str]:
    return [entry.message for entry in life.told if entry.kind.startswith("reduction")]


@pytest.fixture
def life() -> Life:
    return Life(job(1, 1, 1, reducers=True)).up()


def test_a_restarted_replica_says_its_own(life: Life) -> None:
    life.see(noted(1, "a"))
    life.loses(REDUCER, "its shim was killed")
    assert life.replica(REDUCER).incarnation == 2
    life.see(noted(1, "late"), noted(1, "b", incarnation=2), noted(1, "no", attempt=2)).up()
    assert told(life) == ["workerpool2-0: a", "workerpool2-0: b"]


def test_what_several_say_alike_at_one_time_is_one_entry() -> None:
    """spec/reduction#losses: reducers come together and say the same; who else speaks has an entry of its
    own, and nothing is lost when the job ends in between."""
    life = Life(job(1, 1, 3, reducers=True)).up()
    reducers = [ReplicaId(2, index) for index in range(3)]
    life.see(*(noted(1, "serving", replica=reducer) for reducer in reducers))
    first = life.now - 2 * SECOND
    life.see(noted(1, "pure", replica=PRIMARY), noted(2, "late", severity="WARNING"))
    assert told(life) == []
    (due,) = [reducer for reducer in deadlines(life.job) if isinstance(reducer.event, PauseOver)]
    assert due.at == first + GATHER
    life.see(due.event)
    assert told(life) == ["3 reducers: serving", "workerpool0-0: pure", "workerpool2-0: late"]
    entry = next(reducer for reducer in life.told if reducer.kind == "reduction")
    assert entry.details["replicas"] == {str(reducer): 1 for reducer in reducers}
    life.see(noted(3, "last"), noted(1, "last", replica=WORKER)).exits(PRIMARY)
    assert told(life)[3:] == ["workerpool2-0 and 1 other: last"]


def test_files_that_went_to_no_bucket_are_told_together(life: Life) -> None:
    """Replicas of a gang have the same to say."""
    refused = [
        ReplicaNoted(1, replica, 1, 1, CREATED, "storage_written_here", "WARNING", "it is refused")
        for replica in (PRIMARY, WORKER)
    ]
    life.see(*refused).see(PauseOver(life.now + GATHER))
    entry = life.told[-1]
    assert entry.kind == "storage_warning"
    assert entry.message == "workerpool0-0 and 1 other: it is refused"


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
