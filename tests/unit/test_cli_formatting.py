"""Output of the command line: times, durations, sizes and tables."""

import io
import sys

import click
import pytest

from tests.unit.jobs import SECOND
from trainshed.cli.jobs.describe import timeline_lines
from trainshed.cli.output import show_progress
from trainshed.cli.resources import KINDS
from trainshed.cli.text.moments import duration, gibibytes, moment, size
from trainshed.cli.text.tables import Field, pairs, table_of, width
from trainshed.core.units import text_nanos
from trainshed.serve.setting_types import parse_age, parse_size
from trainshed.wire.trainshed_v1.timeline import TimelineEntry

NOON = "2026-11-20T12:00:00Z"


def lines_of(fields: tuple[Field, ...], *records: dict[str, str], max_width: int | None = None) -> list[str]:
    return list(map(click.unstyle, table_of(fields, records, max_width)))


def test_table_columns_are_aligned_and_shortened_to_fit() -> None:
    fields = (Field("A", "a", flexible=True), Field("N", "n", right=True), Field("Z", "z"))
    rows = ({"a": "a long long name", "n": "7", "z": "end"}, {"a": "ｗｉｄｅ", "n": "128"})
    assert lines_of(fields, *rows) == [
        "A                   N  Z",
        "a long long name    7  end",
        "ｗｉｄｅ          128  –",
    ]
    narrow = lines_of(fields, *rows, max_width=20)
    assert narrow[1] == "a long lo…    7  end"
    assert all(width(text) <= 20 for text in narrow)
    assert lines_of(fields, *rows, max_width=1)[1].startswith("a long …  ")
    both = (fields[0], Field("Z", "z", flexible=True))
    even = lines_of(both, {"a": "a long name", "z": "longer by half"}, max_width=22)[1]
    assert even == "a long na…  longer by…", "the widest column gives way first"
    spare = (Field("S", "n", spare=True), *fields)
    assert lines_of(spare, *rows, max_width=29)[0].startswith("S"), "all columns fit"
    assert lines_of(spare, *rows, max_width=20) == narrow


def test_long_cells_of_the_last_table_column_are_wrapped() -> None:
    fields = (Field("KIND", "kind"), Field("MESSAGE", "message", wraps=True))
    entry = {"kind": "warning", "message": "Four score and seven years ago our fathers brought forth"}
    narrow = [click.unstyle(line) for line in table_of(fields, [entry], 40)]
    assert narrow == [
        "KIND     MESSAGE",
        "warning  Four score and seven years ago",
        "         our fathers brought forth",
    ]
    wide = [click.unstyle(line) for line in table_of(fields, [entry])]
    assert wide[1] == f"warning  {entry['message']}"
    assert pairs([("Runs", "one two three four five six seven")], 30) == [
        "Runs  one two three four five",
        "      six seven",
    ]


def test_shortened_failure_verdict_still_shows_the_consequence_for_the_job() -> None:
    """spec/logs#lines: each verdict ends with its budget and its consequence, even after long installer
    output."""
    evidence = "The runtime could not be built. Its last lines:\n  error: (one): two\nMake room."
    message = f"Rule internal_error for the attempt ({evidence}): 1 of 2; the job is retried."
    output = click.unstyle(timeline_lines([TimelineEntry(at=NOON, kind="verdict", message=message)])[-1])
    assert output.endswith("Its last lines: …): 1 of 2; the job is retried.")


class Terminal(io.StringIO):
    """A terminal's standard error."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("size", "is_shown"), [(9 << 20, True), (1 << 20, False)])
def test_terminal_shows_progress_of_a_large_transfer(
    monkeypatch: pytest.MonkeyPatch, size: int, is_shown: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    chunks = [bytes(size // 2), bytes(size - size // 2)]
    assert list(show_progress("d/weights.bin", size, chunks)) == chunks
    assert ("d/weights.bin, 9.4 MB" in terminal.getvalue()) is is_shown
    assert ("100%" in terminal.getvalue()) is is_shown


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (-1, "0.00s"),
        (420_000_000, "0.42s"),
        (9_999_999_999, "9.9s"),
        (42 * SECOND, "42s"),
        (192 * SECOND, "3m 12s"),
        (7500 * SECOND, "2h 05m"),
        (76 * 3600 * SECOND, "3d 4h"),
    ],
)
def test_durations_are_formatted_with_at_most_two_time_units(length: int, text: str) -> None:
    assert duration(length) == text


@pytest.mark.parametrize("text", ["999999999d", "1900-01-01"])
def test_since_option_treats_very_old_times_as_the_start_of_the_epoch(text: str) -> None:
    assert text_nanos(moment(text, SECOND, "--since")) == "1970-01-01T00:00:00.000000001Z"
    with pytest.raises(click.UsageError, match="Write how long ago"):
        moment("0001-01-01", SECOND, "--since")


def test_sizes_are_formatted_in_bytes_and_gibibytes() -> None:
    assert [size(count) for count in (7, 24_100, 9.96e6, 3e12)] == [*("7 B", "24.1 kB", "10.0 MB", "3.0 TB")]
    assert [gibibytes(count << 27) for count in (0, 109, 7680)] == ["–", "13.6 GiB", "960 GiB"]


def test_age_and_size_options_are_parsed() -> None:
    ages = {"12h": 12 * 3600, "30d": 30 * 86_400, "4w": 28 * 86_400}
    assert {text: parse_age(text) // SECOND for text in ages} == ages
    sizes = {"5MB": 5_000_000, "2GiB": 2 << 30}
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("0GB", "50", "50gb", "-1GB", "1.5GB"):
        with pytest.raises(ValueError, match="50GB"):
            parse_size(text)
    for text in ("0d", "30", "12m", "99999w"):
        with pytest.raises(ValueError, match="30d"):
            parse_age(text)


def test_audit_table_fits_80_columns() -> None:
    """The column for rejected requests is shown only if there are any."""
    name = "projects/vision/locations/us-central1/customJobs/1234567890123"
    entry = {
        "time": "2026-11-02T03:04:05.678901Z",
        "who": "ana.smith@corp.example",
        "method": "google.cloud.aiplatform.v1.JobService.CreateCustomJob",
        "resource": name,
        "detail": {"name": "resnet-50-imagenet"},
        "answer": "OK",
    }
    quota = entry | {"method": "trainshed.v1.Quotas.Set", "answer": "PERMISSION_DENIED"}
    for entries in ([entry], [entry, quota]):
        lines = [*map(click.unstyle, table_of(KINDS["audit"].fields, entries, 80))]
        titles, first, *_ = lines
        assert max(map(len, lines)) <= 80
        assert ("REFUSED" in titles) == (len(entries) == 2)
        for part in ("ana.", "Create", "custom", "name"):
            assert part in first
