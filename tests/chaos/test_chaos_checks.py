"""Tests of the chaos run's own rules and of its checks."""

import random
from pathlib import Path

from tests.chaos import diary, logs
from tests.chaos.expected import Course, Moves, Outcome, course
from tests.chaos.kinds import KINDS, make_plans
from tests.chaos.plans import CancelAt, End, JobPlan, Life, Pace, Pool

PACE = Pace(0.1, 0.5)
SERVICE_FAILED = Outcome("FAILED", 13, "Internal error occurred for the current attempt")


def plan(*ends: End, restart_whole: bool = False, no_retries: bool = False) -> JobPlan:
    """Return a plan of one replica whose incarnations have these ends."""
    lives = tuple(Life(3, 1, 0.01, end) for end in ends)
    pools = (Pool(1, lives),)
    return JobPlan("j", "k", False, pools, restart_whole=restart_whole, no_retries=no_retries)


def test_equal_seeds_give_equal_chaos_plans_of_every_kind() -> None:
    plans = make_plans(5, 60, PACE)
    assert plans == make_plans(5, 60, PACE) != make_plans(6, 60, PACE)
    assert {plan.kind for plan in plans} == set(KINDS)
    for plan in plans:
        assert plan.actor in plan.replicas
        assert course(plan).outcome is not None or plan.cancel is not CancelAt.NEVER


def program_lines(token: str, *numbers: int, attempt: int = 1) -> list[logs.Line]:
    return [(attempt, f"{token} {n} workerpool0-0 life 0 pid 2") for n in numbers]


def test_chaos_log_checks_detect_gaps_and_duplicates() -> None:
    """spec/logs#order: no lost, duplicate or reordered line."""
    first, second = "a" * 12, "b" * 12
    whole, wrong = logs.parts([*program_lines(first, 0, 1, 2), *program_lines(second, 0, 1, attempt=2)])
    assert whole == [logs.Part(first, 1, 3), logs.Part(second, 2, 2)]
    assert not wrong
    assert not logs.parts([*program_lines(first, 0), (1, f"{first} 1 workerp"), *program_lines(second, 0)])[1]
    for lines in (
        program_lines(first, 0, 2),
        program_lines(first, 0, 1, 1),
        program_lines(first, 1, 0),
        [*program_lines(first, 0), *program_lines(second, 0), *program_lines(first, 1)],
        [*program_lines(first, 0), (1, "Traceback (most recent call last):")],
    ):
        assert logs.parts(lines)[1], lines


def test_chaos_diary_lists_all_incarnations_of_a_replica(tmp_path: Path) -> None:
    token = f"{random.Random(1).getrandbits(48):012x}"
    (tmp_path / f"begun-000-{token}").touch()
    (tmp_path / "said-000").write_text("000000000007")
    (tmp_path / "ended-000").write_text('["aborts", 5]')
    (tmp_path / "alive").touch()
    seen = diary.read(tmp_path)
    assert [(life.token, life.lines, life.end) for life in seen.lives] == [(token, 7, "aborts")]
    assert not seen.has_duplicate
    assert not seen.is_alive
    (tmp_path / "two-000000000000").touch()
    assert diary.read(tmp_path).has_duplicate


def test_failed_start_on_a_full_disk_uses_up_a_retry_of_the_job() -> None:
    """docs/adr/0045: it counts as a failure of the service. After the third, the job fails."""
    killed = plan(*[End.KILLED] * 6, End.SUCCEEDS)
    assert course(killed).lives == (6, 1)
    assert course(killed, Moves(full={1: 1})).lives == (1, 6)
    gang = plan(End.SUCCEEDS)  # Another replica of the job was not started.
    assert course(gang, Moves(full={1: 0, 2: 1})).lives == (0, 1, 1)
    assert course(gang, Moves(full={1: 0, 2: 0, 3: 0})) == Course((0, 0, 0), SERVICE_FAILED)
