"""`trainshed jobs watch` prints the events of a job until it finishes; `jobs logs` prints the lines of its
log. Both continue across restarts of the service."""

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import click

from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, endpoint_options
from trainshed.cli.jobs.describe import best_lines
from trainshed.cli.jobs.follow import Lines, follow
from trainshed.cli.jobs.references import find_job, job_argument, job_path
from trainshed.cli.jobs.views import JobView, LineTexts
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.colours import faint, state_colour
from trainshed.cli.text.moments import local_clock, parse_moment, since
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import SERVICE_TASK
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import to_builtins
from trainshed.wire.trainshed_v1.timeline import TimelineEntry


def timeline_line(entry: TimelineEntry) -> str:
    """Return a timeline entry as text to print between a job's log lines."""
    first = (entry.message.strip().splitlines() or [""])[0].strip()
    return faint(f"{local_clock(parse_moment(entry.at))}  {entry.kind}: {first}")


@click.command()
@job_argument
@output_format("text", "Output as text, or as JSON lines at each change.")
@endpoint_options
@click.pass_obj
def command(now: Callable[[], Nanos], endpoint: Endpoint, job: str, form: str) -> None:
    """Print the events of a job until it finishes: starts, exits, verdicts, trials.

    For its lines, use trainshed jobs logs -f. The exit status is 0 if the job succeeded, 1 otherwise, and 130
    after Ctrl-C (the job continues).
    """
    client = endpoint.client(raw=form == "json")
    submitted = JobView.parse(find_job(client, job, endpoint.project))
    if form == "text":
        follow_to_end(client, submitted, now)
        return
    over = submitted
    with _handle_interrupt(submitted):
        for update in follow(client, submitted.uid, _resume_command(submitted)):
            if isinstance(update, JobView):
                over = update
                print_data(to_builtins(update), stream=True)
    if over.state is not JobState.SUCCEEDED:
        raise SystemExit(1)


def follow_to_end(
    client: Client,
    job: JobView,
    now: Callable[[], Nanos],
    *,
    lines: bool = False,
    job_continues: bool = True,
    known: Iterable[str] = (),
    results: Iterable[str] = (),
) -> None:
    """Print the events of a job until it finishes, and then its result.

    Raises RequestError or Unreachable, and SystemExit unless the job succeeded.

    Args:
        lines: whether to print every log line of the job's replicas
        job_continues: whether the job continues after Ctrl-C; otherwise Ctrl-C raises KeyboardInterrupt
        known: the service's messages in the job's log that the user has already seen
        results: lines to print after a success
    """
    left_out = frozenset(known)
    # Do not read the log of a tuning job, because the lines of hundreds of trials would be unreadable.
    log = Lines(client, job.uid) if lines and not job.program.tuning else None
    with _handle_interrupt(job) if job_continues else contextlib.nullcontext():
        for update in follow(client, job.uid, _resume_command(job), log):
            match update:
                case JobView():
                    job = update
                case TimelineEntry():
                    click.echo(timeline_line(update))
                case _:
                    fresh = [
                        line
                        for line in update
                        if not (line.replica == SERVICE_TASK and line.message in left_out)
                    ]
                    click.echo("".join(LineTexts(job).format(fresh)), nl=False)
    succeeded = job.state is JobState.SUCCEEDED
    for line in [*end_lines(job, now()), *(results if succeeded else ())]:
        click.echo(line)
    if not succeeded:
        raise SystemExit(1)


@contextlib.contextmanager
def _handle_interrupt(job: JobView) -> Generator[None]:
    """On Ctrl-C, print that the job continues, and raise SystemExit with status 130."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(
            f"The job continues. To see its lines: trainshed jobs logs -f {job.job_id}. To cancel it: "
            f"trainshed jobs cancel {job.job_id}",
            err=True,
        )
        raise SystemExit(130) from None


def _resume_command(job: JobView) -> str:
    return f"trainshed jobs watch {job.job_id}"


def end_lines(over: JobView, now: Nanos) -> list[str]:
    """Return the lines about the end of a job: state and duration, best trial, model and error."""
    state = click.style(over.state.value, fg=state_colour(over.state), bold=True)
    lines = [f"{state} after {text}" if (text := over.running_time(now)) else state]
    lines += best_lines(over.program)
    if over.model:
        lines.append(f"model {over.model}")
    return [*lines, over.error_text] if over.error else lines


@click.command()
@job_argument
@click.option(
    "-f",
    "--follow",
    "follows",
    is_flag=True,
    help="Follow until the job finishes, also across service restarts.",
)
@click.option(
    "--trial",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of the trial, for the log of a tuning job.",
)
@click.option("--replica", metavar="REPLICA", help="Show only this replica, such as workerpool1-0.")
@click.option(
    "--tail",
    type=click.IntRange(min=1),
    metavar="N",
    help="Omit all earlier lines except the last N. Default: print all lines.",
)
@click.option("--timestamps", is_flag=True, help="Print the time before each line.")
@click.option(
    "--since",
    metavar="TIME",
    callback=since,
    help="Print only lines since this time, such as 2026-11-20T06:05, or since 10m (ago).",
)
@output_format("text", "Output as text, or one JSON object or YAML document per line.")
@endpoint_options
def logs(endpoint: Endpoint, *, job: str, follows: bool, form: str, **options: Any) -> None:
    """Print the log lines of a job in order of time. For a tuning job, select a --trial. The error of a
    failed job follows its lines. For the events of a job, use trainshed jobs timeline, or watch."""
    client = endpoint.client(raw=form == "json")
    view = JobView.parse(find_job(client, job, endpoint.project))
    which = {name: options[name] for name in ("replica", "tail", "since")}
    texts = LineTexts(view, timestamps=options["timestamps"])
    trial = options["trial"]
    if view.program.tuning and not trial:
        raise click.ClickException(_missing_trial_error(view))
    writer = _job_of_trial(view, trial) if trial else view.program.uid
    log = Lines(client, writer, **which)
    again = f"trainshed jobs logs -f {view.job_id}"
    try:
        for lines in follow(client, writer, again, log) if follows else log.read_new():
            if isinstance(lines, JobView | TimelineEntry):
                continue
            if form == "text":
                click.echo("".join(texts.format(lines)), nl=False)
                continue
            for line in lines:
                print_data(to_builtins(line), stream=True)
    except KeyboardInterrupt:
        # Print no message: to stop following is not an error, and the job continues.
        raise SystemExit(130) from None
    if follows:
        view = JobView.parse(client.get(job_path(view.uid)))
    if view.error and form == "text":
        click.echo(view.error_text, err=True)


def _missing_trial_error(view: JobView) -> str:
    """Return the error for a request of a tuning job's log. It contains the command for the log of one
    trial."""
    trials = (view.child or view).trials or ()
    text = f"{view.job_id} is a tuning job. Only its trials have logs."
    if not trials:
        return f"{text} It has started no trial yet. Follow it: trainshed jobs watch {view.job_id}"
    running = [trial.number for trial in trials if trial.job_state == "RUNNING"]
    chosen = (running or [trial.number for trial in trials])[-1]
    return f"{text} Choose one: trainshed jobs logs {view.job_id} --trial {chosen}"


def _job_of_trial(view: JobView, number: int) -> str:
    """Return the name of the job that evaluates a trial. Raises click.ClickException."""
    trials = (view.child or view).trials or ()
    for trial in trials:
        if trial.number == number:
            return trial.job
    begun = ", ".join(str(trial.number) for trial in trials) or "none"
    raise click.ClickException(f"{view.name} has not started trial {number}. Started trials: {begun}.")
