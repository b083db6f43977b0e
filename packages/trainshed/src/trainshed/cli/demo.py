"""`trainshed demo`: runs a distributed training job through the public API, from the upload of its package to
its accuracy.

With --drill the primary is killed between two checkpoints, and its recovery is reported; with --tuning a
tuning job runs instead.
"""

import hashlib
import json
import shlex
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from trainshed.cli import processes
from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.commands import Session
from trainshed.cli.connection import (
    Endpoint,
    answering,
    data_directory,
    find,
    local,
    takes_address,
)
from trainshed.cli.jobs.drill import report_lines
from trainshed.cli.jobs.follow import follow
from trainshed.cli.jobs.logs import require_over
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.jobs.watch import ending, watched
from trainshed.cli.run.sending import require_bucket
from trainshed.cli.sdist import DEMO_MODULE, DEMO_TUNING_MODULE, build_demo_sdist
from trainshed.cli.text.colours import faint
from trainshed.cli.text.tables import pairs
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.drills import ResumeReport
from trainshed.wire.trainshed_v1.record import read

_FIRST: Final = (
    "The first job of its kind builds its runtime; later ones start in well under a second."
)
_DRILL: Final = {"kind": "kill", "replica": "workerpool0-0", "atLine": "epoch 12/"}
"""It fires between two checkpoints, which the program saves every five epochs."""
_SLOWER: Final = ("--epoch-seconds", "0.2", "--poll-seconds", "0.1")
"""Arguments that make the program so slow that the fault comes well before the next checkpoint, and after the
evaluator has read the last one."""


@click.command()
@click.option("--keep", is_flag=True, help="Leave the service running if the demo started it.")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Number of workers beside the primary and the evaluator.",
)
@click.option(
    "--drill",
    is_flag=True,
    help="Kill the primary midway and check that the job resumes.",
)
@click.option(
    "--tuning",
    is_flag=True,
    help="Tune hyperparameters of a small network: 12 trials, 4 in parallel.",
)
@takes_address
@click.pass_obj
def command(
    session: Session,
    *,
    url: str | None,
    token: str | None,
    data: Path | None,
    ca: str | None,
    keep: bool,
    workers: int,
    drill: bool,
    tuning: bool,
) -> None:
    """Run a small distributed training job from start to end.

    A primary and its workers learn together to tell handwritten digits apart; an evaluator judges their
    checkpoints. If no service runs, one is started, and stopped again in the end.
    """
    if drill and tuning:
        raise click.UsageError("A tuning job has no replicas to drill: give --drill or --tuning.")
    # SIGTERM is handled as Ctrl-C is, so that neither the job nor the service is left behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    click.get_current_context().call_on_close(lambda: signal.signal(signal.SIGTERM, before))
    endpoint = _running(url, token, data, ca)
    started = None
    if endpoint is None:
        directory = data_directory(data)
        click.echo(f"No service is running; starting one with its data in {directory}.")
        started = processes.start(directory, ())
        endpoint = answering(started.endpoint)
    click.echo(f"Service   {endpoint.rest}")
    try:
        _run(session, endpoint, workers, drill=drill, tuning=tuning)
    finally:
        if started and not keep:
            started.stop()
    option = f" --data {shlex.quote(str(data))}" if data else ""
    click.echo()
    if started and not keep:
        click.echo(faint("The service was stopped again; jobs, logs and models stay."))
    else:
        click.echo(f"Look at it  {endpoint.rest}/")
    click.echo("What next:")
    steps = _next_steps(option, tuning=tuning, is_stopped=started is not None and not keep)
    for line in pairs([*steps]):
        click.echo(f"  {line}")


def _running(
    url: str | None, token: str | None, data: Path | None, ca: str | None
) -> Endpoint | None:
    """Return a service that answers; None if there is none on this machine. Raises Unreachable if --url is
    given and does not answer."""
    try:
        return answering(find(url, token, data, ca))
    except Unreachable:
        if url:
            raise
    try:
        # The environment may name a service that has ended, while another one runs here.
        return answering(local(data_directory(data), token))
    except Unreachable:
        return None


def _run(session: Session, endpoint: Endpoint, workers: int, *, drill: bool, tuning: bool) -> None:
    """Submit the job and follow it to its end. Raises SystemExit unless all went as it should; Refused,
    Unreachable."""
    client = endpoint.client()
    package = _uploaded(endpoint)
    output = _output(endpoint.bucket, session.now())
    collection, body = (
        ("hyperparameterTuningJobs", _tuning_request(package, output))
        if tuning
        else ("customJobs", _request(package, output, workers, _SLOWER if drill else ()))
    )
    place = f"/v1/projects/{endpoint.project}/locations/{endpoint.region}"
    created: dict[str, Any] = client.post(f"{place}/{collection}", body)
    job = JobView.parse(client.get(job_path(str(JobName.parse(created["name"])))))
    click.echo(f"Job       {job.name}")
    if drill:
        client.post(job_path(job.uid, ":drill"), _DRILL)
        click.echo("Drill     kill of the primary when it has done 12 epochs")
    click.echo(faint(_FIRST))
    try:
        over = watched(client, job, lines=True)
    except KeyboardInterrupt:
        click.echo("\nCancelling the job.")
        client.post(job_path(job.uid, ":cancel"), {})
        deque(follow(client, job.uid, lines=False), maxlen=0)
        click.echo(require_over(client, job.uid).state.value)
        raise SystemExit(130) from None
    has_succeeded = over.state is JobState.SUCCEEDED
    click.echo()
    for line in ending(over, session.now()):
        click.echo(line, err=not has_succeeded)
    if not has_succeeded:
        raise SystemExit(1)
    if not tuning:
        for line in pairs([*_results(endpoint, output)]):
            click.echo(line)
    if drill:
        _require_resumed(client, job)


