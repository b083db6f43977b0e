"""What reducers and workers have to say, on the timeline of their job (spec/reduction#reports). An attempt's
environments on the job's timeline (spec/operations#why-it-waits: it says at every moment why a job waits)."""

import pytest

from tests.unit.jobs import CREATED, PRIMARY, REDUCER, SECOND, Life, job
from trainshed.core.lifecycle.events import JobAdmitted, RuntimePrepared
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


def test_files_that_went_to_no_bucket_are_a_warning(life: Life) -> None:
    text = "it is refused"
    life.see(ReplicaNoted(1, PRIMARY, 1, 1, CREATED, "storage_written_here", "WARNING", text))
    assert _said(life)[-1] == ("storage_warning", "workerpool0-0: it is refused")


PLACES = JobAdmitted(((PRIMARY, "a"),))


def _said(life: Life) -> list[tuple[str, str]]:
    return [(entry.kind, entry.message) for entry in life.told]


def test_how_long_a_build_took_is_told() -> None:
    life = Life(job(1)).see(PLACES).see(RuntimePrepared(1, 28_140_000_000))
    assert _said(life)[-1] == (
        "launching",
        "The runtime is ready after 28 s; starting all replicas.",
    )
