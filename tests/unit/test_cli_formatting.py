"""Moments, durations, tables, references: what the command line shows."""

import click
import pytest

from trainshed.cli.jobs.describe import timeline_lines
from trainshed.cli.jobs.views import TimelineView
from trainshed.cli.text.moments import (
    duration,
    parse_moment,
)
from trainshed.cli.text.tables import Column, joined, table, width

SECOND = 10**9
NOON = parse_moment("2026-11-20T12:00:00Z")


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (-1, "0.00s"),
        (420_000_000, "0.42s"),
        (7_390_000_000, "7.3s"),
        (9_999_999_999, "9.9s"),
        (42 * SECOND, "42s"),
        (192 * SECOND, "3m 12s"),
        (3599 * SECOND, "59m 59s"),
        (7500 * SECOND, "2h 05m"),
        (76 * 3600 * SECOND, "3d 4h"),
    ],
)
def test_durations(length: int, text: str) -> None:
    assert duration(length) == text


def test_tables_align_and_give_way() -> None:
    columns = (Column("A", flexible=True), Column("N", right=True), Column("Z"))
    rows = [("a long long name", "7", "end"), ("ｗｉｄｅ", "128", "")]
    full = [joined(cells) for cells in table(columns, rows)]
    assert full == [
        "A                   N  Z",
        "a long long name    7  end",
        "ｗｉｄｅ          128",
    ]
    narrow = [joined(cells) for cells in table(columns, rows, max_width=20)]
    assert narrow[1] == "a long lo…    7  end"
    assert all(width(text) <= 20 for text in narrow)
    assert joined(table(columns, rows, max_width=1)[1]).startswith("a long …  ")


def test_a_name_neither_breaks_a_table_nor_reaches_the_terminal() -> None:
    """spec/logs#lines: what others wrote is shown as text: a command of several lines, an escape sequence."""
    rows = [("python -c 'one\ntwo'\t", "1"), ("\x1b[31mred\x07", "2")]
    lines = [joined(cells) for cells in table((Column("RAN"), Column("N")), rows)]
    assert lines[1:] == ["python -c 'one two'   1", " [31mred              2"]


def test_a_verdict_with_long_evidence_still_says_what_follows() -> None:
    """spec/logs#lines: each verdict with its budget; an installer's lines stand between."""
    evidence = "The runtime could not be built. Its last lines:\n  error: (one): two\nMake room."
    message = f"Rule internal_error for the attempt ({evidence}): 1 of 2; the job is retried."
    output = click.unstyle(timeline_lines([TimelineView(NOON, "verdict", message)])[-1])
    assert output.endswith("Its last lines: …): 1 of 2; the job is retried.")
