"""`trainshed jobs curves`: shows what a job's programs logged as summaries. Also makes the part of `jobs
describe` about them."""

from collections.abc import Sequence

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.text.colours import faint
from trainshed.cli.text.tables import Column, joined, spark, table
from trainshed.wire.trainshed_v1.curves import JobCurve, JobCurves
from trainshed.wire.trainshed_v1.record import read

_DRAWN = 32
"""Points of a small chart in a column."""
_DESCRIBED = 12
"""Maximum curves that `jobs describe` shows."""


@click.command()
@takes_job
@click.option("--run", multiple=True, metavar="DIRECTORY", help="Show this run only. Repeatable.")
@click.option("--tag", multiple=True, help="Show this tag only. Repeatable.")
@takes_form
@takes_endpoint
def command(
    endpoint: Endpoint, *, job: str, run: tuple[str, ...], tag: tuple[str, ...], form: str
) -> None:
    """Show the curves that a job's programs logged as TensorFlow summaries.

    Read are the event files below AIP_TENSORBOARD_LOG_DIR, of `ml` v1 jobs below the job directory, as
    PyTorch's SummaryWriter, Keras and TensorFlow write them. RUN is the directory below that. With --format
    json up to 1,000 points of each curve are there.
    """
    client = endpoint.client(raw=form == "json")
    path = job_path(JobView.parse(find_job(client, job, endpoint.project)).uid, "/curves")
    if form == "json":
        print_data(client.get(path, run=run, tag=tag))
        return
    found = read(client.get(path, run=run, tag=tag, points=_DRAWN), JobCurves)
    if not found.curves:
        click.echo(_nothing(found, chosen=bool(run or tag)), err=True)
        return
    for line in curve_table(found.curves):
        click.echo(line)
    if found.more:
        click.echo(faint("There are more; choose by --run or --tag."))


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
    hint = [faint(f"{more} more: trainshed jobs curves {job.id}")] if more > 0 else []
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


def _nothing(found: JobCurves, *, chosen: bool) -> str:
    if chosen:
        return "There is no such curve; leave out --run and --tag to see which there are."
    if not found.log_directory:
        return (
            "The job has no curves. Programs log them as TensorFlow summaries to AIP_TENSORBOARD_LOG_DIR; a "
            "job has that if it is given a base output directory."
        )
    return (
        "The job has no curves yet. Its programs log them as TensorFlow summaries below "
        f"{found.log_directory}."
    )
