"""The decision which runs of a schedule start: `records.step`."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from trainshed.core.errors import FailedPrecondition
from trainshed.core.names import JobUid
from trainshed_pipelines.schedules.records import (
    Author,
    Schedule,
    ScheduleName,
    State,
    Terms,
    change,
    pause,
    record_failure,
    record_start,
    resume,
    step,
)

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def at(time: datetime) -> int:
    return int(time.timestamp()) * 10**9


def hourly(**terms: Any) -> Schedule:
    """Return a schedule that was created shortly after noon and runs at each full hour."""
    now = at(NOON + MINUTE)
    wanted = replace(Terms("s", "0 * * * *", max_concurrent_run_count=1), **terms)
    author = Author("ana@corp.example", (), now)
    name = ScheduleName("p1", "us-central1", "7")
    return change(Schedule(name, JobUid(7), wanted, "{}", author, now, now), now)


def run_all(schedule: Schedule, now: datetime, unfinished: int = 0) -> tuple[Schedule, list[str]]:
    """Start all runs that are due. Return the schedule, and the times of the runs."""
    started: list[str] = []
    for _ in range(50):
        changed, run = step(schedule, at(now), unfinished)
        if run is None and changed == schedule:
            return schedule, started
        schedule = changed
        if run is not None:
            started.append(f"{datetime.fromtimestamp(run / 1e9, UTC):%H:%M}")
            schedule = record_start(schedule, run, JobUid(len(started)), (), at(now))
            unfinished += 1
    raise AssertionError("the schedule does not settle")


def text(schedule: Schedule) -> str:
    return schedule.response.text if schedule.response else ""


def test_run_starts_at_its_time() -> None:
    schedule = hourly()
    assert schedule.wakes == at(NOON + HOUR)
    assert run_all(schedule, NOON + HOUR - MINUTE) == (schedule, [])
    schedule, started = run_all(schedule, NOON + HOUR)
    assert (started, text(schedule), schedule.started_runs) == (["13:00"], "OK", 1)
    assert schedule.wakes == at(NOON + 2 * HOUR)


def test_runs_that_were_missed_by_a_stopped_service_are_skipped_and_reported() -> None:
    schedule, started = run_all(hourly(), NOON + 4.5 * HOUR)
    assert started == []
    assert text(schedule) == "Skipped 4 runs since 2026-05-04T13:00:00Z: the service was not running."
    assert schedule.response is not None
    assert schedule.response.run == at(NOON + 4 * HOUR)
    assert schedule.next_run == at(NOON + 5 * HOUR)


def test_last_missed_run_starts_after_a_short_interruption() -> None:
    schedule, started = run_all(hourly(), NOON + 2 * HOUR + 9 * MINUTE)
    assert started == ["14:00"]
    expected = "OK. Skipped 1 run since 2026-05-04T13:00:00Z: the service was not running."
    assert text(schedule) == expected
    assert run_all(hourly(), NOON + HOUR + 9 * MINUTE)[1] == ["13:00"]


def test_number_of_reported_runs_is_limited() -> None:
    schedule, _ = run_all(hourly(cron="* * 1-4 * *"), NOON + 48 * HOUR)
    assert text(schedule).startswith("Skipped 100 or more runs since 2026-05-04T12:02:00Z")


@pytest.mark.parametrize(("catch_up", "runs"), [(True, ["13:00", "14:00", "15:00"]), (False, ["16:00"])])
def test_resume_starts_missed_runs_only_on_request(catch_up: bool, runs: list[str]) -> None:
    schedule = pause(hourly(), at(NOON + 2 * MINUTE))
    assert run_all(schedule, NOON + 3.5 * HOUR) == (schedule, [])
    schedule = resume(schedule, at(NOON + 3.5 * HOUR), catch_up=catch_up)
    schedule, started = run_all(schedule, NOON + 3.5 * HOUR)
    assert started == runs[: 3 * catch_up]
    assert not schedule.is_behind
    assert run_all(schedule, NOON + 4 * HOUR)[1] == ["16:00"]


def test_runs_beyond_the_limit_are_skipped() -> None:
    schedule = hourly(max_concurrent_active_run_count=1)
    schedule, started = run_all(schedule, NOON + HOUR, unfinished=1)
    assert (started, schedule.next_run) == ([], at(NOON + 2 * HOUR))
    assert text(schedule) == "Skipped, because runs of the schedule have not finished: 1."


def test_runs_beyond_the_limit_wait_in_a_queue() -> None:
    schedule = hourly(max_concurrent_active_run_count=1, allow_queueing=True)
    schedule, started = run_all(schedule, NOON + HOUR, unfinished=1)
    assert (started, schedule.wakes) == ([], at(NOON + HOUR))
    # Runs that wait are not missed runs.
    schedule, started = run_all(schedule, NOON + 3 * HOUR)
    assert (started, schedule.wakes) == (["13:00"], at(NOON + 2 * HOUR))
    assert run_all(schedule, NOON + 3 * HOUR)[1] == ["14:00"]


def test_schedule_completes_after_the_maximum_number_of_runs() -> None:
    schedule, _ = run_all(hourly(max_run_count=2), NOON + HOUR)
    failed = record_failure(schedule, at(NOON + 2 * HOUR), "no", at(NOON + 2 * HOUR))
    assert (failed.state, failed.started_runs) == (State.ACTIVE, 1)
    schedule, started = run_all(schedule, NOON + 2 * HOUR)
    assert (started, schedule.state, schedule.wakes) == (["14:00"], State.COMPLETED, None)


def test_start_and_end_time_limit_the_runs() -> None:
    schedule = hourly(start_time=NOON + 2 * HOUR, end_time=NOON + 2.5 * HOUR)
    schedule, started = run_all(schedule, NOON + HOUR)
    assert (started, schedule.wakes) == ([], at(NOON + 2 * HOUR))
    schedule, started = run_all(schedule, NOON + 2 * HOUR)
    assert (started, schedule.state, schedule.next_run) == (["14:00"], State.ACTIVE, None)
    schedule, started = run_all(schedule, NOON + 2.5 * HOUR)
    assert (started, schedule.state) == ([], State.COMPLETED)


def test_change_skips_runs_that_are_due() -> None:
    schedule = hourly(max_concurrent_active_run_count=1, allow_queueing=True)
    schedule, _ = run_all(schedule, NOON + HOUR, unfinished=1)
    changed = change(replace(schedule, terms=hourly().terms), at(NOON + HOUR + MINUTE))
    assert (changed.next_run, changed.is_behind) == (at(NOON + 2 * HOUR), False)
    paused = change(pause(schedule, at(NOON)), at(NOON + HOUR))
    assert (paused.state, paused.wakes) == (State.PAUSED, None)


def test_states_restrict_the_methods() -> None:
    active, completed = hourly(), replace(hourly(), state=State.COMPLETED)
    with pytest.raises(FailedPrecondition, match="not paused"):
        resume(active, at(NOON), catch_up=True)
    for method in (pause, change):
        with pytest.raises(FailedPrecondition, match="Create another schedule"):
            method(completed, at(NOON))
    paused = pause(active, at(NOON))
    assert pause(paused, at(NOON + HOUR)) == paused
