"""`trainshed jobs`: the group, with list, describe, timeline and cancel. Its other commands have modules of
their own."""

from datetime import tzinfo

import click

from trainshed.cli.actions import Actions, takes_actions
from trainshed.cli.commands import LazyCommand, Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.groups import Group
from trainshed.cli.jobs import autopsy, curves, drill, logs, shell, usage, wait, watch
from trainshed.cli.jobs.describe import (
    IncarnationView,
    counter_lines,
    description,
    incarnation_table,
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
from trainshed.cli.jobs.submitted import SubmittedView
from trainshed.cli.jobs.views import JobView, TimelineView
from trainshed.cli.output_format import print_data, takes_form, terminal_width
from trainshed.cli.text.colours import faint, state_colour
from trainshed.cli.text.moments import local_moment
from trainshed.cli.text.tables import Column, joined, table
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.timeline import Timeline


@click.group(cls=Group)
def command() -> None:
    """List, describe, follow and cancel jobs, tuning jobs and training pipelines of both APIs.

    JOB is a job's id or full name, its display name (of several the newest), the beginning of its id, or
    @last, which is the newest job.
    """


_CLONE = "trainshed.cli.jobs.clone"
command.add_command(logs.command, "logs")
command.add_command(drill.report, "resume-report")
command.add_command(shell.command, "shell")
command.add_command(autopsy.command, "autopsy")
command.add_command(watch.command, "watch")
command.add_command(
    LazyCommand("clone", f"{_CLONE}:clone", "Submit a job once more, with changes.")
)
command.add_command(
    LazyCommand("retry", f"{_CLONE}:retry", "Submit a job that failed once more, as it was.")
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
    asked = limit if form == "json" else limit + 1
    jobs = list_jobs(client, chosen, state=state, limit=asked, parent=above, glance=True)
    if form == "json":
        print_data(jobs)
        return
    if not jobs:
        which = f"in state {state.upper()} " if state else ""
        named = f" --project {project}" if project and project != EVERY_PROJECT else ""
        submit = f"Submit one: trainshed run task.py{named}"
        advice = f"below {above}." if above else f"in project {chosen}. {submit}"
        click.echo(f"No jobs {which}{advice}", err=True)
        return
    views = [JobView.parse(job) for job in jobs[:limit]]
    for line in job_table(views, session.now(), terminal_width()):
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
    submitted = SubmittedView.of(answer.get("resource") or {})
    lines = description(view, session.now(), width=terminal_width(), submitted=submitted)
    about = [*curves.describe_lines(client, view), *usage.describe_lines(client, view)]
    for line in [*lines, *about]:
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
    lives = incarnation_table(IncarnationView.of_all(timeline.attempts))
    for line in [*lines, *([""] if lives else []), *lives, *counter_lines(timeline.counters)]:
        click.echo(line)


@command.command()
@takes_jobs
@takes_actions
@takes_endpoint
def cancel(endpoint: Endpoint, *, actions: Actions, job: tuple[str, ...]) -> None:
    """Cancel one or more jobs. The others are cancelled even if one cannot be."""
    client = endpoint.client(raw=actions.as_data)

    def cancel_one(reference: str) -> None:
        found = JobView.parse(find_job(client, reference, endpoint.project))
        client.post(job_path(found.uid, ":cancel"), {})
        actions.did(
            *("job", found.id, "cancelling", f"{found.id}  is being cancelled"),
            record=lambda: client.get(job_path(found.uid)),
        )

    if not wait.each(job, cancel_one, actions):
        raise SystemExit(1)


def job_table(
    jobs: list[JobView], now: Nanos, width: int | None, zone: tzinfo | None = None
) -> list[str]:
    """Return the lines of a table of jobs. Kind and progress have columns only if a job is of another kind
    than custom, or has progress. `width`: maximum characters per line, None = unlimited."""
    kinds = any(job.kind != "custom" for job in jobs)
    progress = any(job.progress for job in jobs)
    columns = (
        Column("JOB"),
        *([Column("KIND")] if kinds else []),
        Column("NAME", flexible=True),
        Column("STATE"),
        Column("CREATED"),
        Column("LASTED", right=True),
        *([Column("PROGRESS", flexible=True)] if progress else []),
    )
    rows = [
        (
            job.id,
            *([job.kind] if kinds else []),
            job.display_name or "–",
            job.state.value,
            local_moment(job.created, zone),
            job.lasted(now),
            *([job.progress or "–"] if progress else []),
        )
        for job in jobs
    ]
    header, *cells = table(columns, rows, width)
    lines = [faint(joined(header))]
    for job, row in zip(jobs, cells, strict=True):
        row[2 + kinds] = click.style(row[2 + kinds], fg=state_colour(job.state))
        lines.append(joined(row))
    return lines
