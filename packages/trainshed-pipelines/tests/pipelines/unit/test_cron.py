"""Cron expressions, on days with a clock change as well."""

from datetime import datetime
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from trainshed_pipelines.schedules.cron import last_run, next_run, runs

BERLIN = ZoneInfo("Europe/Berlin")


def nanos(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 10**9


def berlin(time: int) -> str:
    return datetime.fromtimestamp(time // 10**9, BERLIN).isoformat(timespec="minutes")


def following(cron: str, after: str, count: int = 3) -> list[str]:
    return [berlin(time) for time in islice(runs(f"TZ=Europe/Berlin {cron}", nanos(after)), count)]


def test_times_without_a_zone_are_in_utc() -> None:
    assert next_run("0 2 * * *", nanos("2026-01-01T00:00Z")) == nanos("2026-01-01T02:00Z")
    assert next_run("0 2 * * *", nanos("2026-01-01T02:00Z")) == nanos("2026-01-02T02:00Z")


@pytest.mark.parametrize("prefix", ["TZ=America/New_York ", "CRON_TZ=America/New_York  "])
def test_both_prefixes_select_a_time_zone(prefix: str) -> None:
    assert next_run(f"{prefix}0 2 * * *", nanos("2026-01-01T00:00Z")) == nanos("2026-01-01T07:00Z")


def test_fixed_time_in_the_spring_gap_moves_to_the_end_of_the_gap() -> None:
    assert following("0,30 2 * * *", "2026-03-28T12:00+01:00") == [
        "2026-03-29T03:00+02:00",
        "2026-03-30T02:00+02:00",
        "2026-03-30T02:30+02:00",
    ]


def test_fixed_time_in_the_autumn_overlap_counts_once() -> None:
    times = ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    assert following("30 2 * * *", "2026-10-24T12:00+02:00", 2) == times
    # A service that restarts between the two equal times does not run the second one.
    assert following("30 2 * * *", "2026-10-25T02:45+02:00", 1) == times[1:]
    assert following("30 2 * * *", "2026-10-25T02:10+01:00", 1) == times[1:]


def test_intervals_continue_through_clock_changes() -> None:
    assert following("*/30 * * * *", "2026-03-29T01:20+01:00") == [
        "2026-03-29T01:30+01:00",
        "2026-03-29T03:00+02:00",
        "2026-03-29T03:30+02:00",
    ]
    assert following("15 * * * *", "2026-10-25T01:30+02:00") == [
        "2026-10-25T02:15+02:00",
        "2026-10-25T02:15+01:00",
        "2026-10-25T03:15+01:00",
    ]


@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 1-3 * * *", "5 */2 * * SUN", "0 0 1 * *"])
def test_last_run_agrees_with_the_following_runs(cron: str) -> None:
    cron, start = f"TZ=Europe/Berlin {cron}", nanos("2026-01-01T00:00Z")
    times = [*islice(runs(cron, start), 400)]
    for before, time in pairwise(times):
        assert last_run(cron, start, time) == time
        assert last_run(cron, start, time - 1) == before
        assert next_run(cron, before) == time
    assert last_run(cron, times[0], times[0] + 1) is None


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("", "five fields"),
        ("* * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("TZ=Europe/Berlin", "five fields"),
        ("0 25 * * *", "hour"),
        ("0 0 31 2 *", "day-of-month"),
        ("TZ=Mars/Base 0 0 * * *", "'Mars/Base' is unknown"),
        ("TZ=/etc/passwd 0 0 * * *", "is unknown"),
        ("TZ=America 0 0 * * *", "is unknown"),
        ("CRON_TZ= 0 0 * * *", "is unknown"),
    ],
)
def test_invalid_expressions_are_rejected_with_advice(cron: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as rejected:
        next_run(cron, 0)
    assert "Europe/Berlin" in str(rejected.value)
