"""`trainshed down`: cancels all jobs, waits until they are over, stops the service and waits for its end; and
tells, or gives back, what a service that has ended may still hold in its cluster. `trainshed status` shows
whether a service runs, and the most important facts about it."""

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.connection import (
    Endpoint,
    data_directory,
    local,
    on_this_machine,
    takes_address,
    takes_endpoint,
)
from trainshed.cli.jobs.references import job_path, live_jobs
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.moments import TimeLimit, counted, duration, local_moment, parse_moment
from trainshed.cli.text.tables import pairs
from trainshed.core import held
from trainshed.core.units import Nanos
from trainshed.replica.system import durable
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read

_AT_ONCE = 32
"""Requests to the service at a time."""
_NAMED = 20
"""Maximum jobs, or allocations, that are named one by one."""
_PAUSE = 0.2
"""Seconds between two looks at what is not over yet."""
_RELEASE = 60.0
"""Seconds that a cluster's command may take to give an allocation back."""


@click.command()
@click.option(
    "--timeout",
    type=TimeLimit(),
    default="90s",
    show_default=True,
    metavar="TIME",
    help="Time limit for cancelling jobs and stopping the service.",
)
@click.option(
    "--release",
    is_flag=True,
    help="Try again to give back what a service that has ended may still hold in its cluster.",
)
@takes_address
def down(
    *,
    release: bool,
    url: str | None,
    token: str | None,
    data: Path | None,
    ca: str | None,
    timeout: float,
) -> None:
    """Cancel all jobs and stop the service of this machine.

    Nothing is stopped by force: if a job is not over in time, the service goes on. Allocations of a cluster
    that could not be given back are told.
    """
    directory = data_directory(data)
    try:
        endpoint = local(directory, token)
    except Unreachable as none_runs:
        if url:
            raise
        click.echo(none_runs.format_message().partition(". ")[0] + ".", err=True)
        _settle(directory, release=release)
        return
    if url:
        on_this_machine(endpoint, url, "down")
    _refuse_another(endpoint, chosen=bool(url or data) or "TRAINSHED_DATA" in os.environ)
    deadline = time.monotonic() + timeout

    def left() -> float:
        return max(0.0, deadline - time.monotonic())

    # Opened before the first request, so that the process that answers is the one that is stopped, and none
    # that gets its id later.
    process = os.pidfd_open(endpoint.pid)
    client = endpoint.client()
    jobs = live_jobs(client)
    _cancel(client, jobs)
    _wait_until_over(client, jobs, left)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGTERM)
    if not select.select([process], [], [], left())[0]:
        raise click.ClickException(
            f"The service (process {endpoint.pid}) was asked to end and has not yet. Its log in"
            f" {endpoint.data} may say why; kill {endpoint.pid} ends it by force."
        )
    click.echo("The service has ended.")
    _settle(directory, release=release)


def _settle(data: Path, *, release: bool) -> None:
    """Raise click.ClickException with the allocations that a service which has ended may still hold.
    `release`: what of them the cluster takes is given back before."""
    if release:
        _release(data)
    left = [leftover for file in held.files(data) for leftover in _read(file)]
    if not left:
        return
    lines = [
        f"  {leftover.name}: {leftover.why}\n    {shlex.join(leftover.command)}"
        for leftover in left[:_NAMED]
    ]
    if len(left) > _NAMED:
        lines.append(f"  and {len(left) - _NAMED} more")
    many = counted(len(left), "allocation")
    raise click.ClickException(
        f"{many} may still be held in the cluster, with what gives each back by hand:\n"
        + "\n".join(lines)
        + "\nTry again with: trainshed down --release. The next trainshed up does so too, and so do agents "
        "that still run there."
    )


def _release(data: Path) -> None:
    """Give back what is written down as held, as far as the cluster takes it."""
    for file in held.files(data):
        left = [leftover for leftover in _read(file) if not _is_given_back(leftover)]
        if left:
            durable.write(str(file), held.text(left))
        else:
            file.unlink(missing_ok=True)


