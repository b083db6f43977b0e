"""Notes of reducers and workers on the timeline of their job (spec/reduction#reports).

The timeline also shows the preparation of runtimes (spec/operations#why-it-waits).
"""

import pytest

from tests.unit.jobs import CREATED, PRIMARY, REDUCER, SECOND, Life, job
from trainshed.core.lifecycle.events import JobAdmitted, RuntimePrepared
from trainshed.core.lifecycle.replica_events import ReplicaNoted
from trainshed.core.names import ReplicaId


def note_event(
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


def note_messages(life: Life) -> list[str]:
    return [entry.message for entry in life.timeline if entry.kind.startswith("reduction")]


@pytest.fixture
def life() -> Life:
    return Life(job(1, 1, 1, reducers=True)).up()


def test_timeline_shows_notes_of_the_current_incarnation_only(life: Life) -> None:
    life.see(note_event(1, "a"))
    life.loses(REDUCER, "its shim was killed")
    assert life.replica(REDUCER).incarnation == 2
    life.see(note_event(1, "late"), note_event(1, "b", incarnation=2), note_event(1, "no", attempt=2)).up()
    assert note_messages(life) == ["workerpool2-0: a", "workerpool2-0: b"]


def test_files_not_stored_in_a_bucket_cause_a_timeline_warning(life: Life) -> None:
    text = "it is refused"
    life.see(ReplicaNoted(1, PRIMARY, 1, 1, CREATED, "storage_written_here", "WARNING", text))
    assert entries_of(life)[-1] == ("storage_warning", "workerpool0-0: it is refused")


PLACES = JobAdmitted(((PRIMARY, "a"),))


def entries_of(life: Life) -> list[tuple[str, str]]:
    return [(entry.kind, entry.message) for entry in life.timeline]


def test_timeline_shows_the_duration_of_a_runtime_build() -> None:
    life = Life(job(1)).see(PLACES).see(RuntimePrepared(1, 28_140_000_000))
    assert entries_of(life)[-1] == ("launching", "The runtime is ready after 28 s; starting all replicas.")
