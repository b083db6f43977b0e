"""`trainshed run --array` and `--schedule`: submits a custom job as the task of a pipeline job, once for each
index, or at the times of a schedule."""

from collections.abc import Callable, Mapping
from typing import Any

import click
from msgspec import Struct

from trainshed.cli.client import Client
from trainshed.cli.output import print_data
from trainshed.cli.pipelines.requests import collection, create
from trainshed.cli.run.job_files import JobFile
from trainshed.cli.run.templates import RUN_ID, Array, one_task_template
from trainshed.cli.text.moments import local_moment, parse_moment
from trainshed.core.names import Api
from trainshed.core.terminals import PAGES_LABEL
from trainshed.core.units import Nanos


class Repeats(Struct, frozen=True):
    """How often a program runs, and when."""

    array: Array | None = None
    #: The times of a schedule in the syntax of cron; "" = run now.
    cron: str = ""
    #: Display name of the schedule; "" = that of the job.
    name: str = ""
    #: Whether the user has chosen the output directory.
    has_output: bool = False


def read(options: Mapping[str, Any], *, local: bool) -> Repeats | None:
    """Return what the options of `trainshed run` specify, or None. Raises click.UsageError."""
    array, cron, zone = options["array"], options["schedule"], options["timezone"]
    if not cron and (zone or options["schedule_name"]):
        option = "--timezone" if zone else "--schedule-name"
        raise click.UsageError(f'{option} needs a schedule. Add one: --schedule "0 2 * * *"')
    if not array and not cron:
        return None
    if options["tune"] or options["form_of"] or local:
        wrong = "--tune" if options["tune"] else "--local" if local else "--as"
        wanted = "--array" if array else "--schedule"
        raise click.UsageError(f"{wanted} excludes {wrong}. Omit one of the two.")
    try:
        parsed = Array.parse(array) if array else None
    except ValueError as fault:
        text = f"--array {array}: {fault}. Write indices such as 0-99, 0-20:2, 1,4,7 or 0-499%20."
        raise click.UsageError(text) from None
    times = f"TZ={zone} {cron}" if zone else cron or ""
    return Repeats(parsed, times, options["schedule_name"] or "", bool(options["output"]))


def pipeline_job(job: JobFile, repeats: Repeats, root: str) -> dict[str, Any]:
    """Return the request for a pipeline job whose task is a custom job. `root`: the `gs://` directory for the
    tasks' outputs. Raises click.ClickException for other jobs."""
    from trainshed.core.notifications import LABEL  # Slow import, only needed here.

    custom = {**job.job}
    spec: dict[str, Any] | None = custom.get("jobSpec") or custom.get("job_spec")
    if job.api is Api.ML or not spec:
        raise click.ClickException(
            "--array and --schedule run only custom jobs of Vertex AI. Use a job file with workerPoolSpecs."
        )
    custom["displayName"] = custom.pop("display_name", None) or custom["displayName"]
    labels: dict[str, str] = custom.pop("labels", None) or {}
    # Targets receive one notification for the pipeline job, not one for each task.
    if of_task := {key: value for key, value in labels.items() if key != LABEL}:
        custom["labels"] = of_task
    output = spec.get("baseOutputDirectory")
    if repeats.cron and output and not repeats.has_output:
        # Each run of the schedule has its own directory.
        changed = {**output, "outputUriPrefix": f"{output['outputUriPrefix']}/{RUN_ID}"}
        custom["jobSpec"] = {**spec, "baseOutputDirectory": changed}
    account = spec.get("serviceAccount") or spec.get("service_account")
    return {
        "displayName": custom["displayName"],
        "pipelineSpec": one_task_template(custom, repeats.array),
        "runtimeConfig": {"gcsOutputDirectory": root},
        "labels": {key: value for key, value in labels.items() if key != PAGES_LABEL},
        **({"serviceAccount": account} if account else {}),
    }


def submit(
    client: Client,
    now: Callable[[], Nanos],
    request: Mapping[str, Any],
    place: dict[str, str],
    options: Mapping[str, Any],
) -> None:
    """Create a schedule of a pipeline job, or create the pipeline job and follow it. Raises RequestError and
    Unreachable, and SystemExit if the pipeline job does not succeed."""
    repeats: Repeats = options["repeats"]
    if not repeats.cron:
        from trainshed.cli.pipelines.watch import follow_on  # Slow import, only needed to follow.

        name = create(client, collection(place), request)
        follow_on(client, now, name, watch=options["watch"], form=options["form"])
        return
    path = collection(place, "schedules")
    parent = path.removeprefix("/v1/").removesuffix("/schedules")
    content = {
        "displayName": repeats.name or request["displayName"],
        "cron": repeats.cron,
        "maxConcurrentRunCount": "1",
        "createPipelineJobRequest": {"parent": parent, "pipelineJob": request},
    }
    created: dict[str, Any] = client.post(path, content)
    if options["form"] == "json":
        print_data(created)
    else:
        click.echo(created["name"])
    if upcoming := created.get("nextRunTime"):
        click.echo(f"Next run: {local_moment(parse_moment(upcoming))}", err=True)
    number = str(created["name"]).rpartition("/")[2]
    click.echo(f"To pause it: trainshed schedules pause {number}", err=True)
