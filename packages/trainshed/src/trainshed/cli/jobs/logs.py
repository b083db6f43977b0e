"""`trainshed jobs logs`: prints a job's lines, and follows them until the job is over, also across restarts
of the service."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from trainshed.cli.client import Client, Unreachable
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import Patience, SeenLines, log_stream
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView, LineTexts
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.moments import moment, rfc3339
from trainshed.wire.trainshed_v1.record import plain
from trainshed.wire.trainshed_v1.timeline import LogLine as Line


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
@click.option("--timestamps", is_flag=True, help="Print the moment of each line.")
@click.option("--since", default="", metavar="TIME", help="Start at a moment, or 10m ago.")
@output_format("text", "Output as text, or one JSON object or YAML document per line.")
@takes_endpoint
@click.pass_obj
def command(
    session: Session, endpoint: Endpoint, *, job: str, follow: bool, form: str, **options: Any
) -> None:
    """Print the log lines of a job in order of time; of a tuning job those of all its trials.

    Behind them stands the error of a job that has failed. What happened between them: trainshed jobs
    timeline, or watch.
    """
    client = endpoint.client(raw=form == "json")
    view = JobView.parse(find_job(client, job, endpoint.project))
    if view.log_deleted:
        click.echo(view.log_deleted, err=True)
    since = moment(options["since"], session.now(), "--since")
    which = {name: options[name] for name in ("trial", "replica", "tail")}
    which["since"] = rfc3339(since) if since else None
    texts = LineTexts(view, timestamps=options["timestamps"])
    path = job_path(view.uid, "/logs")
    try:
        if follow:
            patience = Patience(client, view.uid, f"trainshed jobs logs -f {view.job_id}")
            for lines in followed(client, path, patience, SeenLines(), **which):
                _show(lines, form, texts)
            view = JobView.parse(client.get(job_path(view.uid)))
        else:
            with log_stream(client, path, **which) as answer:
                for lines in answer:
                    _show(lines, form, texts)
    except KeyboardInterrupt:
        # No message: ending to follow is no error, and the job goes on.
        raise SystemExit(130) from None
    if view.error and form == "text":
        click.echo(view.error_text, err=True)


def _show(lines: Sequence[Line], form: str, texts: LineTexts) -> None:
    if form == "text":
        click.echo("".join(texts.of(lines)), nl=False)
        return
    for line in lines:
        print_data(plain(line), stream=True)


def followed(
    client: Client,
    path: str,
    patience: Patience,
    seen: SeenLines,
    *,
    tail: int | str | None = None,
    since: int | str | None = None,
    **which: str | int | None,
) -> Iterator[Sequence[Line]]:
    """Yield a job's lines that were not seen before, each once, until the job is over, also across restarts
    of the service. `tail` and `since`: where they begin if none was seen yet. `which`: further parameters of
    the streams. Raises Refused, Unreachable."""
    first = {"tail": tail, "since": since}
    return patience.outlast(
        lambda: log_stream(
            client, path, follow="true", **which, **(seen.query(tail is not None) or first)
        ),
        lambda lines: iter([fresh] if (fresh := seen.fresh(lines)) else []),
    )


def require_over(client: Client, uid: str) -> JobView:
    """Return the view of a job whose stream has ended.

    Raises Unreachable if the job is not over, since then the stream ended because the service stopped.
    """
    job = JobView.parse(client.get(job_path(uid)))
    if not job.state.is_final:
        raise Unreachable(
            f"The service ended the stream while the job is {job.state.value}; it is shutting down."
            f" The job goes on. When the service is back: trainshed jobs logs -f {job.job_id}"
        )
    return job
