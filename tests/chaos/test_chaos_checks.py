"""The chaos run's own reading of the rules, and that its checks see what they are for."""

import random
from pathlib import Path
from typing import Any

from tests.chaos import diary, logs
from tests.chaos.expected import Cancel, Course, History, Moves, Outcome, course, expected
from tests.chaos.fates import Fates, fates
from tests.chaos.kinds import KINDS, make_plans
from tests.chaos.maintenance import Drain
from tests.chaos.plans import CancelAt, End, JobPlan, Life, Pace, Pool

PACE = Pace(0.1, 0.5)
S = 10**9
CANCELLED = Outcome("CANCELLED", 1, "The job was cancelled by the user.")


def plan(*ends: End, restart_whole: bool = False, no_retries: bool = False) -> JobPlan:
    """A job of one replica whose lives end so."""
    lives = tuple(Life(3, 1, 0.01, end) for end in ends)
    pools = (Pool(1, lives),)
    return JobPlan("j", "k", False, pools, restart_whole=restart_whole, no_retries=no_retries)


def test_a_crash_restarts_the_whole_job_three_times() -> None:
    """spec/failures#crashes: at most 3 times, then FAILED with the user-code message."""
    whole = course(plan(End.ABORTS))
    assert whole.lives == (1, 1, 1, 1)
    assert whole.outcome == Outcome(
        "FAILED", 3, "The replica workerpool0-0 exited with a non-zero status of 134."
    )
    assert course(plan(End.SEGFAULTS, End.EXITS_139, End.SUCCEEDS)).lives == (1, 1, 1)
    assert course(plan(End.ABORTS, no_retries=True)).lives == (1,)


def test_a_lost_replica_is_restarted_five_times_in_an_attempt() -> None:
    """spec/failures#retries, "replica lost": then the whole job is retried."""
    whole = course(plan(*[End.KILLED] * 5, End.SHIM_KILLED, End.SUCCEEDS))
    assert whole.lives == (6, 1)
    assert whole.outcome == Outcome("SUCCEEDED")
    assert course(plan(End.KILLED)).lives == (6, 6, 6, 6)
    assert course(plan(End.KILLED, End.SUCCEEDS, restart_whole=True)).lives == (1, 1)


def test_a_drill_leads_where_its_kind_leads() -> None:
    """spec/failures#out-of-memory: replica lost, transient, spot preemption, no capacity, internal error, out
    of memory."""
    ends = (End.DRILLED_KILL, End.DRILLED_MAINTENANCE, End.DRILLED_SEGV, End.DRILLED_PREEMPT)
    assert course(plan(*ends, End.SUCCEEDS)).lives == (3, 1, 1)
    assert course(plan(End.DRILLED_INTERNAL)).lives == (1, 1, 1)
    assert course(plan(End.DRILLED_STOCKOUT)).lives == (1, 1, 1, 1)
    outcome = course(plan(End.DRILLED_OOM)).outcome
    assert outcome is not None
    assert "ran out of memory" in outcome.message
    drilled = plan(*ends)
    assert [drilled.drill(life)["kind"] for life in range(4)] == [
        *("kill", "maintenance", "segv", "preempt")
    ]


def test_every_end_has_a_course() -> None:
    for end in End:
        outcome = course(plan(end)).outcome
        assert (outcome is None) is (end is End.RUNS_ON), end


def test_a_drain_costs_a_restart() -> None:
    """spec/failures#maintenance: a node under maintenance; also where nobody could hear the program."""
    job = plan(End.SUCCEEDS)
    assert course(job, Moves(frozenset({0, 1}))) == Course((3,), Outcome("SUCCEEDED"))
    assert course(job, Moves(frozenset({0, 1, 2}), {1: 3})).lives == (3, 1)


