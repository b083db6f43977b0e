"""`trainshed status`: shows whether a service runs, and the most important facts about it."""

import shutil
from collections import Counter
from typing import Any

import click

from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import live_jobs
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.moments import counted, duration, local_moment, parse_moment, size
from trainshed.cli.text.tables import pairs
from trainshed.wire.trainshed_v1.jobs import Outbox, Retention, Status
from trainshed.wire.trainshed_v1.record import read

_LATE = 0.25
"""Seconds by which the event loop is late; from here on requests are noticeably slow."""


@click.command()
@output_format("text", "Output as text, or as JSON or YAML for programs.")
@takes_endpoint
@click.pass_obj
def command(session: Session, endpoint: Endpoint, form: str) -> None:
    """Show whether a service runs, where, since when, and what it does. Exits with 1 if none answers."""
    client = endpoint.client()
    answer: dict[str, Any] = client.get("/trainshed/v1/status")
    states = Counter(job.state.value for job in live_jobs(client))
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
    status = read(answer, Status)
    started = parse_moment(status.start_time)
    jobs = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    lag = status.event_loop
    facts = [
        ("Service", f"{endpoint.rest}  trainshed {status.version}"),
        ("Process", str(endpoint.pid) if endpoint.pid else ""),
        (
            "Up",
            f"{duration(session.now() - started)}, since {local_moment(started)}"
            if started
            else "",
        ),
        ("Data", str(endpoint.data or "")),
        ("Defaults", f"project {status.project}, region {status.region}, gs://{status.bucket}"),
        ("Jobs", jobs or "none that is not over"),
        (
            "Disk",
            f"{disk.free / 2**30:.0f} GiB of {disk.total / 2**30:.0f} GiB free" if disk else "",
        ),
        ("Loop", _late(lag.recent_lag, lag.longest_lag)),
        ("Kept", _kept(status.retention) if status.retention else ""),
        ("Notify", _notified(status.notifications) if status.notifications else ""),
        ("You", status.principal),
    ]
    for line in pairs([(label, value) for label, value in facts if value]):
        click.echo(line)


def _kept(retention: Retention) -> str:
    """Return a text that says how long ended jobs and logs are kept, and what was deleted."""
    kept = [
        f"jobs {retention.jobs}" if retention.jobs else "",
        f"logs {retention.logs}" if retention.logs else "",
        f"{retention.size} of logs" if retention.size else "",
    ]
    text = ", ".join(filter(None, kept))
    if retention.deleted_jobs or retention.deleted_logs:
        jobs, logs = counted(retention.deleted_jobs, "job"), counted(retention.deleted_logs, "log")
        text += f"; deleted since the start: {jobs}, {logs}, {size(retention.freed_bytes)}"
    return text


def _notified(outbox: Outbox) -> str:
    """Return a text with the targets of notifications, and how many could not be delivered yet."""
    text = ", ".join(outbox.targets)
    if outbox.failing:
        failing = f"; {counted(outbox.failing, 'notification')} not delivered yet, tried again"
        return text + click.style(failing, fg="yellow")
    return text


def _late(recent: float, longest: float) -> str:
    text = f"at most {recent * 1000:.0f} ms late lately, {longest * 1000:.0f} ms since the start"
    return click.style(text, fg="yellow") if recent >= _LATE else text
