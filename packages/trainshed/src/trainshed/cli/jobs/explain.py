"""`trainshed explain`: tells whether a job would be admitted now and where, or what would let it start
(spec/submit#preflight)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import click
from msgspec.structs import replace

from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint, takes_place
from trainshed.cli.jobs import job_files
from trainshed.cli.jobs.describe import waiting_lines
from trainshed.cli.jobs.job_files import JobFile, Unreadable
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import gibibytes
from trainshed.cli.text.tables import Field, table_of
from trainshed.core.capacity import WaitReason
from trainshed.core.names import Api
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.capacity import Explanation
from trainshed.wire.trainshed_v1.record import read

WOULD_WAIT = 3
"""The exit status for a valid job that would wait, or that no set of nodes can hold."""

TOO_LARGE = (
    "ask for fewer or smaller replicas; or, as the operator, declare larger nodes (trainshed up"
    " --node-cpus 4), fewer of them (--nodes 1), or share what there is (--capacity relaxed). Submitted as"
    " it is, it would fail after a few tries"
)


@click.command()
@click.option(
    "-f",
    "--file",
    "file",
    type=click.File("r", encoding="utf-8"),
    required=True,
    help="Job file in YAML or JSON; - reads standard input.",
)
@click.option(
    "--api",
    type=click.Choice([api.value for api in Api]),
    help="API of the job, if the file does not tell.",
)
@takes_place("job")
@output_format("text", "Output as text, or JSON for programs.")
@takes_endpoint
@click.pass_obj
def command(
    session: Session,
    endpoint: Endpoint,
    *,
    file: TextIO,
    api: str | None,
    project: str | None,
    region: str | None,
    form: str,
) -> None:
    """Tell whether a job would start now and on which nodes, or why not and what would help.

    Creates nothing.

    The file holds a custom job of Vertex or a job of ml v1: the whole resource, or what gcloud takes as
    --config. The exit status is 0 if the job would start now, 3 if it would wait or has no place here, 1 if
    it would be refused.
    """
    parsed = _read(file, api, session.now())
    place = place_of(endpoint, project, region)
    job_file, added = job_files.with_flags(job_files.with_region(parsed, place["region"]))
    answer: dict[str, Any] = endpoint.client(raw=form == "json").post(
        "/trainshed/v1/jobs:explain",
        {
            "api": job_file.api.value,
            "project": place["project"],
            "location": place["region"],
            "job": job_file.job,
        },
    )
    if form == "json":
        print_data(answer)
    else:
        for line in explanation(read(answer, Explanation)):
            click.echo(line)
        for text in added:
            click.echo(f"notice: {text}")
    if not answer["admitted"]:
        raise SystemExit(WOULD_WAIT)


def explanation(answer: Explanation) -> Iterator[str]:
    """Yield the lines that show the answer of a preflight."""
    where = f"{answer.project}, {answer.location}"
    waiting = answer.waiting
    if waiting is None:
        yield click.style("Would start now", fg="green", bold=True) + faint(f"  {where}")
    else:
        stock_out = waiting.reason == WaitReason.STOCK_OUT
        verdict, colour = ("Has no place here", "red") if stock_out else ("Would wait", "yellow")
        yield click.style(verdict, fg=colour, bold=True) + faint(f"  {where}")
        # A job that can never fit does not wait in the queue, so it has no position.
        shown = replace(waiting, position=0) if stock_out else waiting
        yield from (f"  {line}" for line in waiting_lines(shown))
        if stock_out and not waiting.hint:
            yield f"  {TOO_LARGE}"
    yield ""
    yield from table_of(_MACHINES, answer.machines)
    if answer.places:
        yield ""
        yield from table_of(_PLACES, answer.places)
    shown = [("notice", text) for text in answer.notices]
    shown += [("warning", text) for text in answer.warnings]
    if shown:
        yield ""
    for kind, text in shown:
        yield click.style(f"{kind}: {text}", fg="yellow" if kind == "warning" else None)


_MACHINES = (
    Field("POOL", "pool"),
    Field("REPLICAS", "replicas", right=True),
    Field("MACHINE TYPE", "machine_type"),
    Field("CPUS", "vcpus", lambda vcpus: f"{vcpus:g}" if vcpus else "", right=True),
    Field("A REPLICA GETS", "memory_limit_bytes", gibibytes, right=True),
    Field("ACCELERATORS", "accelerators", lambda devices: f"{devices.count} × {devices.type}"),
    Field("DISK", "disk_gb", "{} GB".format, right=True),
)
_PLACES = (Field("REPLICA", "task"), Field("NODE", "node"))


def _read(file: TextIO, api: str | None, now: Nanos) -> JobFile:
    """Return the job of the file. An `ml` job without an id gets one that no other job has. Raises
    click.ClickException."""
    name = Path(file.name).stem if file.name not in ("-", "<stdin>") else "job"
    try:
        job = job_files.read(file.read())
        return job_files.recognised(job, Api(api) if api else None, name, f"explain_{now}")
    except (Unreadable, UnicodeDecodeError) as failure:
        raise click.ClickException(f"{file.name}: {failure}") from None
