"""`trainshed jobs`: the command group, and its commands list, describe, timeline, cancel, wait and delete.
Other modules contain the other commands of the group."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Group, add_lazily
from trainshed.cli.connection import Endpoint, endpoint_options, project_of, project_option
from trainshed.cli.jobs.describe import description, timeline_lines
from trainshed.cli.jobs.follow import OutageWaiter
from trainshed.cli.jobs.references import (
    EVERY_PROJECT,
    find_job,
    job_argument,
    job_path,
    jobs_argument,
    list_jobs,
)
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import format_option, output_format, print_data, terminal_width
from trainshed.cli.text.colours import state_colour
from trainshed.cli.text.moments import TimeLimit, short_moment, since
from trainshed.cli.text.tables import Field, table_of
from trainshed.core.lifecycle.states import JobState
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.jobs import CancelledJobs
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.timeline import Timeline


@click.group(cls=Group)
def command() -> None:
    """List, describe, follow and cancel jobs, tuning jobs and training pipelines of both APIs.

    JOB is a job's ID, full name, display name (the newest job of this name), the beginning of its ID, or
    @last for the newest job.
    """


add_lazily(
    command,
    (
        ("logs", "trainshed.cli.jobs.watch:logs", "Print the log lines of a job in order of time."),
        ("retry", "trainshed.cli.jobs.retry", "Submit a finished job again."),
        ("shell", "trainshed.cli.jobs.shell", "Open a shell in a running replica."),
        ("forward", "trainshed.cli.jobs.shell:forward", "Forward a local port to a running replica."),
        ("autopsy", "trainshed.cli.jobs.shell:autopsy", "Inspect the files that a failed replica left."),
        ("watch", "trainshed.cli.jobs.watch", "Print the events of a job until it finishes."),
    ),
)  # fmt: skip


_ORDERS: Final[dict[str, Callable[[JobView, Nanos], Any]]] = {
    "name": lambda job, _: job.display_name.lower(),
    "user": lambda job, _: job.user,
    "state": lambda job, _: job.state.value,
    "lasted": lambda job, now: job.started_at and job.started_at - (job.ended_at or now),
}


@command.command("list")
@click.option("--state", metavar="STATE", help="Show only jobs in this state, such as RUNNING.")
@click.option("--mine", "user", flag_value="me", help="Show only your own jobs.")
@click.option("--user", metavar="EMAIL", help="Show only the jobs of this user.")
@click.option(
    "--name",
    "--search",
    "search",
    metavar="TEXT",
    help="Show only jobs with TEXT in their name, ID or a label.",
)
@click.option("--label", metavar="KEY=VALUE", multiple=True, help="Show only jobs with this label.")
@click.option(
    "--since",
    metavar="TIME",
    callback=since,
    help="Show only jobs created since this time, such as 2026-11-20T06:05, or since 2h (ago).",
)
@click.option(
    "--metric",
    metavar="BOUND",
    multiple=True,
    help="Show only jobs whose latest metric value meets this condition: 'val_accuracy>0.9'.",
)
@click.option(
    "--project", metavar="PROJECT", help="Project of the jobs. Default: the service's default project."
)
@click.option("--all", "project", flag_value=EVERY_PROJECT, help="Show the jobs of all projects.")
@click.option("--parent", metavar="JOB", help="Show the jobs that this tuning job or pipeline created.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of jobs to show.",
)
@click.option(
    "--sort",
    type=click.Choice(list(_ORDERS)),
    help="Sort the shown jobs by this column. Default: newest first.",
)
@format_option
@endpoint_options
@click.pass_obj
def list_(
    now: Callable[[], Nanos],
    endpoint: Endpoint,
    *,
    project: str | None,
    parent: str | None,
    limit: int,
    sort: str | None,
    form: str,
    **filters: Any,
) -> None:
    """List the newest jobs, newest first. Use --parent for the jobs that a tuning job or pipeline created."""
    chosen = project or project_of(endpoint)
    client = endpoint.client(raw=form == "json")
    above = find_job(client, parent, chosen)["name"] if parent else None

    # Request one job more than the table shows, to detect whether more jobs exist.
    wanted = limit if form == "json" else limit + 1
    where = None if above else chosen
    jobs = list_jobs(client, where, limit=wanted, parent=above, glance="true", **filters)
    jobs, more = jobs[:limit], jobs[limit:]
    if sort:
        jobs.sort(key=lambda job: _ORDERS[sort](JobView.parse(job), now()))
    if form == "json":
        print_data(jobs)
        return
    if not jobs:
        which = "No such jobs" if any(filters.values()) else "No jobs"
        option = f" --project {project}" if project and project != EVERY_PROJECT else ""
        advice = f"in project {chosen}. Submit one: trainshed run task.py{option}"
        click.echo(f"{which} {f'below {above}.' if above else advice}", err=True)
        return
    views = [JobView.parse(job) for job in jobs]
    for line in table_of(job_fields(views, now()), views, terminal_width()):
        click.echo(line)
    if more:
        click.echo(f"These are the newest {limit}. To show more: --limit NUMBER", err=True)


@command.command(short_help="Show all details of a job: state, waiting, failure, replicas.")
@job_argument
@format_option
@endpoint_options
@click.pass_obj
def describe(now: Callable[[], Nanos], endpoint: Endpoint, job: str, form: str) -> None:
    """Show all details of a job: state, reason why it waits or failed, replicas, restarts, trials."""
    client = endpoint.client(raw=form == "json")
    answer = find_job(client, job, endpoint.project)
    if form == "json":
        print_data(answer)
        return
    view = JobView.parse(answer)
    for line in description(view, now(), terminal_width(), answer.get("resource") or {}):
        click.echo(line)


@command.command()
@job_argument
@format_option
@endpoint_options
def timeline(endpoint: Endpoint, job: str, form: str) -> None:
    """Show the events of a job, with their times and causes."""
    client = endpoint.client(raw=form == "json")
    uid = find_job(client, job, endpoint.project)["uid"]
    answer = client.get(job_path(uid, "/timeline"))
    if form == "json":
        print_data(answer)
        return
    for line in timeline_lines(read(answer, Timeline).entries, terminal_width()):
        click.echo(line)


@command.command()
@click.argument("job", nargs=-1)
@click.option("--user", metavar="EMAIL", help="Cancel all unfinished jobs of this user.")
@click.option("--all", "every", is_flag=True, help="Cancel all unfinished jobs of the project.")
@project_option("Project of the jobs; - with --user means all projects.")
@endpoint_options
def cancel(endpoint: Endpoint, *, job: tuple[str, ...], user: str | None, every: bool) -> None:
    """Cancel one or more jobs, or all jobs of a user or a project. If one job cannot be cancelled, the others
    are still cancelled."""
    if bool(job) + bool(user) + every != 1:
        raise click.UsageError(
            "It is not clear which jobs to cancel. Specify one or more jobs, --user, or --all."
        )
    if user or every:
        wanted = {"project": project_of(endpoint), "user": user or ""}
        answer = read(endpoint.client().post("/trainshed/v1/jobs:cancel", wanted), CancelledJobs)
        for name in answer.jobs:
            click.echo(f"{name}  is being cancelled")
        if not answer.jobs:
            click.echo("There are no unfinished jobs of this kind.", err=True)
        return
    for_all(
        endpoint, job, lambda client, uid: client.post(job_path(uid, ":cancel"), {}), "is being cancelled"
    )


def job_fields(jobs: Sequence[JobView], now: Nanos) -> tuple[Field, ...]:
    """Return the columns of a table of these jobs."""
    kinds = any(job.kind != "custom" for job in jobs)
    projects = len({job.project for job in jobs}) > 1
    people = len({job.user for job in jobs}) > 1
    return (
        Field("JOB", "job_id"),
        *([Field("KIND", "kind", spare=True)] if kinds else []),
        Field("NAME", "display_name", flexible=True),
        *([Field("PROJECT", "project", flexible=True, spare=True)] if projects else []),
        *([Field("BY", "user", lambda user: user.partition("@")[0], flexible=True)] if people else []),
        Field("STATE", "state.value", colour=lambda job: state_colour(job.state)),
        Field("CREATED", "created_at", lambda at: short_moment(at, now)),
        Field("LASTED", None, lambda job: job.running_time(now), right=True),
        Field("PROGRESS", "progress_words", flexible=True, optional=True, spare=True),
    )


_TIMEOUT_STATUS = 124
"""Exit status after --timeout. It is the same as for the command `timeout`."""
_POLL_INTERVAL = 0.5
"""Seconds between two polls of the jobs."""
_EXIT_STATUS = {JobState.SUCCEEDED: 0, JobState.FAILED: 1, JobState.CANCELLED: 2}
"""Exit status of `wait`, by the final state of a job."""


@command.command()
@jobs_argument
@click.option(
    "--timeout",
    type=TimeLimit(),
    metavar="TIME",
    help="Stop waiting after this time, such as 45s or 2h. Default: wait until all jobs finish.",
)
@output_format("text", "Output as text, or the finished jobs as JSON or YAML for programs.")
@endpoint_options
def wait(endpoint: Endpoint, job: tuple[str, ...], timeout: float | None, form: str) -> None:
    """Wait until jobs finish, and print the final state of each.

    The exit status is 0 if all jobs succeeded, 1 if one failed, 2 if one was cancelled and none failed, 124
    after --timeout, 130 after Ctrl-C. The jobs continue in any case.
    """
    client = endpoint.client(raw=form == "json")
    jobs = [JobView.parse(find_job(client, reference, endpoint.project)) for reference in job]
    try:
        ended = _wait_for_end(client, jobs, timeout)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    overs = [JobView.parse(ended[view.uid]) for view in jobs if view.uid in ended]
    if form == "json":
        print_data([ended[over.uid] for over in overs])
    else:
        for over in overs:
            state = click.style(over.state.value, fg=state_colour(over.state))
            click.echo(f"{over.job_id}  {state}  {over.display_name}".rstrip())
    if late := [view.job_id for view in jobs if view.uid not in ended]:
        click.echo(f"Not finished after {timeout:g} s: {', '.join(late)}", err=True)
        raise SystemExit(_TIMEOUT_STATUS)
    results = {_EXIT_STATUS[over.state] for over in overs}
    # If the jobs have different results, the status of a failed job (1) takes precedence over the status of a
    # cancelled job (2).
    raise SystemExit(1 if 1 in results else max(results))


def _wait_for_end(
    client: Client, jobs: Sequence[JobView], timeout: float | None
) -> dict[str, dict[str, Any]]:
    """Return the descriptions of the finished jobs, when all have finished or after the timeout. Raises
    RequestError, Unreachable."""
    waiter = OutageWaiter(client, f"trainshed jobs wait {jobs[0].job_id}")
    began, ended = time.monotonic(), dict[str, dict[str, Any]]()
    while left := [job for job in jobs if job.uid not in ended]:
        looked = time.monotonic()
        with waiter.tolerate():
            for job in left:
                answer = client.get(job_path(job.uid))
                if JobView.parse(answer).state.is_final:
                    ended[job.uid] = answer
        if timeout is not None and time.monotonic() - began > timeout:
            break
        if len(ended) < len(jobs):
            time.sleep(max(_POLL_INTERVAL, time.monotonic() - looked))
    return ended


@command.command()
@jobs_argument
@endpoint_options
def delete(endpoint: Endpoint, *, job: tuple[str, ...]) -> None:
    """Delete finished jobs, with their logs, curves and autopsies. Their files in buckets are not deleted. If
    one job cannot be deleted, the others are still deleted."""
    for_all(endpoint, job, lambda client, uid: client.delete(job_path(uid)), "is deleted")


def for_all(
    endpoint: Endpoint,
    references: tuple[str, ...],
    act: Callable[[Client, str], object],
    outcome: str,
    find: Callable[[Client, str, str], dict[str, Any]] = find_job,
) -> None:
    """Find each job with `find`, and call `act` with its UID. For each job, print its ID with `outcome`, or
    print the error. After an error, continue with the next job. Raises SystemExit at the end if there was an
    error."""
    client, well = endpoint.client(), True
    for reference in references:
        try:
            view = JobView.parse(find(client, reference, endpoint.project))
            act(client, view.uid)
            click.echo(f"{view.job_id}  {outcome}")
        except click.ClickException as failure:
            text = failure.format_message()
            # Add the user's reference to the message, unless the message already contains it.
            click.echo(f"Error: {text if reference in text else f'{reference}: {text}'}", err=True)
            well = False
    if not well:
        raise SystemExit(1)
