"""`trainshed jobs`: the group, with list, describe, timeline and cancel. Its other commands have modules of
their own."""

from collections.abc import Sequence
from datetime import tzinfo

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.commands import LazyCommand, Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.groups import Group
from trainshed.cli.jobs import autopsy, drill, logs, shell, wait, watch
from trainshed.cli.jobs.describe import (
    description,
    timeline_lines,
)
from trainshed.cli.jobs.references import (
    EVERY_PROJECT,
    completing,
    find_job,
    job_path,
    list_jobs,
    project_of,
    takes_job,
    takes_jobs,
)
from trainshed.cli.jobs.views import JobView, TimelineView
from trainshed.cli.output_format import print_data, takes_form, terminal_width
from trainshed.cli.text.colours import state_colour
from trainshed.cli.text.moments import local_moment
from trainshed.cli.text.tables import Field, table_of
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.timeline import Timeline


@click.group(cls=Group)
def command() -> None:
    """List, describe, follow and cancel jobs, tuning jobs and training pipelines of both APIs.

    JOB is a job's id or full name, its display name (of several the newest), the beginning of its id, or
    @last, which is the newest job.
    """


command.add_command(logs.command, "logs")
command.add_command(drill.report, "resume-report")
command.add_command(shell.command, "shell")
command.add_command(autopsy.command, "autopsy")
command.add_command(watch.command, "watch")
command.add_command(
    LazyCommand("retry", "trainshed.cli.jobs.retry:command", "Submit a job that is over once more.")
)
command.add_command(wait.wait, "wait")
command.add_command(wait.delete, "delete")


@command.command("list")
@click.option(
    "--state",
    metavar="STATE",
    shell_complete=completing("states"),
    help="Show only jobs in this state, such as RUNNING.",
)
@click.option(
    "--project", metavar="PROJECT", help="Project of the jobs, - for all. Default: the service's."
)
@click.option(
    "--parent", metavar="JOB", help="Show the jobs that this tuning job or pipeline made."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of jobs to show.",
)
@takes_form
@takes_endpoint
@click.pass_obj
def list_(
    session: Session,
    endpoint: Endpoint,
    *,
    state: str | None,
    project: str | None,
    parent: str | None,
    limit: int,
    form: str,
) -> None:
    """List the newest jobs, newest first.

    Jobs that tuning jobs and pipelines made are listed with --parent."""
    chosen = project or project_of(endpoint)
    client = endpoint.client(raw=form == "json")
    above = find_job(client, parent, chosen)["name"] if parent else None
    # For a table one more is requested, to know whether there are more.
    wanted = limit if form == "json" else limit + 1
    jobs = list_jobs(client, chosen, state=state, limit=wanted, parent=above, glance=True)
    if form == "json":
        print_data(jobs)
        return
    if not jobs:
        which = f"in state {state.upper()} " if state else ""
        where = f" --project {project}" if project and project != EVERY_PROJECT else ""
        submit = f"Submit one: trainshed run task.py{where}"
        advice = f"below {above}." if above else f"in project {chosen}. {submit}"
        click.echo(f"No jobs {which}{advice}", err=True)
        return
    views = [JobView.parse(job) for job in jobs[:limit]]
    for line in table_of(job_fields(views, session.now()), views, terminal_width()):
        click.echo(line)
    if len(jobs) > limit:
        click.echo(f"These are the newest {limit}; more of them: --limit NUMBER", err=True)


@command.command(short_help="Show everything about a job: state, waiting, failure, replicas.")
@takes_job
@takes_form
@takes_endpoint
@click.pass_obj
def describe(session: Session, endpoint: Endpoint, job: str, form: str) -> None:
    """Show everything about a job: state, why it waits or failed, replicas and restarts, trials."""
    client = endpoint.client(raw=form == "json")
    answer = find_job(client, job, endpoint.project)
    if form == "json":
        print_data(answer)
        return
    view = JobView.parse(answer)
    lines = description(
        view, session.now(), width=terminal_width(), resource=answer.get("resource")
    )
    for line in lines:
        click.echo(line)


@command.command()
@takes_job
@takes_form
@takes_endpoint
def timeline(endpoint: Endpoint, job: str, form: str) -> None:
    """Show what happened to a job, when and why.

    JSON has `entries`, the same by `attempts` with their replicas' incarnations and verdicts, and `counters`.
    """
    client = endpoint.client(raw=form == "json")
    uid = find_job(client, job, endpoint.project)["uid"]
    answer = client.get(job_path(uid, "/timeline"))
    if form == "json":
        print_data(answer)
        return
    timeline = read(answer, Timeline)
    lines = timeline_lines(list(map(TimelineView.of, timeline.entries)), timeline.attempts)
    for line in lines:
        click.echo(line)


@command.command()
@takes_jobs
@takes_actions
@takes_endpoint
def cancel(endpoint: Endpoint, *, actions: Actions, job: tuple[str, ...]) -> None:
    """Cancel one or more jobs. The others are cancelled even if one cannot be."""
    client = endpoint.client(raw=actions.as_data)

    def cancel_one(reference: str) -> None:
        view = JobView.parse(find_job(client, reference, endpoint.project))
        client.post(job_path(view.uid, ":cancel"), {})
        actions.did(
            *("job", view.id, "cancelling", f"{view.id}  is being cancelled"),
            record=lambda: client.get(job_path(view.uid)),
        )

    if not wait.each(job, cancel_one, actions):
        raise SystemExit(1)


def job_fields(
    jobs: Sequence[JobView], now: Nanos, zone: tzinfo | None = None
) -> tuple[Field, ...]:
    """Return the columns of a list of these jobs."""
    kinds = any(job.kind != "custom" for job in jobs)
    return (
        Field("JOB", "id"),
        *([Field("KIND", "kind")] if kinds else []),
        Field("NAME", "display_name", flexible=True),
        Field("STATE", "state.value", colour=lambda job: state_colour(job.state)),
        Field("CREATED", "created", lambda created: local_moment(created, zone)),
        Field("LASTED", None, lambda job: job.lasted(now), right=True),
        Field("PROGRESS", "progress", flexible=True, optional=True),
    )
