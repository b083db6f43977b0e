"""`trainshed jobs retry`: submits an existing job again."""

from collections.abc import Callable
from typing import Any

import click

from trainshed.cli.connection import Endpoint, endpoint_options
from trainshed.cli.jobs.references import find_job, job_argument, job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import output_format, print_data
from trainshed.cli.run import sending
from trainshed.cli.run.command import follow_on
from trainshed.cli.run.job_files import JobFile
from trainshed.core.copies import copy_of
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.units import Nanos


@click.command()
@job_argument
@click.option(
    "--watch/--detach",
    "follow",
    default=None,
    help="Whether to follow the job until it finishes. Default: follow on a terminal.",
)
@output_format("text", "Output as text, or JSON or YAML for programs.")
@endpoint_options
@click.pass_obj
def command(
    now: Callable[[], Nanos], endpoint: Endpoint, *, job: str, follow: bool | None, form: str
) -> None:
    """Submit a finished job again, unchanged. To change it, use its page in the console. The new job writes
    to the old job's directory, so that a program with checkpoints resumes from them."""
    client = endpoint.client(raw=True)
    old: dict[str, Any] = find_job(client, job, endpoint.project)
    if not JobState(old["state"]).is_final:
        raise click.ClickException(
            f"{old['name']} has not finished: it is {old['state']}. Wait for it: trainshed jobs wait "
            f"{old['name']}"
        )
    if old.get("kind") == "pipeline":
        raise click.ClickException(
            f"{old['name']} is a training pipeline and cannot be retried. Retry the pipeline's job instead. "
            f"To find its name: trainshed jobs describe {old['name']}"
        )
    api = Api(old["api"])
    parts = str(old["name"]).split("/")
    place = {"project": parts[1], "region": parts[3] if api is Api.VERTEX else ""}
    copied = copy_of(api, old.get("resource") or {}, now(), str(old["uid"]))
    submitted = client.get(job_path(sending.create(client, JobFile(api, copied), place)))
    if form == "json":
        print_data(submitted)
    follow_on(client, now, JobView.parse(submitted), follow=follow, is_named=form == "json")
