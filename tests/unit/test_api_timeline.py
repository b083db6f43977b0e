"""The story by attempts, replicas and incarnations, from what the real machine tells."""

from tests.unit.jobs import PRIMARY, SECOND, WORKER, Life, job
from trainshed.api.trainshed_v1.timeline import (
    AttemptTimeline,
    attempts_view,
    counters_view,
    timeline_of,
)
from trainshed.core.lifecycle.events import CapacityRefused, NodeLeft, TimelineEntry
from trainshed.core.names import Api
from trainshed.wire.trainshed_v1.record import plain


def told(life: Life) -> AttemptTimeline:
    return timeline_of(life.told)


def test_a_job_that_succeeds_is_one_attempt() -> None:
    life = Life(job(1, 1)).up().exits(PRIMARY)
    life.up()
    (attempt,) = told(life).attempts
    assert (attempt.number, attempt.rule) == (1, "primary_succeeded")
    assert 0 < attempt.started < attempt.ended == life.job.ended
    (primary,) = attempt.replicas["workerpool0-0"]
    assert (primary.node, primary.number) == ("a", 1)
    assert primary.exit is not None
    assert primary.exit.exit_code == 0
    (worker,) = attempt.replicas["workerpool1-0"]
    assert worker.exit is not None
    assert worker.exit.stopped


def test_a_lost_replica_has_another_life_and_its_verdict() -> None:
    """spec/failures#budgets: restarts are counted per replica and attempt."""
    life = Life(job(1, 1)).up().loses(WORKER).up().loses(WORKER).up()
    found = told(life)
    lives = found.attempts[0].replicas["workerpool1-0"]
    assert [each.number for each in lives] == [1, 2, 3]
    assert [each.node for each in lives] == ["b", "b", "b"]
    assert lives[0].lost
    assert [
        (each.verdict.rule, each.verdict.effect, each.verdict.count, each.verdict.budget)
        for each in lives
        if each.verdict
    ] == [("replica_lost", "replica_restarts", n, 5) for n in (1, 2)]
    assert found.restarts == {"replica_lost": 2}
    assert found.retries == {}
    assert (found.attempts[0].ended, lives[2].ended) == (0, 0)


def test_a_replica_that_leaves_its_node_goes_on_elsewhere() -> None:
    life = Life(job(1, 1)).up().see(NodeLeft("b", "new disk"))
    life.up().places(WORKER, "c").up()
    first, second = told(life).attempts[0].replicas["workerpool1-0"]
    assert (first.leaving, first.node, second.node) == ("new disk", "b", "c")
    assert second.started > first.ended > first.started


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
    assert [each.number for each in told(after.up()).attempts] == [0, 1]


def test_saying_why_it_waits_ends_no_attempt() -> None:
    life = Life(job(1, 1)).up()
    life.told.append(TimelineEntry(life.now, "waiting", "no room", {"reason": "capacity"}))
    assert told(life).attempts[0].ended == 0


def test_an_older_story_is_told_as_far_as_it_goes() -> None:
    entries = [
        TimelineEntry(SECOND, "created", "created"),
        TimelineEntry(2 * SECOND, "admitted", "Attempt 1"),
        TimelineEntry(3 * SECOND, "replica_exited", "it exited"),
        TimelineEntry(4 * SECOND, "failed", "failed"),
    ]
    (attempt,) = timeline_of(entries).attempts
    assert (attempt.number, attempt.ended, attempt.replicas) == (1, 4 * SECOND, {})
    assert timeline_of([]).attempts == []


def test_as_json() -> None:
    life = Life(job(1, 1, api=Api.ML)).up().loses(WORKER).up()
    history = told(life)
    assert plain(counters_view(history)) == {"retries": {}, "restarts": {"replica_lost": 1}}
    (attempt,) = plain(attempts_view(history, Api.ML))
    worker = attempt["replicas"][1]
    assert (worker["id"], worker["task"]) == ("workerpool1-0", "worker-replica-0")
    first, second = worker["incarnations"]
    assert first["verdict"]["effect"] == "replica_restarts"
    assert (first["exit"], second["verdict"], second["endTime"]) == (None, None, "")