def test_what_a_drain_ended_and_what_it_cannot_have_ended() -> None:
    def told(drains: list[Drain], killed: set[tuple[str, int]], *ends: str) -> Fates:
        lives = [
            diary.LifeSeen(n, f"{n:012x}", 5, end, 0, 10 * S * n, 10 * S * n + S)
            for n, end in enumerate(ends)
        ]
        starts = [started(1, n + 1, 10 * n) for n in range(len(ends))]
        seen = diary.ReplicaSeen(tuple(lives), False, False)
        pool = plan(End.KILLED, End.SUCCEEDS).pools[0]
        return fates("workerpool0-0", pool, seen, starts, [], killed, drains)

    drains = [Drain("local-0", 5 * 10**8, 2 * S)]
    assert told(drains, set(), "", "").moved == {0}
    assert not told(drains, {("workerpool0-0", 0)}, "", "").moved
    assert not told([], set(), "", "").moved
    assert told([], set(), "", "").needless() == [0]
    assert told(drains, set(), "exits with 0", "").moved == {0}
    late = [Drain("local-0", 10 * S, 11 * S)]
    assert told(late, {("workerpool0-0", 0)}, "", "exits with 0", "exits with 0").moved == {1}


def started(attempt: int, incarnation: int, second: int) -> dict[str, Any]:
    """A timeline entry."""
    details = {"replica": "workerpool0-0", "attempt": attempt, "incarnation": incarnation}
    at = f"1970-01-01T00:00:{second:02}.000000Z"
    return {"kind": "replica_started", "at": at, "details": details}


def test_a_cancel_and_an_end_that_came_before_or_after_it() -> None:
    """spec/lifecycle#cancel: CANCELLED, unless the primary had already exited."""
    job = plan(End.FAILS)
    failed = course(job).outcome
    for ended, right in (
        ((10, 19), (failed,)),
        ((31, 40), (CANCELLED,)),
        ((10, 21), (failed, CANCELLED)),
        (None, (CANCELLED,)),
    ):
        history = History(Cancel(20, 30, accepted=True, tries=1), ended)
        assert expected(job, failed, history) == right
    refused = Cancel(20, 30, accepted=False, tries=1)
    assert expected(job, failed, History(refused, (10, 25))) == (failed,)


def test_plans_are_the_same_for_the_same_seed_and_of_every_kind() -> None:
    plans = make_plans(5, 60, PACE)
    assert plans == make_plans(5, 60, PACE) != make_plans(6, 60, PACE)
    assert {plan.kind for plan in plans} == set(KINDS)
    for plan in plans:
        assert plan.actor in plan.replicas
        assert course(plan).outcome is not None or plan.cancel is not CancelAt.NEVER


def spoken(token: str, *numbers: int, attempt: int = 1) -> list[logs.Line]:
    return [(attempt, f"{token} {n} workerpool0-0 life 0 pid 2") for n in numbers]


def test_a_gap_a_repetition_and_a_life_that_comes_back_are_seen() -> None:
    """spec/logs#order: no line lost, none twice, in order."""
    one, two = "a" * 12, "b" * 12
    whole, wrong = logs.parts([*spoken(one, 0, 1, 2), *spoken(two, 0, 1, attempt=2)])
    assert whole == [logs.Part(one, 1, 3), logs.Part(two, 2, 2)]
    assert not wrong
    assert not logs.parts([*spoken(one, 0), (1, f"{one} 1 workerp"), *spoken(two, 0)])[1]
    for lines in (
        spoken(one, 0, 2),
        spoken(one, 0, 1, 1),
        spoken(one, 1, 0),
        [*spoken(one, 0), *spoken(two, 0), *spoken(one, 1)],
        [*spoken(one, 0), (1, "Traceback (most recent call last):")],
    ):
        assert logs.parts(lines)[1], lines


def test_a_diary_tells_lives_and_who_lives(tmp_path: Path) -> None:
    token = f"{random.Random(1).getrandbits(48):012x}"
    (tmp_path / f"begun-000-{token}").touch()
    (tmp_path / "said-000").write_text("000000000007")
    (tmp_path / "ended-000").write_text('["aborts", 5]')
    (tmp_path / "alive").touch()
    seen = diary.read(tmp_path)
    assert [(life.token, life.said, life.end) for life in seen.lives] == [(token, 7, "aborts")]
    assert not seen.doubled
    assert not seen.is_alive
    (tmp_path / "two-000000000000").touch()
    assert diary.read(tmp_path).doubled