def _is_given_back(leftover: held.Leftover) -> bool:
    try:
        subprocess.run(
            leftover.command,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_RELEASE,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    click.echo(f"{leftover.name} was given back.")
    return True


def _read(file: Path) -> tuple[held.Leftover, ...]:
    try:
        return held.read(file)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{error}. What it says is held; squeue tells it too.") from None


def _refuse_another(endpoint: Endpoint, *, chosen: bool) -> None:
    """Raise click.ClickException if the shell's TRAINSHED_ENDPOINT names another service than the one that
    would be stopped, and no option or variable chose that one."""
    address = os.environ.get("TRAINSHED_ENDPOINT", "").rstrip("/")
    if address and address != endpoint.rest and not chosen:
        raise click.ClickException(
            f"This shell was pointed at {address} (TRAINSHED_ENDPOINT), and the service with its data in "
            f"{endpoint.data} is at {endpoint.rest}. Say which one is meant: trainshed down --data "
            "DIRECTORY"
        )


def _cancel(client: Client, jobs: Sequence[JobView]) -> None:
    """Ask the service to cancel all jobs, several at once, since it can store several requests in one
    commit."""
    for job in jobs[:_NAMED]:
        click.echo(f"Cancelling {job.job_id} {job.display_name}".rstrip())
    if len(jobs) > _NAMED:
        click.echo(f"Cancelling {len(jobs) - _NAMED} more")

    def cancel(job: JobView) -> None:
        try:
            client.post(job_path(job.uid, ":cancel"), {})
        except Refused as refused:
            # The job was over before it could be cancelled, so nothing is left to do.
            if refused.status not in (400, 404):
                raise

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        deque(threads.map(cancel, jobs), maxlen=0)


def _wait_until_over(client: Client, jobs: Sequence[JobView], left: Callable[[], float]) -> None:
    """Look again and again until all jobs are over. Raises click.ClickException with the jobs that are not
    over in time."""
    while jobs:
        live = {job.uid for job in live_jobs(client)}
        if not (late := [job for job in jobs if job.uid in live]):
            return
        if left():
            time.sleep(min(_PAUSE, left()))
            continue
        listed = "".join(
            f"\n  {job.job_id}  {job.display_name or job.name}" for job in late[:_NAMED]
        )
        if len(late) > _NAMED:
            listed += f"\n  and {len(late) - _NAMED} more"
        raise click.ClickException(
            f"{len(late)} of {len(jobs)} jobs are not over yet, so the service was left running:{listed}"
            "\nTheir programs may need longer to end; try again with a longer --timeout."
        )


@click.command()
@output_format("text", "Output as text, or as JSON or YAML for programs.")
@takes_endpoint
@click.pass_obj
def status(now: Callable[[], Nanos], endpoint: Endpoint, form: str) -> None:
    """Show whether a service runs, where, since when, and what it does. Exits with 1 if none answers."""
    client = endpoint.client()
    answer: dict[str, Any] = client.get("/trainshed/v1/status")
    states = Counter[str]()
    # Not everybody may list the jobs of all projects.
    with contextlib.suppress(Refused):
        states.update(job.state.value for job in live_jobs(client))
    disk = shutil.disk_usage(endpoint.data) if endpoint.data else None
    if form == "json":
        print_data(
            {
                **answer,
                "url": endpoint.rest,
                "data": str(endpoint.data or ""),
                "pid": endpoint.pid,
                "jobs": dict(states),
                "diskFreeBytes": disk.free if disk else None,
                "diskBytes": disk.total if disk else None,
            }
        )
        return
    about = read(answer, Status)
    started = parse_moment(about.start_time)
    up = f"{duration(now() - started)}, since {local_moment(started)}"
    free = f"{disk.free / 2**30:.0f} GiB of {disk.total / 2**30:.0f} GiB free" if disk else ""
    jobs = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    facts = [
        ("Service", f"{endpoint.rest}  trainshed {about.version}"),
        ("Process", str(endpoint.pid) if endpoint.pid else ""),
        ("Up", up if started else ""),
        ("Data", str(endpoint.data or "")),
        ("Defaults", f"project {about.project}, region {about.region}, gs://{about.bucket}"),
        ("Jobs", jobs or "none that is not over"),
        ("Disk", free),
        ("You", about.principal),
    ]
    for line in pairs([(label, value) for label, value in facts if value]):
        click.echo(line)
