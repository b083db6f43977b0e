"""The story by attempts, replicas and incarnations, from what the real machine tells."""

from tests.unit.jobs import WORKER, Life, job
from trainshed.api.trainshed_v1.timeline import AttemptTimeline, timeline_of
from trainshed.core.lifecycle.events import CapacityRefused


def told(life: Life) -> AttemptTimeline:
    return timeline_of(life.told)


def test_a_retry_is_an_attempt_in_the_same_places() -> None:
    """spec/failures#retries: a segmentation fault restarts the whole job."""
    life = Life(job(1, 1)).up().exits(WORKER, 139).up()
    first, second = told(life).attempts
    assert (first.number, second.number) == (1, 2)
    assert first.ended == second.started
    assert first.rule == told(life).attempts[0].replicas["workerpool1-0"][0].verdict.rule  # pyright: ignore[reportOptionalMemberAccess]
    assert second.replicas["workerpool1-0"][0].node == "b"
    assert second.rule == ""
    assert told(life).retries == {first.rule: 1}


def test_what_is_decided_before_there_was_room_is_attempt_0() -> None:
    """spec/failures#no-capacity: no capacity: retried with back-off."""
    life = Life(job()).see(CapacityRefused("no node has a T4"))
    (before,) = told(life).attempts
    assert (before.number, before.replicas) == (0, {})
    assert [verdict.reason for verdict in before.verdicts] == ["no node has a T4"]
    after = Life(life.job)
    after.told = life.told
    assert [attempt.number for attempt in told(after.up()).attempts] == [0, 1]
