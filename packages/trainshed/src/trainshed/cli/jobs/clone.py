"""`trainshed jobs clone` and `retry`: submit an existing job again, `clone` with changes."""

from typing import Any

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.job_files import JobFile
from trainshed.cli.jobs.references import completing, find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output_format import output_format, print_data
from trainshed.cli.run import request, sending
from trainshed.cli.run.changes import Changes, copied, has_own_output
from trainshed.cli.run.command import ProgramCommand, follow_on
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.core.units import Nanos

_watch = click.option(
    "--watch/--detach",
    "follow",
    default=None,
    help="Follow the job to its end, or not. Default: follow on a terminal.",
)

_form = output_format("text", "Output as text, or JSON or YAML for programs.")


@click.command(
    cls=ProgramCommand, epilog="Example: trainshed jobs clone @last --replicas 4 -- --epochs 30"
)
@takes_job
@click.option("--name", metavar="NAME", help="Name of the new job. Default: that of the old one.")
@click.option(
    "--image",
    metavar="IMAGE",
    shell_complete=completing("values"),
    help="Framework, such as pytorch, or image URI.",
)
@click.option("--replicas", type=click.IntRange(1, 100_000), help="Number of replicas.")
@click.option(
    "--machine-type",
    shell_complete=completing("values"),
    help="Machine type of each replica.",
)
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable to add or replace.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label to add.")
@click.option("--output", metavar="gs://PATH", help="Directory for models and checkpoints.")
@click.option(
    "--as",
    "form_of",
    type=click.Choice([form.value for form in SnippetForm]),
    help="Print the job for another client; submit nothing.",
)
@_watch
@_form
@takes_endpoint
@click.pass_obj
@click.pass_context
def clone(context: click.Context, session: Session, endpoint: Endpoint, **options: Any) -> None:
    """Submit a job once more, with changes. What follows -- takes the place of its arguments.

    It writes where the old job did, unless that was a directory of its own, or --output names another one.
    """
    client = endpoint.client(raw=True)
    old = find_job(client, options["job"], endpoint.project)
    changes = Changes(
        name=options["name"],
        image=request.image_uri(options["image"], gpus=False) if options["image"] else None,
        replicas=options["replicas"],
        machine_type=options["machine_type"],
        env=request.read_pairs(options["env"], "--env"),
        labels=request.read_labels(options["labels"]),
        output=options["output"] or _fresh_output(old, session.now()),
        arguments=context.meta["trainshed.arguments"],
    )
    job, place = _copy(old, changes, session.now())
    if options["form_of"]:
        form = SnippetForm(options["form_of"])
        click.echo(snippet(form, job.api, place["project"], place["region"], job.job), nl=False)
        return
    _submit(client, session, job, place, options["form"], follow=options["follow"])


@click.command()
@takes_job
@_watch
@_form
@takes_endpoint
@click.pass_obj
def retry(
    session: Session, endpoint: Endpoint, *, job: str, follow: bool | None, form: str
) -> None:
    """Submit a job that failed or was cancelled once more, as it was.

    It writes where the old job did, so that a program with checkpoints goes on from them.
    """
    client = endpoint.client(raw=True)
    old = find_job(client, job, endpoint.project)
    state = JobState(old["state"])
    if not state.is_final or state is JobState.SUCCEEDED:
        what = "has succeeded" if state.is_final else f"is {state.value}"
        raise click.ClickException(
            f"{old['name']} {what}, and only what failed or was cancelled is tried again. Once more"
            f" all the same: trainshed jobs clone {job}"
        )
    again, place = _copy(old, Changes(), session.now())
    _submit(client, session, again, place, form, follow=follow)


def _copy(old: dict[str, Any], changes: Changes, now: Nanos) -> tuple[JobFile, dict[str, str]]:
    if old.get("kind") == "pipeline":
        raise click.ClickException(
            f"{old['name']} is a training pipeline; clone its job: trainshed jobs describe names it."
        )
    api = Api(old["api"])
    parts = str(old["name"]).split("/")
    region = parts[3] if api is Api.VERTEX else ""
    job = copied(api, old.get("resource") or {}, changes, now, str(old["uid"]))
    return JobFile(api, job), {"project": parts[1], "region": region}


def _fresh_output(old: dict[str, Any], now: Nanos) -> str | None:
    """Return a new output directory for the copy of a job that had one of its own; None if it had none."""
    resource: dict[str, Any] = old.get("resource") or {}
    if not has_own_output(resource):
        return None
    bucket = resource["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"].split("/")[2]
    return request.output_directory(bucket, str(resource.get("displayName", "job")), now)


def _submit(
    client: Client,
    session: Session,
    job: JobFile,
    place: dict[str, str],
    form: str,
    *,
    follow: bool | None,
) -> None:
    name = sending.create(client, job, place)
    submitted = client.get(job_path(name))
    if form == "json":
        print_data(submitted)
    follow_on(client, session, JobView.parse(submitted), follow=follow, is_named=form == "json")
