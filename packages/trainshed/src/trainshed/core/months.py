"""Months of the calendar. Pure."""

from datetime import UTC, datetime

from trainshed.core.units import Nanos


def month_of(now: Nanos) -> tuple[Nanos, Nanos]:
    """Return when the calendar month of a moment begins and ends, in UTC."""
    at = datetime.fromtimestamp(now // 10**9, UTC)
    begins = datetime(at.year, at.month, 1, tzinfo=UTC)
    ends = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return round(begins.timestamp()) * 10**9, round(ends.timestamp()) * 10**9
