"""`trainshed status`: shows whether a service runs, and the most important facts about it."""

import shutil
from collections import Counter
from typing import Any

import click

from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import live_jobs
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.moments import duration, local_moment, parse_moment
from trainshed.cli.text.tables import pairs
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read


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
        ("You", status.principal),
    ]
    for line in pairs([(label, value) for label, value in facts if value]):
        click.echo(line)