def _require_resumed(client: Client, job: JobView) -> None:
    """Print the resume report. Raises SystemExit unless the job went on where it was."""
    report = read(client.get(job_path(job.uid, "/resumeReport")), ResumeReport)
    click.echo()
    for line in report_lines(report):
        click.echo(line)
    if report.result != "PASS":
        click.echo("The report should have said PASS.", err=True)
        raise SystemExit(1)


def _results(endpoint: Endpoint, output: str) -> Iterator[tuple[str, str]]:
    """Yield what the job made, and where it lies."""
    bucket, _, path = output.removeprefix("gs://").partition("/")
    try:
        metrics = json.loads(
            endpoint.storage_client().download(bucket, f"{path}/model/metrics.json")
        )
        yield "Accuracy", f"{metrics['accuracy']:.3f} on images that it has not learned from"
    except (Refused, ValueError, KeyError, TypeError) as failure:
        yield "Accuracy", f"cannot be read: {failure}"
    yield "Model", f"{output}/model"
    on_disk = endpoint.buckets / bucket / path / "model" if endpoint.buckets else None
    if on_disk is not None and on_disk.is_dir():
        yield "On disk", str(on_disk)


def _next_steps(option: str, *, tuning: bool, is_stopped: bool) -> Iterator[tuple[str, str]]:
    if is_stopped:
        yield f"trainshed up{option}", "start the service again"
    yield f"trainshed jobs describe @last{option}", "all about this job"
    yield f"trainshed jobs logs @last{option}", "what it wrote"
    yield f'eval "$(trainshed env{option})"', "point gcloud and the SDKs at the service, and then"
    yield f"gcloud ai {'hp-tuning-jobs' if tuning else 'custom-jobs'} list", "as ever"
    if not is_stopped:
        yield f"trainshed down{option}", "stop the service"


def _uploaded(endpoint: Endpoint) -> str:
    """Upload the demo's package, and return its URI: all runs share the place of an equal package. Raises
    click.ClickException if the service has no default project, region or bucket."""
    missing = [name for name in ("project", "region", "bucket") if not getattr(endpoint, name)]
    if missing:
        raise click.ClickException(
            f"The service at {endpoint.rest} does not say its default {' and '.join(missing)}. Run the"
            " demo on the machine where it runs, with --data."
        )
    sdist = build_demo_sdist()
    if endpoint.buckets is None:
        require_bucket(endpoint, {"project": endpoint.project, "region": endpoint.region})
    digest = hashlib.sha256(sdist.content).hexdigest()[:16]
    name = f"demo/packages/{digest}/{sdist.filename}"
    endpoint.storage_client().upload(endpoint.bucket, name, sdist.content, "application/gzip")
    return f"gs://{endpoint.bucket}/{name}"


def _output(bucket: str, now: Nanos) -> str:
    """Return the URI of a new output directory, so that no run goes on from the checkpoints of an earlier
    one."""
    moment = datetime.fromtimestamp(now // 10**9, UTC)
    return f"gs://{bucket}/demo/{moment:%Y%m%d-%H%M%S}-{now % 10**9 // 10**6:03d}"


def _pool(
    package: str, module: str, replicas: int, arguments: Sequence[str] = ()
) -> dict[str, Any]:
    if not replicas:
        return {}
    return {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": str(replicas),
        "pythonPackageSpec": {
            "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:slim",
            "packageUris": [package],
            "pythonModule": module,
            **({"args": list(arguments)} if arguments else {}),
        },
    }


def _request(package: str, output: str, workers: int, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the body of `customJobs.create`: a primary, workers and an evaluator."""
    counts = (1, workers, 0, 1)
    return {
        "displayName": "trainshed-demo",
        "jobSpec": {
            "workerPoolSpecs": [_pool(package, DEMO_MODULE, count, arguments) for count in counts],
            "baseOutputDirectory": {"outputUriPrefix": output},
        },
    }


def _tuning_request(package: str, output: str) -> dict[str, Any]:
    """Return the body of `hyperparameterTuningJobs.create`: a search for the hyperparameters with which a
    small network learns digits best."""
    parameters: list[dict[str, Any]] = [
        {
            "parameterId": "learning-rate",
            "doubleValueSpec": {"minValue": 0.0001, "maxValue": 0.3},
            "scaleType": "UNIT_LOG_SCALE",
        },
        {
            "parameterId": "hidden-units",
            "integerValueSpec": {"minValue": "4", "maxValue": "64"},
            "scaleType": "UNIT_LOG_SCALE",
        },
        {"parameterId": "batch-size", "discreteValueSpec": {"values": [16, 32, 64, 128]}},
        {
            "parameterId": "activation",
            "categoricalValueSpec": {"values": ["relu", "tanh", "logistic"]},
        },
    ]
    return {
        "displayName": "trainshed-demo-tuning",
        "maxTrialCount": 12,
        "parallelTrialCount": 4,
        "studySpec": {
            "metrics": [{"metricId": "accuracy", "goal": "MAXIMIZE"}],
            "parameters": parameters,
        },
        "trialJobSpec": {
            "workerPoolSpecs": [_pool(package, DEMO_TUNING_MODULE, 1)],
            "baseOutputDirectory": {"outputUriPrefix": output},
        },
    }
