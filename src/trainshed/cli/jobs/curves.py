"""Makes the part of `jobs describe` about what a job's programs logged as summaries."""

from collections.abc import Sequence

from trainshed.cli.client import Client, Refused
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.text.colours import faint
from trainshed.cli.text.tables import Column, joined, spark, table
from trainshed.wire.trainshed_v1.curves import JobCurve, JobCurves
from trainshed.wire.trainshed_v1.record import read

_DRAWN = 32
"""Points of a small chart in a column."""
_DESCRIBED = 12
"""Maximum curves that `jobs describe` shows."""


def describe_lines(client: Client, job: JobView) -> list[str]:
    """Return the lines of `jobs describe` about a job's curves; [] if it has none, and for a tuning job,
    whose trials may have very many."""
    if job.kind == "tuning":
        return []
    try:
        found = read(client.get(job_path(job.uid, "/curves"), points=_DRAWN), JobCurves)
    except Refused as refused:
        if refused.status == 404:
            return []  # The service is older than this command.
        raise
    if not found.curves:
        return []
    more = len(found.curves) - _DESCRIBED
    hint = [faint(f"{more} more: trainshed describe curves {job.id}")] if more > 0 else []
    return ["", *curve_table(found.curves[:_DESCRIBED]), *hint]


def curve_table(curves: Sequence[JobCurve]) -> list[str]:
    """Return the lines of a table of curves. Trials and runs have columns only if there are any."""
    trials, runs = any(curve.trial for curve in curves), any(curve.run for curve in curves)
    columns = [
        *([Column("TRIAL", right=True)] if trials else []),
        *([Column("RUN")] if runs else []),
        Column("CURVE"),
        Column("STEP", right=True),
        Column("LAST", right=True),
        Column("MIN", right=True),
        Column("MAX", right=True),
        Column("COURSE"),
    ]
    rows = [
        (
            *([str(curve.trial or "")] if trials else []),
            *([curve.run or "."] if runs else []),
            curve.tag,
            *_cells(curve),
        )
        for curve in curves
    ]
    header, *lines = table(columns, rows)
    return [faint(joined(header)), *map(joined, lines)]


def _cells(curve: JobCurve) -> tuple[str, ...]:
    if not curve.points:
        return ("", "", "", "", "")
    values = [point.value if isinstance(point.value, float) else None for point in curve.points]
    numbers = [value for value in values if value is not None]
    last = curve.points[-1]
    return (
        str(last.step),
        last.value if isinstance(last.value, str) else f"{last.value:.4g}",
        *((f"{min(numbers):.4g}", f"{max(numbers):.4g}") if numbers else ("", "")),
        spark(values),
    )
