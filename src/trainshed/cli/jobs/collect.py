"""`trainshed gc`: deletes jobs that have been over for long, as `jobs delete` does. Nothing of a live job."""

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import job_path, list_jobs, project_of
from trainshed.cli.jobs.views import JobView
from trainshed.cli.text.moments import counted, local_moment
from trainshed.core.retention import jobs_due, parse_age


def _age(_: click.Context, __: click.Parameter, text: str) -> int:
    try:
        return parse_age(text or "0")
    except ValueError:
        raise click.BadParameter(f"write an age such as 12h, 30d or 4w, not {text!r}.") from None


@click.command(epilog="Example, once a day by cron: trainshed gc --older-than 30d --keep 100")
@click.option(
    "--older-than",
    default="30d",
    show_default=True,
    metavar="AGE",
    callback=_age,
    help="Delete what has been over for so long.",
)
@click.option(
    "--keep", type=click.IntRange(min=0), default=0, help="Keep so many of the newest jobs anyway."
)
@click.option("--project", metavar="PROJECT", help="Project, - for all. Default: the service's.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@takes_endpoint
@click.pass_obj
def command(
    session: Session,
    endpoint: Endpoint,
    *,
    older_than: int,
    keep: int,
    project: str | None,
    dry_run: bool,
) -> None:
    """Delete old jobs that are over, with their logs, curves and what tuning jobs made.

    What they wrote to buckets stays, and so do models. A service that does so by itself has settings:
    [retention].
    """
    client = endpoint.client()
    chosen = project or project_of(endpoint)
    jobs = [JobView.parse(job) for job in list_jobs(client, chosen, limit=None)]
    old = jobs_due(jobs, session.now() - older_than, keep)
    deleted = 0
    for job in old:
        told = (
            f"{job.id}  {job.state.value}  {local_moment(job.ended)}  {job.display_name}".rstrip()
        )
        if dry_run or _delete(client, job):
            deleted += 1
            click.echo(told)
    verb = "would be deleted" if dry_run else "deleted"
    click.echo(f"{counted(deleted, 'job')} {verb}", err=True)


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
