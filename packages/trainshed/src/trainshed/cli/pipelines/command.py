"""`trainshed pipelines`: runs compiled pipelines, and describes, follows, cancels and retries pipeline jobs.
`trainshed list` and `delete` do the rest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trainshed.cli.buckets import Place
from trainshed.cli.client import Client
from trainshed.cli.commands import Group
from trainshed.cli.connection import Endpoint, endpoint_options, place_options, with_defaults
from trainshed.cli.jobs.command import for_all
from trainshed.cli.jobs.references import find_job, job_argument, job_path, jobs_argument
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import format_option, output_format, print_data, terminal_width
from trainshed.cli.pipelines import requests
from trainshed.cli.pipelines.tasks import first_line, task_table, tasks_of
from trainshed.cli.run import sending
from trainshed.cli.run.request import read_labels
from trainshed.cli.text.colours import one_line, state_colour
from trainshed.cli.text.moments import local_moment
from trainshed.cli.text.tables import pairs
from trainshed.core.copies import retry_of
from trainshed.core.lifecycle.states import JobState
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.jobs import PipelineJob


@click.group(cls=Group)
def command() -> None:
    """Run compiled KFP pipelines, and describe, follow, cancel and retry pipeline jobs. Without a command:
    list them.

    JOB is a pipeline job's ID, full name, display name (the newest job of this name), the beginning of its
    ID, or @last if the newest job is a pipeline job.
    """


_follow_option = click.option(
    "--watch/--detach",
    "watch",
    default=None,
    help="Whether to follow the pipeline job until it finishes. Default: follow on a terminal.",
)
_new_format = output_format("text", "Output as text, or JSON or YAML for programs.")


def _find(client: Client, reference: str, project: str) -> dict[str, Any]:
    """Return the description of a pipeline job, as `find_job`. Raises click.ClickException."""
    job = find_job(client, reference, project)
    if job.get("kind") != "pipeline_job":
        raise click.ClickException(
            f"{job['name']} is not a pipeline job. Show it: trainshed jobs describe {job['jobId']}"
        )
    return job


@command.command(short_help="Show a pipeline job with the tree of its tasks.")
@job_argument
@click.option("--all", "every", is_flag=True, help="Show all iterations of loops.")
@format_option
@endpoint_options
@click.pass_obj
def describe(now: Callable[[], Nanos], endpoint: Endpoint, *, job: str, every: bool, form: str) -> None:
    """Show a pipeline job and its tasks: states, durations, jobs and errors. A loop shows the numbers of its
    iterations, and its first failed iterations."""
    client = endpoint.client(raw=form == "json")
    run_job = _find(client, job, endpoint.project)
    public = client.get(f"/v1/{run_job['name']}")
    if form == "json":
        print_data(public)
        return
    view = JobView.parse(run_job)
    details = view.pipeline_job or PipelineJob()
    parameters = public.get("runtimeConfig", {}).get("parameterValues", {})
    facts = [
        ("Job", view.name),
        ("Name", one_line(view.display_name)),
        ("Pipeline", details.template),
        ("State", click.style(view.state.value, fg=state_colour(view.state), bold=True)),
        ("Waits", "\n".join(view.waits)),
        ("Created", local_moment(view.created_at)),
        ("Lasted", view.running_time(now())),
        ("Schedule", details.schedule),
        ("Parameters", "\n".join(one_line(f"{name}={value}") for name, value in parameters.items())),
        ("Root", details.root),
        ("Error", first_line(view.error.message) if view.error else ""),
        ("By", view.creator),
    ]
    width = terminal_width()
    lines = pairs([fact for fact in facts if fact[1]], width)
    if tasks := tasks_of(public):
        lines += ["", *task_table(tasks, now(), width, every=every)]
    for line in lines:
        click.echo(line)


@command.command(short_help="Print the changes of tasks until a pipeline job finishes.")
@job_argument
@endpoint_options
@click.pass_obj
def watch(now: Callable[[], Nanos], endpoint: Endpoint, job: str) -> None:
    """Print the changes of tasks until a pipeline job finishes, with the last lines of tasks that fail.

    The exit status is 0 if the pipeline job succeeded, 1 otherwise, and 130 after Ctrl-C (it continues).
    """
    from trainshed.cli.pipelines.watch import follow_to_end  # Slow import, only needed to follow.

    client = endpoint.client()
    follow_to_end(client, JobView.parse(_find(client, job, endpoint.project)), now)


@command.command()
@jobs_argument
@endpoint_options
def cancel(endpoint: Endpoint, job: tuple[str, ...]) -> None:
    """Cancel pipeline jobs and their tasks. If one cannot be cancelled, the others are still cancelled."""

    def act(client: Client, uid: str) -> None:
        client.post(job_path(uid, ":cancel"), {})

    for_all(endpoint, job, act, "is being cancelled", _find)


@command.command(short_help="Run the failed tasks of a pipeline job again.")
@job_argument
@_follow_option
@_new_format
@endpoint_options
@click.pass_obj
def retry(now: Callable[[], Nanos], endpoint: Endpoint, *, job: str, watch: bool | None, form: str) -> None:
    """Run a failed or cancelled pipeline job again as a new one, with the same template and parameters. The
    new job uses the outputs of the tasks that succeeded, and runs the others."""
    from trainshed.cli.pipelines.watch import follow_on  # Slow import, only needed to follow.

    client = endpoint.client(raw=True)
    old = _find(client, job, endpoint.project)
    state, name = JobState(old["state"]), str(old["name"])
    if state is JobState.SUCCEEDED or not state.is_final:
        advice = "Run all tasks again: trainshed pipelines run TEMPLATE"
        if not state.is_final:
            advice = f"Wait for it: trainshed pipelines watch {old['jobId']}"
        raise click.ClickException(f"{name} has no failed tasks to run: it is {state.value}. {advice}")
    request = retry_of(client.get(f"/v1/{name}"), old["uid"])
    created = requests.create(client, f"/v1/{name.rpartition('/')[0]}", request)
    follow_on(client, now, created, watch=watch, form=form)


@command.command(
    short_help="Run a compiled pipeline.",
    epilog="Example: trainshed pipelines run pipeline.yaml -p lr=0.1 -p layers=[64,32]",
)
@click.argument("template", metavar="TEMPLATE")
@click.option(
    "-p",
    "--parameter",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Parameter of the pipeline: a text, or JSON if the parameter has another type.",
)
@click.option("--name", metavar="ID", help="ID of the pipeline job. Default: a new ID.")
@click.option(
    "--root",
    metavar="gs://PATH",
    help="Directory for the outputs of tasks. Default: the template's, or pipelines/ in the default bucket.",
)
@click.option("--label", "--labels", "labels", multiple=True, metavar="KEY=VALUE", help="Label.")
@click.option(
    "--cache/--no-cache",
    default=None,
    help="Whether tasks use the outputs of equal tasks. Default: as compiled.",
)
@click.option("--fail-fast", is_flag=True, help="Start no further tasks after a failure.")
@click.option("--service-account", help="Service account whose credentials the tasks have.")
@_follow_option
@place_options("pipeline job")
@_new_format
@endpoint_options
@click.pass_obj
def run(
    now: Callable[[], Nanos],
    endpoint: Endpoint,
    *,
    template: str,
    watch: bool | None,
    form: str,
    **options: Any,
) -> None:
    """Run the compiled pipeline TEMPLATE: a JSON or YAML file of this machine, or a gs:// URI.

    The exit status is 0 if the pipeline job succeeded (or was submitted), 1 if it failed, and 130 after
    Ctrl-C (it continues).
    """
    from trainshed.cli.pipelines.watch import follow_on  # Slow import, only needed to follow.

    request = requests.read_template(_read(endpoint, template), template)
    spec, config = request["pipelineSpec"], {**request.get("runtimeConfig", {})}
    values = requests.parameter_values(options["parameters"], spec)
    config["parameterValues"] = {**config.get("parameterValues", {}), **values}
    if options["fail_fast"]:
        config["failurePolicy"] = "PIPELINE_FAILURE_POLICY_FAIL_FAST"
    if options["cache"] is not None:
        request["pipelineSpec"] = requests.with_caching(spec, enabled=options["cache"])
    if options["service_account"]:
        request["serviceAccount"] = options["service_account"]
    request["labels"] = {**request.get("labels", {}), **read_labels(options["labels"])}
    endpoint = with_defaults(endpoint)
    place = {"project": endpoint.project, "region": endpoint.region}
    root = options["root"] or config.get("gcsOutputDirectory") or spec.get("defaultPipelineRoot")
    if not root:
        sending.require_bucket(endpoint, place)
        root = f"gs://{endpoint.bucket}/pipelines"
    request["runtimeConfig"] = {**config, "gcsOutputDirectory": root}
    client = endpoint.client()
    name = requests.create(client, requests.collection(place), request, options["name"])
    follow_on(client, now, name, watch=watch, form=form)


def _read(endpoint: Endpoint, template: str) -> str:
    """Return the text of a file, or of an object in a bucket. Raises click.ClickException."""
    try:
        if not template.startswith("gs://"):
            return Path(template).read_text("utf-8")
        place = Place.parse(template)
        with endpoint.storage_client().open_object(place.bucket, place.name) as answer:
            return answer.read().decode()
    except (OSError, UnicodeDecodeError) as failure:
        cause = failure.strerror if isinstance(failure, OSError) else "It is not UTF-8 text"
        raise click.ClickException(
            f"{template} cannot be read. {cause}. Specify a compiled pipeline, such as pipeline.yaml."
        ) from None
