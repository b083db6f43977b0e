"""`trainshed jobs logs`: a job's lines as they are, or as they come until the job is over, whatever becomes
of the service meanwhile."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

from trainshed.cli.client import Client, Unreachable
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import Patience, SeenLines
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView, LogLine
from trainshed.cli.output_format import output_format, print_data
from trainshed.cli.text.colours import replica_colour, severity_colour, trial_number_colour


@click.command()
@takes_job
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until the job ends, also across service restarts.",
)
@click.option(
    "--trial", type=click.IntRange(min=1), metavar="N", help="Show only this trial of a tuning job."
)
@click.option("--replica", metavar="REPLICA", help="Show only this replica, such as workerpool1-0.")
@click.option(
    "--tail", type=click.IntRange(min=1), metavar="N", help="Start with the last N lines."
)
@output_format("text", "Output as text, or one JSON object per line.")
@takes_endpoint
def command(
    endpoint: Endpoint,
    *,
    job: str,
    follow: bool,
    trial: int | None,
    replica: str | None,
    tail: int | None,
    form: str,
) -> None:
    """Print the log lines of a job in order of time.

    Of a tuning job those of all its trials."""
    client = endpoint.client(raw=form == "json")
    answer = find_job(client, job, endpoint.project)
    view = JobView.parse(answer)
    path = job_path(view.uid, "/logs")
    which = {"trial": trial, "replica": replica}
    try:
        if follow:
            patience = Patience(client, view.uid, f"trainshed jobs logs -f {view.id}")
            _print(followed(client, path, patience, tail=tail, **which), view, form)
            return
        with client.lines(path, tail=tail, **which) as lines:
            _print(lines, view, form)
    except KeyboardInterrupt:
        # To look no longer is a good end; the job goes on.
        raise SystemExit(130) from None


def followed(
    client: Client,
    path: str,
    patience: Patience,
    *,
    tail: int | None = None,
    **which: str | int | None,
) -> Iterator[dict[str, Any]]:
    """The objects of a job's lines until it is over, each once, though the service is away meanwhile. Raises
    Refused, Unreachable."""
    seen = SeenLines()
    return patience.outlast(
        lambda: client.lines(path, follow="true", **which, **seen.query(tail)),
        lambda line: iter([line] if seen.fresh(line) else []),
    )


def labelled(line: LogLine, job: JobView) -> str:
    """A line behind who wrote it: a replica, of a tuning job a trial (and which of its replicas, if they are
    several)."""
    if tuning := job.program.tuning:
        number = str(line.trial).rjust(len(str(tuning.first + tuning.most - 1)))
        prefix = click.style(f"trial {number}", fg=trial_number_colour(line.trial))
        if tuning.replicas > 1:
            prefix += "  " + click.style(line.task, fg=replica_colour(line.replica))
        return f"{prefix}  {_message(line, len(click.unstyle(prefix)))}"
    tasks = {replica.id: replica.task for replica in job.program.replicas}
    return line_text(line, tasks.get(line.replica, line.replica), prefix_width(job.program))


def prefix_width(job: JobView) -> int:
    """How wide the names of a job's replicas are, so that its lines align."""
    return max((len(replica.task) for replica in job.replicas), default=0)


def line_text(line: LogLine, label: str, width: int) -> str:
    """A line for a terminal, behind the name of its replica; styles vanish in pipes."""
    prefix = click.style(label.ljust(width), fg=replica_colour(line.replica))
    return f"{prefix}  {_message(line, max(width, len(label)))}"


def _message(line: LogLine, width: int) -> str:
    """Further lines of a message stand below its first: they are not to be taken for lines of others."""
    lines = line.message.split("\n")
    colour = severity_colour(line.severity)
    return ("\n" + " " * (width + 2)).join(click.style(text, fg=colour) for text in lines)


def require_over(client: Client, uid: str) -> JobView:
    """The description of a job whose stream has ended.

    Raises Unreachable if the job is not over: then it is the service that ended.
    """
    job = JobView.parse(client.get(job_path(uid)))
    if not job.state.is_final:
        raise Unreachable(
            f"The service ended the stream while the job is {job.state.value}; it is shutting down."
            f" The job goes on. When the service is back: trainshed jobs logs -f {job.id}"
        )
    return job


def _print(lines: Iterable[dict[str, Any]], job: JobView, form: str) -> None:
    for line in lines:
        if form == "json":
            print_data(line, stream=True)
        else:
            click.echo(labelled(LogLine.parse(line), job))
