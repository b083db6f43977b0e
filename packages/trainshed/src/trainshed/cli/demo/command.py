"""`trainshed demo`: runs a distributed training job through the public API, from the upload of its package to
its accuracy.

With --drill the primary is killed between two checkpoints, and its recovery is reported.
"""

import re
import shlex
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
from trainshed.cli.demo.requests import (
    DemoPlaces,
    accuracy,
    demo_places,
    demo_request,
    tuning_request,
)
from trainshed.cli.jobs.drill import report_lines
from trainshed.cli.jobs.follow import Update, follow
from trainshed.cli.jobs.logs import require_over
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView, LogLine, TimelineView
from trainshed.cli.jobs.watch import ending, show, watched
from trainshed.cli.run.sending import require_bucket
from trainshed.cli.sdist import build_demo_sdist
from trainshed.cli.spelling import typed
from trainshed.cli.text.colours import faint, state_colour
from trainshed.cli.text.moments import duration
from trainshed.cli.text.tables import pairs
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import SERVICE_TASK, JobName
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.drills import Drill, ResumeReport
from trainshed.wire.trainshed_v1.record import read

_EARLY_LINES = 100
_FIRST = "The first job of its kind builds its runtime; later ones start in well under a second."


_LINE: Final = "epoch 12/"
"""The line at which the drill fires: between two checkpoints, which the program saves every five epochs."""

_PRIMARY: Final = "workerpool0-0"
_EPOCH: Final = re.compile(r"epoch \d{1,9}/")

_SLOWER: Final = ("--epoch-seconds", "0.2", "--poll-seconds", "0.1")
"""Arguments that make the program so slow that the fault comes well before the next checkpoint, and after the
evaluator has read the last one."""


def _order_drill(client: Client, job: JobView) -> str:
    """Order the drill, and return a text that says what was ordered. Raises Refused, Unreachable."""
    order = {"kind": "kill", "replica": _PRIMARY, "atLine": _LINE}
    ordered = read(client.post(job_path(job.uid, ":drill"), order), Drill)
    return f"{ordered.kind} of {ordered.task} when it has done 12 epochs"


def _resumed(client: Client, job: JobView) -> bool:
    """Print the resume report; whether the job went on where it was. Raises Refused, Unreachable."""
    report = read(client.get(job_path(job.uid, "/resumeReport")), ResumeReport)
    click.echo()
    for line in report_lines(report):
        click.echo(line)
    if report.result != "PASS":
        click.echo("The report should have said PASS.", err=True)
        return False
    return True


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
    hosted = None
    if endpoint is None:
        directory = data_directory(data)
        click.echo(f"No service is running; starting one with its data in {directory}.")
        hosted = processes.start(directory, ())
        endpoint = answering(hosted.endpoint)
    click.echo(f"Service   {endpoint.rest}")
    try:
        tuned = _tune(session, endpoint) if tuning else None
        succeeded = (
            tuned.state is JobState.SUCCEEDED
            if tuned
            else _run(session, endpoint, workers, drill=drill)
        )
    finally:
        if hosted and not keep:
            hosted.stop()
    if not succeeded:
        raise SystemExit(1)
    option = f" --data {shlex.quote(str(data))}" if data else ""
    if hosted is None or keep:
        click.echo(f"Look at it  {endpoint.rest}/")
    _say_what_next(started=hosted is not None, kept=keep, option=option, tuned=tuned)


@dataclass(slots=True)
class _Run:
    """One run of the demo job, with what was seen of it."""

    client: Client
    job: JobView
    places: DemoPlaces
    #: When it was submitted, ns since the epoch.
    submitted: int
    #: Messages of its timeline.
    timeline: set[str] = field(default_factory=set[str])
    #: The first `_EARLY_LINES` lines of its replicas.
    early: list[LogLine] = field(default_factory=list[LogLine])

    def updates(self) -> Iterator[Update]:
        """Yield the updates until the job is over, without lines that repeat what the primary prints."""
        for update in follow(self.client, self.job.uid):
            if isinstance(update, TimelineView):
                self.timeline.add(update.message)
            elif (
                isinstance(update, LogLine)
                and update.replica != SERVICE_TASK
                and len(self.early) < _EARLY_LINES
            ):
                self.early.append(update)
            # All replicas print a line for each epoch; the primary's is enough here.
            if not (isinstance(update, LogLine) and _tells_again(update)):
                yield update

    @property
    def first_line(self) -> int:
        """When the program printed its first line, ns since the epoch; 0 = it printed none. Notices at the
        beginning of the log are recognised by the timeline, which has them as well."""
        return min((line.at for line in self.early if line.message not in self.timeline), default=0)


def _tells_again(line: LogLine) -> bool:
    return line.replica != _PRIMARY and _EPOCH.match(line.message) is not None


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


