"""`trainshed gc`: deletes jobs that have been over for long, as `jobs delete` does, and logs that are old or
too large together. Nothing of a live job is deleted."""

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import job_path, list_jobs, project_of
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import Actions, takes_actions
from trainshed.cli.text.moments import counted, local_moment, parse_moment, size
from trainshed.core.retention import jobs_due, parse_age, parse_size
from trainshed.wire.trainshed_v1.jobs import DeletedLogs
from trainshed.wire.trainshed_v1.record import plain, read

_AGE = "30d"
"""The age of jobs to delete, if no option says what to delete."""


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
@takes_actions
@takes_endpoint
@click.pass_obj
def command(
    session: Session,
    endpoint: Endpoint,
    *,
    actions: Actions,
    older_than: str | None,
    keep: int,
    logs_older_than: str | None,
    logs_size: str | None,
    project: str | None,
    dry_run: bool,
) -> None:
    """Delete old jobs that are over, with their logs, curves and what tuning jobs made; or their logs alone.

    What they wrote to buckets stays, and so do models. A service that does so by itself has settings:
    retention_jobs, retention_size.
    """
    client = endpoint.client(raw=actions.as_data)
    collecting = _Collecting(client, actions, dry_run=dry_run)
    if older_than or not (logs_older_than or logs_size):
        before = session.now() - parse_age(older_than or _AGE)
        collecting.jobs(project or project_of(endpoint), before, keep)
    elif keep:
        raise click.UsageError("--keep goes with --older-than: it keeps jobs, not logs.")
    if logs_older_than or logs_size:
        collecting.logs(logs_older_than or "", logs_size or "")


class _Collecting:
    """Deletes jobs and logs, and prints which; in a dry run it only prints them."""

    def __init__(self, client: Client, actions: Actions, *, dry_run: bool) -> None:
        self._client = client
        self._actions = actions
        self._dry_run = dry_run
        self._outcome = "due" if dry_run else "deleted"

    def jobs(self, project: str, before: int, keep: int) -> None:
        """Delete the jobs that were over at `before` (ns since the epoch), except for the `keep` newest."""
        summaries = list_jobs(self._client, project, limit=None)
        records = {summary["uid"]: summary for summary in summaries}
        deleted = 0
        for job in jobs_due(map(JobView.parse, summaries), before, keep):
            if self._dry_run or self._delete(job):
                deleted += 1
                ended = local_moment(job.ended)
                sentence = f"{job.id}  {job.state.value}  {ended}  {job.display_name}".rstrip()
                self._actions.did("job", job.id, self._outcome, sentence, record=records[job.uid])
        self._sum_up(counted(deleted, "job"))

    def logs(self, older_than: str, most: str) -> None:
        """Delete logs by age and total size. The service chooses them, and deletes a part per request."""
        body = {"olderThan": older_than, "size": most, "dryRun": self._dry_run}
        deleted = freed = more = 0
        while True:
            answer = read(self._client.post("/trainshed/v1/logs:collect", body), DeletedLogs)
            for log in answer.logs:
                name, ended = log.job or log.uid, local_moment(parse_moment(log.end_time))
                sentence = f"log of {name}  {size(log.bytes)}  {ended}"
                self._actions.did("log", name, self._outcome, sentence, record=plain(log))
            deleted += len(answer.logs)
            freed += sum(log.bytes for log in answer.logs)
            if self._dry_run or not answer.more or not answer.logs:
                more = answer.more
                break
        rest = f", and {more} more" if more else ""
        self._sum_up(f"{counted(deleted, 'log')} ({size(freed)}){rest}")

    def _sum_up(self, what: str) -> None:
        click.echo(f"{what} {'would be deleted' if self._dry_run else 'deleted'}", err=True)

    def _delete(self, job: JobView) -> bool:
        """Delete a job, after the jobs that it created; whether it was deleted. A job in use stays."""
        try:
            if job.kind != "custom":
                for child in list_jobs(self._client, "", parent=job.name, limit=None):
                    self._client.delete(job_path(JobView.parse(child).uid))
            self._client.delete(job_path(job.uid))
        except Refused as refused:
            if refused.status == 404:
                # Somebody else has deleted it meanwhile.
                return False
            why = refused.format_message()
            click.echo(f"{job.id} stays: {why}", err=True)
            self._actions.did("job", job.id, "kept", why=why)
            return False
        return True
