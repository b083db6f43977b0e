"""Finds the job that a person means: by id, name or display name, by the beginning of an id, or as the
newest."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.connection import Endpoint, answering
from trainshed.cli.jobs.views import JobView
from trainshed.core.lifecycle.states import JobState
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read

_JOBS = "/trainshed/v1/jobs"
_LOOKED_THROUGH = 500
"""Newest jobs among which the beginning of an id is looked for first, and near misses. Further jobs cost a
search of all; a display name is found among all at once."""
_SAME_NAME = 100
"""Jobs of one display name of which the newest is taken."""
_NAMED = 5
_PAGE = 500
"""The largest page that the service gives."""
_WHOLE_ID = 18
"""Digits of an id that nobody would leave incomplete."""
EVERY_PROJECT = "-"
LAST = "@last"
"""The newest job."""
_NO_JOB = "No job was submitted yet. Submit one: trainshed run task.py, or trainshed demo"


def completing(
    what: str, module: str = "trainshed.cli.completion"
) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What a shell offers: `jobs`, `states` and the like of a module, which is loaded when somebody asks."""

    def complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[Any]:
        import importlib

        return getattr(importlib.import_module(module), what)(context, parameter, typed)

    return complete


takes_job = click.argument("job", shell_complete=completing("jobs"))
"""Of a command about one job."""
takes_jobs = click.argument("job", nargs=-1, required=True, shell_complete=completing("jobs"))
"""Of a command about one or more of them."""


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
    named: str | None = None,
    search: str | None = None,
    glance: bool = False,
) -> list[dict[str, Any]]:
    """Summaries of a project's newest jobs of both APIs, newest first. `limit` None: all of them. `parent`:
    the full name of a work, whose own jobs are listed in place of what clients made. `state`: one, or several
    with commas between. `named`: only those with this display name. `search`: with this in the name, the id
    or a label. `glance`: each with how it is just now.

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
            displayName=named,
            search=search,
            limit=wanted,
            pageToken=token,
            glance="true" if glance else None,
        )
        jobs += page["jobs"]
        token = page["nextPageToken"]
        if not token:
            break
    return jobs[:limit]


def live_jobs(client: Client, project: str = EVERY_PROJECT) -> list[JobView]:
    """Every job of a project, or of all, that is not over, once. Raises Refused, Unreachable."""
    # In one list: of a list for each state, a job that changes its state meanwhile is in two, or in none.
    live = ",".join(state.value for state in JobState if not state.is_final)
    return [JobView.parse(job) for job in list_jobs(client, project, state=live, limit=None)]


def find_job(client: Client, reference: str, project: str) -> dict[str, Any]:
    """The description of the job that `reference` means: an id or full name, else, of `project` ("" = the
    service's own), `@last`, a display name, or the beginning of an id. Says on stderr which one a name has
    meant.

    Raises click.ClickException that names near misses if it means none, and the choices if it means several.
    """
    unreadable: Refused | None = None
    if reference != LAST:
        try:
            return client.get(job_path(reference))
        except Refused as refused:
            # What is no id may be a display name, in which anything may stand. Without a field that is wrong
            # it is an id, of a job whose record cannot be read.
            is_name = refused.status == 404 or (refused.status == 400 and refused.violations)
            if not is_name or "/" in reference:
                raise
            unreadable = refused if refused.status == 400 and not refused.violations else None
    project = project or read(client.get("/trainshed/v1/status"), Status).project
    if reference == LAST:
        newest = [JobView.parse(job) for job in list_jobs(client, project, limit=1)]
        if not newest:
            raise click.ClickException(_NO_JOB)
        job, told = newest[0], f"{LAST} is {newest[0].id}  {newest[0].display_name}".rstrip()
    else:

        def begins(job: dict[str, Any]) -> bool:
            return job["jobId"].startswith(reference)

        jobs = list_jobs(client, project, limit=_SAME_NAME, named=reference)
        if not any(job["displayName"] == reference for job in jobs):
            # It may be the beginning of an id, most likely of a new one.
            jobs = list_jobs(client, project, limit=_LOOKED_THROUGH)
            if len(jobs) == _LOOKED_THROUGH and not any(begins(job) for job in jobs):
                older = list_jobs(client, project, limit=None, search=reference)
                jobs = [job for job in older if begins(job)] or jobs
        try:
            job, told = meant(reference, [JobView.parse(job) for job in jobs])
        except click.ClickException:
            if unreadable is not None:
                raise unreadable from None
            raise
    if told:
        click.echo(click.style(told, fg="bright_black"), err=True)
    return client.get(job_path(job.uid))


def meant(reference: str, jobs: Sequence[JobView]) -> tuple[JobView, str]:
    """The one of `jobs` (newest first) that has this display name, or whose id begins so; and what to tell
    of the choice, "" = nothing.

    Raises click.ClickException if there is none, with the nearest ones, or more than one, with their names.
    """
    if named := [job for job in jobs if reference and job.display_name == reference]:
        count = f"{len(named)}{' or more' if len(named) >= _SAME_NAME else ''}"
        several = f", the newest of {count}" if len(named) > 1 else ""
        return named[0], f"{reference} is {named[0].id}{several}"
    matches = [job for job in jobs if job.id.startswith(reference)] if reference else []
    if len(matches) == 1:
        return matches[0], ""
    if matches:
        raise click.ClickException(
            f"{len(matches)} jobs have an id that begins with {reference!r}:{_listed(matches)}\n"
            "Give more of the id, or a name."
        )
    raise click.ClickException(f"There is no job {reference!r}.{_near(reference, jobs)}")


def project_of(endpoint: Endpoint) -> str:
    """The project whose jobs are meant where none is named: the environment's, else the service's own.

    Raises click.UsageError if it has none; Refused, Unreachable."""
    project = endpoint.project or answering(endpoint).project
    if not project:
        raise click.UsageError(
            "Which project's jobs? The service has none of its own: give --project, - for all."
        )
    return project


def _near(reference: str, jobs: Sequence[JobView]) -> str:
    if reference.isdecimal() and len(reference) >= _WHOLE_ID:
        # Ids of jobs that have nothing to do with each other are alike.
        return " It may have been deleted. The list of jobs: trainshed jobs list"
    if not jobs:
        return f" {_NO_JOB}"
    if inside := [job for job in jobs if reference and reference in job.display_name]:
        return f" Did you mean:{_listed(inside)}"
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
