"""Which jobs and logs go, and when (docs/operate.md)."""

from dataclasses import dataclass

import pytest

from trainshed.core.retention import (
    KeptLog,
    Retention,
    jobs_due,
    logs_due,
    parse_age,
    parse_size,
)

DAY = 86400 * 10**9
NOW = 100 * DAY


@dataclass(frozen=True)
class Over:
    uid: int
    ended: int


def test_what_runs_and_what_is_young_stays_and_the_oldest_goes_first() -> None:
    newest_first = [
        Over(5, 0),
        Over(4, NOW),
        Over(3, 20 * DAY),
        Over(2, 30 * DAY),
        Over(1, 10 * DAY),
    ]
    assert [each.uid for each in jobs_due(newest_first, NOW - 60 * DAY)] == [1, 3, 2]
    assert [each.uid for each in jobs_due(newest_first, 30 * DAY)] == [1, 3]


def test_the_oldest_logs_go_until_the_rest_fits() -> None:
    logs = [KeptLog(1, 99 * DAY, 10), KeptLog(2, 10 * DAY, 10**9), KeptLog(3, 80 * DAY, 60 * 10**6)]

    def due(size: str) -> list[int]:
        return [log.uid for log in logs_due(logs, Retention(size=size))]

    assert due("2GB") == []
    assert due("500MB") == [2]
    assert due("50MB") == [2, 3]


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 0), ("12h", 12 * 3600), ("30d", 30 * 86400), ("4w", 28 * 86400)]
)
def test_ages(text: str, seconds: int) -> None:
    assert parse_age(text) == seconds * 10**9


@pytest.mark.parametrize(("text", "size"), [("", 0), ("5MB", 5 * 10**6), ("2GiB", 2 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["0d", "d", "30", "30 d", "-1d", "1.5d", "30m"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="12h, 30d or 4w"):
        parse_age(text)


@pytest.mark.parametrize("text", ["0GB", "50", "50gb", "-1GB", "1.5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="50GB"):
        parse_size(text)
