"""`trainshed down`: cancels all jobs and stops the service. `trainshed status` shows a service. `down` also
shows, or releases, cluster allocations that a stopped service may have left behind."""

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

from trainshed.cli.client import Client, RequestError, Unreachable
from trainshed.cli.connection import (
    Endpoint,
    connection_options,
    data_directory,
    endpoint_options,
    local,
    require_local_service,
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

_MAX_REQUESTS = 32
"""Maximum concurrent requests to the service."""
_MAX_LISTED = 20
"""Maximum number of jobs, or of allocations, that are listed individually."""
_POLL_INTERVAL = 0.2
"""Seconds between two polls of the unfinished jobs."""
_RELEASE_TIMEOUT = 60.0
"""Maximum seconds for a cluster command that releases an allocation."""


@click.command()
@click.option(
    "--timeout",
    type=TimeLimit(),
    default="90s",
    show_default=True,
    metavar="TIME",
    help="Maximum time for cancelling all jobs and stopping the service.",
)
@click.option("--release", is_flag=True, help="Release cluster allocations left behind by a stopped service.")
@connection_options
def down(
    *, release: bool, url: str | None, token: str | None, data: Path | None, ca: str | None, timeout: float
) -> None:
    """Cancel all jobs and stop the service of this machine. Nothing is stopped by force: if a job does not
    finish in time, the service continues. The command lists cluster allocations that could not be
    released."""
    directory = data_directory(data)
    try:
        endpoint = local(directory, token)
    except Unreachable as none_runs:
        if url:
            raise
        click.echo(none_runs.format_message().partition(". ")[0] + ".", err=True)
        _report_leftovers(directory, release=release)
        return
    if url:
        require_local_service(endpoint, url, "down")
    _require_chosen_service(endpoint, chosen=bool(url or data) or "TRAINSHED_DATA" in os.environ)
    deadline = time.monotonic() + timeout

    def remaining_time() -> float:
        return max(0.0, deadline - time.monotonic())

    # Opened before the first request, so that the signal is sent to the process that responds, not to a later
    # process with the same ID.
    process = os.pidfd_open(endpoint.pid)
    client = endpoint.client()
    jobs = live_jobs(client)
    _cancel(client, jobs)
    _wait_until_finished(client, jobs, remaining_time)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGTERM)
    if not select.select([process], [], [], remaining_time())[0]:
        raise click.ClickException(
            f"The service (process {endpoint.pid}) did not stop in time. Its log in {endpoint.data} may "
            f"contain the reason. To end it by force: kill -9 {endpoint.pid}"
        )
    click.echo("The service has ended.")
    _report_leftovers(directory, release=release)


def _report_leftovers(data: Path, *, release: bool) -> None:
    """Raise click.ClickException with the allocations that a stopped service may have left behind. `release`:
    first try to release them."""
    if release:
        _release(data)
    left = [leftover for file in held.files(data) for leftover in _read(file)]
    if not left:
        return
    lines = [
        f"  {leftover.name}: {leftover.why}\n    {shlex.join(leftover.command)}"
        for leftover in left[:_MAX_LISTED]
    ]
    if len(left) > _MAX_LISTED:
        lines.append(f"  and {len(left) - _MAX_LISTED} more")
    many = counted(len(left), "allocation")
    raise click.ClickException(
        f"{many} may still exist in the cluster. Commands that release them:\n"
        + "\n".join(lines)
        + "\nTry again with: trainshed down --release. The next trainshed up also releases them, as do "
        "agents that still run there."
    )


def _release(data: Path) -> None:
    """Release the recorded allocations. Keep the records of those that the cluster does not release."""
    for file in held.files(data):
        left = [leftover for leftover in _read(file) if not _is_released(leftover)]
        if left:
            durable.write(str(file), held.text(left))
        else:
            file.unlink(missing_ok=True)


def _is_released(leftover: held.Leftover) -> bool:
    try:
        subprocess.run(
            leftover.command,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_RELEASE_TIMEOUT,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    click.echo(f"{leftover.name} was released.")
    return True


def _read(file: Path) -> tuple[held.Leftover, ...]:
    try:
        return held.read(file)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{error}. List the allocations of the cluster with squeue.") from None


def _require_chosen_service(endpoint: Endpoint, *, chosen: bool) -> None:
    """Raise click.ClickException if TRAINSHED_ENDPOINT is the address of another service. Any option or
    variable that selects the service prevents this error."""
    address = os.environ.get("TRAINSHED_ENDPOINT", "").rstrip("/")
    if address and address != endpoint.rest and not chosen:
        raise click.ClickException(
            f"It is not clear which service to stop. TRAINSHED_ENDPOINT is {address}, but the service with "
            f"its data in {endpoint.data} is at {endpoint.rest}. Select one: trainshed down --data "
            "DIRECTORY"
        )


def _cancel(client: Client, jobs: Sequence[JobView]) -> None:
    """Cancel all jobs with concurrent requests, because the service can store several cancellations in one
    commit."""
    for job in jobs[:_MAX_LISTED]:
        click.echo(f"Cancelling {job.job_id} {job.display_name}".rstrip())
    if len(jobs) > _MAX_LISTED:
        click.echo(f"Cancelling {len(jobs) - _MAX_LISTED} more")

    def cancel(job: JobView) -> None:
        try:
            client.post(job_path(job.uid, ":cancel"), {})
        except RequestError as refused:
            # Ignore the error if the job has already finished, because nothing remains to be cancelled.
            if refused.status not in (400, 404):
                raise

    with ThreadPoolExecutor(_MAX_REQUESTS) as threads:
        deque(threads.map(cancel, jobs), maxlen=0)


def _wait_until_finished(client: Client, jobs: Sequence[JobView], left: Callable[[], float]) -> None:
    """Poll until all jobs have finished. After the timeout, raises click.ClickException with the unfinished
    jobs."""
    while jobs:
        live = {job.uid for job in live_jobs(client)}
        if not (late := [job for job in jobs if job.uid in live]):
            return
        if left():
            time.sleep(min(_POLL_INTERVAL, left()))
            continue
        listed = "".join(f"\n  {job.job_id}  {job.display_name or job.name}" for job in late[:_MAX_LISTED])
        if len(late) > _MAX_LISTED:
            listed += f"\n  and {len(late) - _MAX_LISTED} more"
        raise click.ClickException(
            f"{len(late)} of {len(jobs)} jobs have not finished, so the service continues:{listed}\nTheir "
            "programs may need more time. Try again with a longer --timeout."
        )


@click.command()
@output_format("text", "Output as text, or as JSON or YAML for programs.")
@endpoint_options
@click.pass_obj
def status(now: Callable[[], Nanos], endpoint: Endpoint, form: str) -> None:
    """Show the address, start and jobs of the service. Exits with 1 if no service responds."""
    client = endpoint.client()
    answer: dict[str, Any] = client.get("/trainshed/v1/status")
    states = Counter[str]()
    # Show no jobs if the user may not list the jobs of all projects.
    with contextlib.suppress(RequestError):
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
        ("Jobs", jobs or "no unfinished job"),
        ("Disk", free),
        ("You", about.principal),
    ]
    for line in pairs([(label, value) for label, value in facts if value]):
        click.echo(line)