def _run(session: Session, endpoint: Endpoint, workers: int, *, drill: bool) -> bool:
    run = _submit(session, endpoint, workers, _SLOWER if drill else ())
    click.echo(f"Job       {run.job.name}")
    if drill:
        click.echo(f"Drill     {_order_drill(run.client, run.job)}")
    click.echo(faint(_FIRST))
    try:
        show(run.updates(), lines=True, job=run.job)
    except KeyboardInterrupt:
        _cancel(run.client, run.job.uid)
        raise SystemExit(130) from None
    over = require_over(run.client, run.job.uid)
    click.echo()
    if over.state is not JobState.SUCCEEDED:
        state = click.style(over.state.value, fg=state_colour(over.state), bold=True)
        text = over.lasted(session.now())
        click.echo(f"{state} after {text}" if text else state, err=True)
        click.echo(over.error, err=True)
        return False
    for line in _result(run, over, endpoint):
        click.echo(line)
    return not drill or _resumed(run.client, run.job)


def _tune(session: Session, endpoint: Endpoint) -> JobView:
    client = endpoint.client()
    places = _uploaded(endpoint, session.now())
    path = f"{_parent(endpoint)}/hyperparameterTuningJobs"
    created: dict[str, Any] = client.post(path, tuning_request(places))
    job = JobView.parse(client.get(job_path(str(JobName.parse(created["name"])))))
    click.echo(f"Job       {job.name}")
    click.echo(faint(_FIRST))
    try:
        over = watched(client, job)
    except KeyboardInterrupt:
        _cancel(client, job.uid)
        raise SystemExit(130) from None
    click.echo()
    for line in ending(over, session.now()):
        click.echo(line, err=over.state is not JobState.SUCCEEDED)
    return over


def _cancel(client: Client, uid: str) -> None:
    click.echo("\nCancelling the job.")
    client.post(job_path(uid, ":cancel"), {})
    # Wait until the job is over, without showing what happens.
    deque(follow(client, uid, lines=False), maxlen=0)
    click.echo(require_over(client, uid).state.value)


def _submit(
    session: Session,
    endpoint: Endpoint,
    workers: int,
    arguments: Sequence[str],
) -> _Run:
    places = _uploaded(endpoint, session.now())
    client = endpoint.client()
    submitted = session.now()
    created: dict[str, Any] = client.post(
        f"{_parent(endpoint)}/customJobs",
        demo_request(places, workers, arguments),
    )
    name = str(JobName.parse(created["name"]))
    return _Run(client, JobView.parse(client.get(job_path(name))), places, submitted)


def _uploaded(endpoint: Endpoint, now: Nanos) -> DemoPlaces:
    """Upload the demo's package, and return the places of a run. Raises click.ClickException if the service
    has no default project, region or bucket."""
    missing = [name for name in ("project", "region", "bucket") if not getattr(endpoint, name)]
    if missing:
        raise click.ClickException(
            f"The service at {endpoint.rest} does not say its default {' and '.join(missing)}. Run the"
            " demo on the machine where it runs, with --data."
        )
    sdist = build_demo_sdist()
    if endpoint.buckets is None:
        require_bucket(endpoint, {"project": endpoint.project, "region": endpoint.region})
    places = demo_places(endpoint.bucket, sdist, now)
    endpoint.storage_client().upload(
        places.bucket, places.package, sdist.content, "application/gzip"
    )
    return places


def _parent(endpoint: Endpoint) -> str:
    return f"/v1/projects/{endpoint.project}/locations/{endpoint.region}"


def _result(run: _Run, over: JobView, endpoint: Endpoint) -> list[str]:
    places = run.places
    result = click.style(over.state.value, fg=state_colour(over.state), bold=True)
    try:
        metrics = endpoint.storage_client().download(places.bucket, places.metrics)
        result += f"  accuracy {accuracy(metrics):.3f} on images that it has not learned from"
    except (Refused, ValueError) as failure:
        result += f"  (its accuracy cannot be read: {failure})"
    facts = [
        ("Result", result),
        ("First line", f"{duration(run.first_line - run.submitted)} after the submit"),
        ("In all", duration(over.ended - run.submitted)),
        ("Model", places.uri(places.model)),
    ]
    on_disk = endpoint.buckets / places.bucket / places.model if endpoint.buckets else None
    if on_disk is not None and on_disk.is_dir():
        facts.append(("On disk", str(on_disk)))
    return pairs(facts)


def _say_what_next(*, started: bool, kept: bool, option: str, tuned: JobView | None) -> None:
    stopped = started and not kept
    steps = [
        *([(f"{typed()} up{option}", "start the service again")] if stopped else []),
        (f"{typed()} jobs list{option}", "this job and all others"),
    ]
    if tuned:
        steps += [
            (f"{typed()} jobs describe {tuned.id}{option}", "its best trial, and all the others"),
            (f"{typed()} jobs logs {tuned.id}{option}", "what they wrote; --trial 3: one of them"),
        ]
    collection = "hp-tuning-jobs" if tuned else "custom-jobs"
    steps += [
        (f'eval "$({typed()} env{option})"', "point gcloud and the SDKs at the service, and then"),
        (f"gcloud ai {collection} list", "as ever"),
        *([(f"{typed()} down{option}", "stop the service")] if started and kept else []),
    ]
    click.echo()
    if stopped:
        click.echo(faint("The service was stopped again; jobs, logs and models stay."))
    click.echo("What next:")
    for line in pairs(steps):
        click.echo(f"  {line}")
