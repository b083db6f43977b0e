"""Finds the job that a person means: by id, by full name, or by the beginning of an id."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.jobs.views import JobView
from trainshed.core.lifecycle.states import JobState

_JOBS = "/trainshed/v1/jobs"
_LOOKED_THROUGH = 500
"""Newest jobs among which the beginning of an id is looked for."""
_NAMED = 5
_PAGE = 500
"""The largest page that the service gives."""
EVERY_PROJECT = "-"


def job_path(reference: str, rest: str = "") -> str:
    """The path of a job, and of what is below it (`/logs`, `:cancel`)."""
    return f"{_JOBS}/{quote(reference, safe='')}{rest}"


def list_jobs(
    client: Client,
    project: str,
    *,
    state: str | None = None,
    limit: int | None = 20,
    parent: str | None = None,
) -> list[dict[str, Any]]:
    """Summaries of a project's newest jobs of both APIs, newest first. `limit` None: all of them. `parent`:
    the full name of a work, whose own jobs are listed in place of what clients made.

    Raises Refused, Unreachable.
    """
    jobs: list[dict[str, Any]] = []
    token: str | None = None
    while limit is None or len(jobs) < limit:
        wanted = _PAGE if limit is None else min(_PAGE, limit - len(jobs))
        # A page can be short and still have another one behind it.
        page = client.get(
            _JOBS,
            project=None if parent else project,
            parent=parent,
            state=state,
            limit=wanted,
            pageToken=token,
        )
        jobs += page["jobs"]
        token = page["nextPageToken"]
        if not token:
            break
    return jobs[:limit]


def live_jobs(client: Client, project: str = EVERY_PROJECT) -> list[JobView]:
    """Every job of a project, or of all, that is not over. Raises Refused, Unreachable."""
    return [
        JobView.parse(job)
        for state in JobState
        if not state.is_final
        for job in list_jobs(client, project, state=state.value, limit=None)
    ]


def find_job(client: Client, reference: str, project: str) -> dict[str, Any]:
    """The description of the job that `reference` means; beginnings of ids are looked for in `project`.

    Raises click.ClickException that names near misses if it means none, and the choices if it means several.
    """
    try:
        return client.get(job_path(reference))
    except Refused as refused:
        if refused.status != 404 or "/" in reference or not project:
            raise
    jobs = list_jobs(client, project, limit=_LOOKED_THROUGH)
    return client.get(job_path(meant(reference, [JobView.parse(job) for job in jobs]).uid))


def meant(reference: str, jobs: Sequence[JobView]) -> JobView:
    """The one of `jobs` whose id begins with `reference`.

    Raises click.ClickException if there is none, with the nearest ones, or more than one, with their names.
    """
    matches = [job for job in jobs if job.id.startswith(reference)] if reference else []
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise click.ClickException(
            f"{len(matches)} jobs have an id that begins with {reference!r}:{_listed(matches)}\n"
            "Give more of the id, or a full name."
        )
    raise click.ClickException(f"There is no job {reference!r}.{_near(reference, jobs)}")


def _near(reference: str, jobs: Sequence[JobView]) -> str:
    if not jobs:
        return " No job was submitted yet; try: trainshed demo"
    # Slow to load, and needed for a mistake only.
    import difflib

    words = {job.id: job for job in jobs} | {job.display_name: job for job in jobs}
    close = difflib.get_close_matches(reference, list(words), n=_NAMED)
    near = list({words[word].uid: words[word] for word in close}.values())
    if near:
        return f" Did you mean:{_listed(near)}"
    return " The list of jobs: trainshed jobs list"


def _listed(jobs: Sequence[JobView]) -> str:
    lines = [
        f"\n  {job.id}  {job.display_name or job.name}  {job.state.value}" for job in jobs[:_NAMED]
    ]
    more = f"\n  … and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    return "".join(lines) + more
