"""Finds a user's job by ID, full name, display name, beginning of an ID, or `@last`. Also lists jobs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import click

from trainshed.cli.client import Client, RequestError
from trainshed.cli.connection import PROJECT, project_option
from trainshed.cli.jobs.views import JobView
from trainshed.core.lifecycle.states import JobState
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read

R = TypeVar("R")
_JOBS = "/trainshed/v1/jobs"
_SEARCH_LIMIT = 500
"""Maximum number of jobs whose IDs are compared with a reference. They are results of the service's search:
jobs whose name, ID or label contains the reference."""
_NAMESAKE_LIMIT = 100
"""Maximum number of jobs with the same display name that are listed."""
_MAX_SUGGESTIONS = 5
"""Maximum number of jobs in an error message."""
_PAGE = 500
"""The largest page size that the service supports."""
EVERY_PROJECT = "-"
"""The value of `project` that selects all projects."""
LAST = "@last"
"""The reference of the newest job."""
_NO_JOB = "No job exists yet. Submit one: trainshed run task.py"


def job_argument(command: Callable[..., R], nargs: int = 1) -> Callable[..., R]:
    """Add the argument for one job and the option `--project` to a command."""
    option = project_option("Project of a job specified by its name.")
    return click.argument("job", nargs=nargs, required=True)(option(command))


def jobs_argument(command: Callable[..., R]) -> Callable[..., R]:
    """Add the argument for one or more jobs and the option `--project` to a command."""
    return job_argument(command, nargs=-1)


def job_path(reference: str, rest: str = "") -> str:
    """Return the URL path of a job, or of a part of it, such as `/logs` or `:cancel`."""
    return f"{_JOBS}/{quote(reference, safe='')}{rest}"


def list_jobs(
    client: Client, project: str | None, *, limit: int | None, **query: str | Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return summaries of a project's newest jobs, newest first.

    `limit`: None = all jobs. `query`: further parameters of the list method. Raises RequestError,
    Unreachable.
    """
    jobs: list[dict[str, Any]] = []
    size = min(_PAGE, limit or _PAGE)
    # Request further pages until `limit` is reached, because a page can have fewer than `size` jobs even if
    # another page follows.
    for page in client.pages(_JOBS, project=project, limit=size, **query):
        jobs += page["jobs"]
        if limit is not None and len(jobs) >= limit:
            break
    return jobs[:limit]


def live_jobs(client: Client) -> list[JobView]:
    """Return all unfinished jobs of all projects. Raises RequestError, Unreachable."""
    # One request for all states. With one request per state, a job whose state changes could be listed twice
    # or not at all.
    live = ",".join(state.value for state in JobState if not state.is_final)
    return [JobView.parse(job) for job in list_jobs(client, EVERY_PROJECT, state=live, limit=None)]


def find_job(client: Client, reference: str, project: str) -> dict[str, Any]:
    """Return the description of the job that a reference identifies. If the reference is `@last` or a display
    name, print the ID of the chosen job to standard error.

    `reference` is a full name, or the ID of a job in the project of the option --project (default: any
    project). Otherwise it is one of these in `project` ("" = the service's default): `@last`, a display name,
    or the beginning of an ID. Raises click.ClickException: with similar jobs if none matches, or with the
    matching jobs if the reference is ambiguous.
    """
    only: str | None = click.get_current_context().meta.get(PROJECT)
    if reference != LAST:
        try:
            job: dict[str, Any] = client.get(job_path(reference))
            if "/" in reference or only in (None, "", EVERY_PROJECT, job["project"]):
                return job
        except RequestError as refused:
            # Continue if the reference may be a display name. The service returns status 404 for an unknown
            # ID (403 to callers with rights in only some projects), and 400 with violations for an invalid
            # ID. Status 400 without violations is an error: the job's record is unreadable.
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
        jobs = list_jobs(client, project, limit=_NAMESAKE_LIMIT, displayName=reference)
        if not any(job["displayName"] == reference for job in jobs):
            # The reference may be the beginning of an ID.
            jobs = list_jobs(client, project, limit=_SEARCH_LIMIT, search=reference)
        view, choice = match_reference(reference, [JobView.parse(job) for job in jobs])
    if choice:
        click.echo(click.style(choice, fg="bright_black"), err=True)
    return client.get(job_path(view.uid))


def match_reference(reference: str, jobs: Sequence[JobView]) -> tuple[JobView, str | None]:
    """Return the job of `jobs` (newest first) that matches, and a message about the choice, or None.

    It is the newest job with this display name, otherwise the job whose ID begins with the reference. Raises
    click.ClickException: with similar jobs if none matches, or with the matching jobs if the reference is
    ambiguous.
    """
    if namesakes := [job for job in jobs if reference and job.display_name == reference]:
        count = f"{len(namesakes)}{' or more' if len(namesakes) >= _NAMESAKE_LIMIT else ''}"
        several = f", the newest of {count}" if len(namesakes) > 1 else ""
        return namesakes[0], f"{reference} is {namesakes[0].job_id}{several}"
    matches = [job for job in jobs if job.job_id.startswith(reference)] if reference else []
    matches = [job for job in matches if job.job_id == reference] or matches
    if len(matches) == 1:
        return matches[0], None
    if matches:
        raise click.ClickException(
            f"{len(matches)} jobs have an ID that begins with {reference!r}:{_job_lines(matches)}\nSpecify "
            "more of the ID, or a name."
        )
    near = " It may be deleted, or be in another project. List all projects: trainshed jobs list --all"
    if inside := [job for job in jobs if reference and reference in job.display_name]:
        near = f" Did you mean:{_job_lines(inside)}"
    raise click.ClickException(f"Job {reference!r} does not exist.{near}")


def _job_lines(jobs: Sequence[JobView]) -> str:
    lines = [
        f"\n  {job.job_id}  {job.display_name or job.name}  {job.state.value}"
        for job in jobs[:_MAX_SUGGESTIONS]
    ]
    more = f"\n  … and {len(jobs) - _MAX_SUGGESTIONS} more" if len(jobs) > _MAX_SUGGESTIONS else ""
    return "".join(lines) + more
