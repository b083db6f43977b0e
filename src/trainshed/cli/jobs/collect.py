"""`trainshed gc`: deletes jobs that have been over for long, as `jobs delete` does, and logs that are old or
too many. Nothing of a live job."""

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import job_path, list_jobs, project_of
from trainshed.cli.jobs.views import JobView
from trainshed.cli.reduction_table import size
from trainshed.cli.text.moments import counted, local_moment, parse_moment
from trainshed.core.retention import jobs_due, parse_age, parse_size
from trainshed.wire.trainshed_v1.jobs import DeletedLogs
from trainshed.wire.trainshed_v1.record import read

_AGE = "30d"
"""Of jobs, where nothing else is asked for."""


def _age(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    try:
        return text and (text, parse_age(text))[0]
    except ValueError:
        raise click.BadParameter(f"write an age such as 12h, 30d or 4w, not {text!r}.") from None


def _size(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    try:
        return text and (text, parse_size(text))[0]
    except ValueError:
        raise click.BadParameter(f"write a size such as 500MB or 50GB, not {text!r}.") from None


@click.command(
    epilog="Examples, once a day by cron: trainshed gc --older-than 30d --keep 100; "
    "trainshed gc --logs-older-than 14d --logs-size 50GB"
)
@click.option(
    "--older-than",
    metavar="AGE",
    callback=_age,
    help=f"Delete jobs that have been over for so long: 12h, 30d, 4w. Default: {_AGE}, and no jobs if "
    "another option says what to delete.",
)
@click.option(
    "--keep", type=click.IntRange(min=0), default=0, help="Keep so many of the newest jobs anyway."
)
@click.option(
    "--logs-older-than",
    metavar="AGE",
    callback=_age,
    help="Delete logs of jobs that have been over for so long; the jobs stay.",
)
@click.option(
    "--logs-size",
    metavar="SIZE",
    callback=_size,
    help="Delete the oldest logs until those of all jobs that are over take no more than this: 50GB.",
)
@click.option(
    "--project",
    metavar="PROJECT",
    help="Project of the jobs, - for all. Default: the service's. Logs are those of all projects.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@takes_endpoint
@click.pass_obj
def command(
    session: Session,
    endpoint: Endpoint,
    *,
    older_than: str | None,
    keep: int,
    logs_older_than: str | None,
    logs_size: str | None,
    project: str | None,
    dry_run: bool,
) -> None:
    """Delete old jobs that are over, with their logs, curves and what tuning jobs made; or their logs alone.

    What they wrote to buckets stays, and so do models. A service that does so by itself has settings:
    [retention].
    """
    client = endpoint.client()
    if older_than or not (logs_older_than or logs_size):
        before = session.now() - parse_age(older_than or _AGE)
        _collect_jobs(client, project or project_of(endpoint), before, keep, dry_run=dry_run)
    elif keep:
        raise click.UsageError("--keep goes with --older-than: it keeps jobs, not logs.")
    if logs_older_than or logs_size:
        _collect_logs(client, logs_older_than or "", logs_size or "", dry_run=dry_run)


def _collect_jobs(client: Client, project: str, before: int, keep: int, *, dry_run: bool) -> None:
    jobs = [JobView.parse(job) for job in list_jobs(client, project, limit=None)]
    deleted = 0
    for job in jobs_due(jobs, before, keep):
        told = (
            f"{job.id}  {job.state.value}  {local_moment(job.ended)}  {job.display_name}".rstrip()
        )
        if dry_run or _delete(client, job):
            deleted += 1
            click.echo(told)
    _tell(counted(deleted, "job"), dry_run=dry_run)


def _collect_logs(client: Client, older_than: str, most: str, *, dry_run: bool) -> None:
    """The service decides which, and takes a part of them at a time."""
    body = {"olderThan": older_than, "size": most, "dryRun": dry_run}
    deleted = freed = more = 0
    while True:
        answer = read(client.post("/trainshed/v1/logs:collect", body), DeletedLogs)
        for log in answer.logs:
            ended = local_moment(parse_moment(log.end_time))
            click.echo(f"log of {log.job or log.uid}  {size(log.bytes)}  {ended}")
        deleted += len(answer.logs)
        freed += sum(log.bytes for log in answer.logs)
        if dry_run or not answer.more or not answer.logs:
            more = answer.more
            break
    rest = f", and {more} more" if more else ""
    _tell(f"{counted(deleted, 'log')} ({size(freed)}){rest}", dry_run=dry_run)


def _tell(what: str, *, dry_run: bool) -> None:
    click.echo(f"{what} {'would be deleted' if dry_run else 'deleted'}", err=True)


def _delete(client: Client, job: JobView) -> bool:
    """Delete a job, first those that it has made. Whether it was deleted: what is in use stays."""
    try:
        if job.kind != "custom":
            for child in list_jobs(client, "", parent=job.name, limit=None):
                client.delete(job_path(JobView.parse(child).uid))
        client.delete(job_path(job.uid))
    except Refused as refused:
        if refused.status == 404:
            # Somebody else deletes as well.
            return False
        click.echo(f"{job.id} stays: {refused.format_message()}", err=True)
        return False
    return True
