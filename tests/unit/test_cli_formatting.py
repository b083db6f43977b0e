"""Moments, durations, tables, references: what the command line shows."""

from datetime import UTC

import click
import pytest

from trainshed.cli.jobs.describe import timeline_lines
from trainshed.cli.jobs.references import meant
from trainshed.cli.jobs.views import JobView, ReplicaView, TimelineView
from trainshed.cli.text.colours import entry_colour, replica_colour, state_colour
from trainshed.cli.text.moments import (
    duration,
    gibibytes,
    local_clock,
    local_moment,
    parse_moment,
    size,
)
from trainshed.cli.text.tables import Column, cut, joined, pairs, table, width
from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api

SECOND = 10**9
NOON = parse_moment("2026-11-20T12:00:00Z")


def view(job_id: str = "7", state: JobState = JobState.RUNNING, name: str = "digits") -> JobView:
    return JobView(
        id=job_id,
        uid=job_id,
        api=Api.VERTEX,
        name=f"projects/p/locations/l/customJobs/{job_id}",
        display_name=name,
        state=state,
        created=NOON,
        started=NOON + SECOND,
        ended=0,
        replicas=(
            ReplicaView("workerpool0-0", "workerpool0-0", ReplicaState.RUNNING, started=NOON),
            ReplicaView("workerpool1-0", "workerpool1-0", ReplicaState.WAITING),
        ),
    )


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


def test_moments() -> None:
    at = parse_moment("2026-11-20T06:05:12.345678901Z")
    assert at % SECOND == 345_678_901
    assert local_moment(at, UTC) == "2026-11-20 06:05:12"
    assert local_clock(at, UTC) == "06:05:12.345"
    assert local_moment(0) == "–"
    assert parse_moment("") == 0
    for wrong in ("2026-11-20", "2026-11-20T06:05:12", "2026-11-20T06:05:12.Z", "now"):
        with pytest.raises(ValueError, match="is not a moment"):
            parse_moment(wrong)


def test_sizes() -> None:
    assert [gibibytes(size) for size in (0, 2**30 * 136 // 10, 2**40)] == [
        "–",
        "13.6 GiB",
        "1024 GiB",
    ]


def test_sizes_are_in_powers_of_ten() -> None:
    assert [size(n) for n in (0, 999, 1000, 25e9, 3.2e13)] == [
        *("0 B", "999 B", "1.0 kB", "25.0 GB", "32.0 TB")
    ]


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


def test_cut_counts_cells() -> None:
    assert cut("ｗｉｄｅ", 6) == "ｗｉ…"
    assert cut("e\u0301tude", 5) == "e\u0301tude"


def test_pairs_align_further_lines() -> None:
    assert pairs([("A", "one\ntwo"), ("Long", "")]) == ["A     one", "      two", "Long"]


def test_every_state_has_a_colour() -> None:
    for state in (*JobState, *ReplicaState):
        assert state_colour(state)
    first = ["workerpool0-0", "workerpool1-0", "workerpool1-1", "workerpool3-0"]
    assert len({replica_colour(replica) for replica in first}) == len(first)
    # The same in every process, whatever the seed of its hashes.
    assert replica_colour("anything else") == "yellow"


def test_meant_takes_an_unambiguous_beginning() -> None:
    known = [view("census_1"), view("census_2"), view("mnist", name="Digits")]
    assert meant("mn", known)[0].id == "mnist"
    with pytest.raises(click.ClickException, match="2 jobs have an id that begins with 'census'"):
        meant("census", known)
    with pytest.raises(click.ClickException, match=r"Did you mean:\n  mnist  Digits  RUNNING"):
        meant("mnits", known)
    with pytest.raises(click.ClickException, match=r"Did you mean:\n  mnist"):
        meant("digits", known[2:])
    with pytest.raises(click.ClickException, match="trainshed jobs list"):
        meant("zzz", known)
    with pytest.raises(click.ClickException, match="trainshed demo"):
        meant("zzz", [])


def test_entries_that_ask_for_attention_have_a_colour() -> None:
    assert entry_colour("running") is None
    assert entry_colour("no_checkpoint") == entry_colour("limit_nears") == "yellow"
    assert {entry_colour("verdict", effect) for effect in Effect} == {
        *("green", "yellow", "red", "magenta")
    }
    assert entry_colour("failed") == "red"


def test_a_verdict_with_long_evidence_still_says_what_follows() -> None:
    """spec/logs#lines: each verdict with its budget; an installer's lines stand between."""
    evidence = "The runtime could not be built. Its last lines:\n  error: (one): two\nMake room."
    message = f"Rule internal_error for the attempt ({evidence}): 1 of 2; the job is retried."
    told = click.unstyle(timeline_lines([TimelineView(NOON, "verdict", message)])[-1])
    assert told.endswith("Its last lines: …): 1 of 2; the job is retried.")
