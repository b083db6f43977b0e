"""Finds the job that a user means: by id, full name, display name or the beginning of an id, or the newest;
lists jobs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.connection import PROJECT, takes_project
from trainshed.cli.jobs.views import JobView
from trainshed.core.lifecycle.states import JobState
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read

R = TypeVar("R")
_JOBS = "/trainshed/v1/jobs"
_LOOKED_THROUGH = 500
"""Newest jobs with a text in their name, id or a label that are searched for the beginning of an id."""
_SAME_NAME = 100
"""Maximum jobs of one display name that are listed; the newest is taken."""
_MOST_LISTED = 5
"""Maximum jobs that an error lists."""
_PAGE = 500
"""The largest page that the service returns."""
EVERY_PROJECT = "-"
"""Stands for all projects."""
LAST = "@last"
"""Stands for the newest job."""
_NO_JOB = "No job was submitted yet. Submit one: trainshed run task.py"


def takes_job(command: Callable[..., R], nargs: int = 1) -> Callable[..., R]:
    """Add the argument of a command about one job, and the option that says in which project it is looked
    for."""
    option = takes_project("Project of a job that is named by its name.")
    return click.argument("job", nargs=nargs, required=True)(option(command))


def takes_jobs(command: Callable[..., R]) -> Callable[..., R]:
    """Add the same for one or more jobs."""
    return takes_job(command, nargs=-1)


def job_path(reference: str, rest: str = "") -> str:
    """Return the path of a job, or of what `rest` names of it (`/logs`, `:cancel`)."""
    return f"{_JOBS}/{quote(reference, safe='')}{rest}"


def list_jobs(
    client: Client, project: str | None, *, limit: int | None, **query: str | Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return summaries of a project's newest jobs of both APIs, newest first. `limit`: None = all jobs.
    `query`: what else the service's list takes. Raises Refused, Unreachable."""
    jobs: list[dict[str, Any]] = []
    size = min(_PAGE, limit or _PAGE)
    # A page can be short although another one follows.
    for page in client.pages(_JOBS, project=project, limit=size, **query):
        jobs += page["jobs"]
        if limit is not None and len(jobs) >= limit:
            break
    return jobs[:limit]


def live_jobs(client: Client) -> list[JobView]:
    """Return every job of all projects that is not over. Raises Refused, Unreachable."""
    # One list of all states: in a list for each state, a job that changes its state meanwhile could be
    # twice, or not at all.
    live = ",".join(state.value for state in JobState if not state.is_final)
    return [JobView.parse(job) for job in list_jobs(client, EVERY_PROJECT, state=live, limit=None)]


def find_job(client: Client, reference: str, project: str) -> dict[str, Any]:
    """Return the description of the job that `reference` means: by full name or id, the latter in the project
    of --project; else, in `project` ("" = the service's default), `@last`, a display name, or the beginning
    of an id. Prints to standard error which job a display name or `@last` means.

    Raises click.ClickException, with near misses if no job is meant, and with the choices if several are.
    """
    only: str | None = click.get_current_context().meta.get(PROJECT)
    if reference != LAST:
        try:
            job: dict[str, Any] = client.get(job_path(reference))
            if "/" in reference or only in (None, "", EVERY_PROJECT, job["project"]):
                return job
        except Refused as refused:
            # A text that is no id may be a display name, which may have any characters. A refusal with
            # status 400 and no violations means that it is the id of a job whose record cannot be read.
            # Who has rights in some projects only is refused what is no job there.
            is_name = refused.status in (403, 404) or (refused.status == 400 and refused.violations)
            if not is_name or "/" in reference:
                raise
    project = project or read(client.get("/trainshed/v1/status"), Status).project
    if reference == LAST:
        newest = [JobView.parse(job) for job in list_jobs(client, project, limit=1)]
        if not newest:
            raise click.ClickException(_NO_JOB)
        view, choice = newest[0], f"{LAST} is {newest[0].job_id}  {newest[0].display_name}".rstrip()
    else:
        jobs = list_jobs(client, project, limit=_SAME_NAME, displayName=reference)
        if not any(job["displayName"] == reference for job in jobs):
            # It may be the beginning of an id.
            jobs = list_jobs(client, project, limit=_LOOKED_THROUGH, search=reference)
        view, choice = meant(reference, [JobView.parse(job) for job in jobs])
    if choice:
        click.echo(click.style(choice, fg="bright_black"), err=True)
    return client.get(job_path(view.uid))


def meant(reference: str, jobs: Sequence[JobView]) -> tuple[JobView, str | None]:
    """Return the job of `jobs` (newest first) that is meant: the newest with this display name, else the one
    whose id begins with it; and the text that tells the user of the choice, None = none.

    Raises click.ClickException, with near misses if no job is meant, and with the choices if several are.
    """
    if namesakes := [job for job in jobs if reference and job.display_name == reference]:
        count = f"{len(namesakes)}{' or more' if len(namesakes) >= _SAME_NAME else ''}"
        several = f", the newest of {count}" if len(namesakes) > 1 else ""
        return namesakes[0], f"{reference} is {namesakes[0].job_id}{several}"
    matches = [job for job in jobs if job.job_id.startswith(reference)] if reference else []
    matches = [job for job in matches if job.job_id == reference] or matches
    if len(matches) == 1:
        return matches[0], None
    if matches:
        raise click.ClickException(
            f"{len(matches)} jobs have an id that begins with {reference!r}:{_listed(matches)}\n"
            "Give more of the id, or a name."
        )
    near = " It may be deleted, or in another project. List all projects: trainshed jobs list --all"
    if inside := [job for job in jobs if reference and reference in job.display_name]:
        near = f" Did you mean:{_listed(inside)}"
    raise click.ClickException(f"There is no job {reference!r}.{near}")


def _listed(jobs: Sequence[JobView]) -> str:
    lines = [
        f"\n  {job.job_id}  {job.display_name or job.name}  {job.state.value}"
        for job in jobs[:_MOST_LISTED]
    ]
    more = f"\n  … and {len(jobs) - _MOST_LISTED} more" if len(jobs) > _MOST_LISTED else ""
    return "".join(lines) + more
