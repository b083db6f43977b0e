"""`trainshed jobs top`: what the replicas of a job use, now and at most; also what `jobs describe` tells of
it."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import find_job, job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output_format import takes_form
from trainshed.cli.reduction_table import reduction_lines
from trainshed.cli.text.colours import faint, replica_colour, state_colour
from trainshed.cli.text.moments import duration, gibibytes, parse_moment
from trainshed.cli.text.tables import Column, joined, spark, table
from trainshed.core.lifecycle.states import JobState, ReplicaState

_LOOK_AGAIN = 2.0
"""Seconds between two looks; replicas are looked at less often than that."""
_SHOWN = 24
"""Points of a line of blocks."""


_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class GpuView:
    """What one GPU does."""

    #: The part of the time that it is at work, lately and on average; None = it does not tell.
    busy: float | None
    mean_busy: float | None
    #: Bytes, as the next two.
    memory: int
    total: int
    peak: int

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "GpuView":
        """Read one of a replica's `gpus`."""
        return GpuView(
            found["busy"],
            found["meanBusy"],
            found["memoryBytes"] or 0,
            found["totalMemoryBytes"] or 0,
            found["peakMemoryBytes"] or 0,
        )


@dataclass(frozen=True, slots=True)
class UsedView:
    """What one replica uses."""

    id: str
    task: str
    #: None: the replica is of an earlier attempt.
    state: ReplicaState | None
    vcpus: float
    #: Bytes.
    limit: int
    #: When it was last looked at, ns; 0 = not yet.
    seen: int
    #: It runs no more.
    over: bool
    #: Processors at work lately, and on average.
    cpus: float
    mean_cpus: float
    #: Bytes, as the next two.
    memory: int
    peak: int
    #: 0 = not known.
    disk: int
    gpus: tuple[GpuView, ...]
    #: Processors at work, oldest first.
    lately: tuple[float, ...]

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "UsedView":
        """Read one of the `replicas` of a job's usage."""
        return UsedView(
            id=found["id"],
            task=found["task"],
            state=ReplicaState(found["state"]) if found["state"] else None,
            vcpus=found["vcpus"],
            limit=found["limitBytes"],
            seen=parse_moment(found["sampleTime"]),
            over=found["over"],
            cpus=found["cpus"],
            mean_cpus=found["meanCpus"],
            memory=found["memoryBytes"],
            peak=found["peakMemoryBytes"],
            # An older service does not say.
            disk=found.get("diskBytes", 0),
            gpus=tuple(map(GpuView.parse, found["gpus"])),
            lately=tuple(point["cpus"] for point in found["points"]),
        )


@click.command()
@click.argument("job")
@click.option("--watch", is_flag=True, help="Refresh until the job ends.")
@click.option(
    "--attempt", type=click.IntRange(min=1), help="Show this attempt. Default: the newest."
)
@takes_form
@takes_endpoint
@click.pass_obj
def command(
    session: Session, endpoint: Endpoint, *, job: str, watch: bool, attempt: int | None, form: str
) -> None:
    """Show what replicas use: processors, memory, disk, GPUs.

    CPU is in per cent of the vCPUs that were asked for; MEMORY leaves out files that are only cached; DISK is
    what a replica's own files take.
    """
    if watch and (attempt or form == "json"):
        raise click.UsageError("--watch goes with neither --attempt nor --format json.")
    client = endpoint.client(raw=form == "json")
    uid = JobView.parse(find_job(client, job, endpoint.project)).program.uid

    def look() -> dict[str, Any]:
        found: dict[str, Any] = client.get(
            job_path(uid, "/usage"), attempt=attempt, points=None if form == "json" else _SHOWN
        )
        return found

    if form == "json":
        click.echo(json.dumps(look(), indent=2))
    elif watch:
        _watch(look, session.now)
    else:
        for line in _lines(look(), session.now()):
            click.echo(line)


def describe_lines(client: Client, job: JobView) -> list[str]:
    """What `jobs describe` says of the use that a job made of its machines: [] as long as nothing is
    known."""
    program = job.program
    if not any(replica.started for replica in program.replicas):
        return []
    try:
        found: dict[str, Any] = client.get(job_path(program.uid, "/usage"), points=0)
    except Refused as refused:
        if refused.status == 404:
            return []  # A service that is older than this command.
        raise
    replicas = [each for each in map(UsedView.parse, found["replicas"]) if each.seen]
    if not replicas:
        return []
    return ["", *summary_table(replicas), *reduction_lines(found), *hint_lines(found)]


def _lines(found: Mapping[str, Any], now: int) -> list[str]:
    return [*usage_lines(found, now), *reduction_lines(found)]


def _watch(look: Callable[[], dict[str, Any]], now: Callable[[], int]) -> None:
    """Show it again and again until the job is over: drawn over on a terminal, else whenever there is
    something new."""
    try:
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
            _draw(look, now)
        else:
            _print(look, now)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _print(look: Callable[[], dict[str, Any]], now: Callable[[], int]) -> None:
    shown: list[Any] = []
    while True:
        found = look()
        seen = [
            (each["state"], each["sampleTime"], each.get("reduction", {}).get("sampleTime"))
            for each in found["replicas"]
        ]
        if seen != shown:
            for line in [*([""] if shown else []), *_lines(found, now())]:
                click.echo(line)
            shown = seen
        if _is_over(found):
            return
        time.sleep(_LOOK_AGAIN)


def _draw(look: Callable[[], dict[str, Any]], now: Callable[[], int]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            found = look()
            text = Text.from_ansi("\n".join(_lines(found, now())))
            text.no_wrap = True
            live.update(text, refresh=True)
            if _is_over(found):
                return
            time.sleep(_LOOK_AGAIN)


def _is_over(found: Mapping[str, Any]) -> bool:
    return JobState(found["state"]).is_final


def usage_lines(found: Mapping[str, Any], now: int) -> list[str]:
    """A job's usage as a table, and what is to be said of it."""
    replicas = [UsedView.parse(replica) for replica in found["replicas"]]
    seen = max((replica.seen for replica in replicas), default=0)
    if not seen:
        return ["Nothing is known yet: a replica is first looked at a second after its start."]
    lines = top_table(replicas)
    if any(not replica.over and replica.seen for replica in replicas):
        lines.append(faint(f"as of {duration(now - seen)} ago"))
    return [*lines, *hint_lines(found)]


def top_table(replicas: list[UsedView]) -> list[str]:
    """The lines of a table of what replicas use now; GPUs have columns only where there are any."""
    gpus = any(replica.gpus for replica in replicas)
    columns = [
        Column("REPLICA"),
        Column("STATE"),
        Column("CPU", right=True),
        Column("MEAN", right=True),
        Column("OF", right=True),
        Column("MEMORY", right=True),
        Column("PEAK", right=True),
        Column("OF", right=True),
        Column("DISK", right=True),
        *([Column("GPU"), Column("GPU MEMORY", right=True)] if gpus else []),
        Column("CPU LATELY"),
    ]
    rows = [
        (
            replica.task,
            replica.state.value if replica.state else _NOTHING,
            _NOTHING if replica.over or not replica.seen else _share(replica.cpus, replica.vcpus),
            _share(replica.mean_cpus, replica.vcpus) if replica.seen else _NOTHING,
            f"{replica.vcpus:g}" if replica.vcpus else _NOTHING,
            _NOTHING if replica.over else gibibytes(replica.memory),
            gibibytes(replica.peak),
            gibibytes(replica.limit),
            gibibytes(replica.disk),
            *(_gpu_cells(replica) if gpus else ()),
            spark(replica.lately),
        )
        for replica in replicas
    ]
    return _coloured(columns, rows, replicas)


def summary_table(replicas: list[UsedView]) -> list[str]:
    """The lines of a table of what replicas used in all."""
    gpus = any(replica.gpus for replica in replicas)
    columns = [
        Column("USED BY"),
        Column("MEAN CPU", right=True),
        Column("PEAK MEMORY", right=True),
        *([Column("MEAN GPU"), Column("PEAK GPU MEMORY", right=True)] if gpus else []),
    ]
    rows = [
        (
            replica.task,
            f"{replica.mean_cpus:.2f} of {replica.vcpus:g}",
            f"{gibibytes(replica.peak)} of {gibibytes(replica.limit)}",
            *(
                (
                    _percents(gpu.mean_busy for gpu in replica.gpus),
                    _sizes(replica.gpus, lambda gpu: gpu.peak),
                )
                if gpus
                else ()
            ),
        )
        for replica in replicas
    ]
    return _coloured(columns, rows, replicas)


def _coloured(
    columns: list[Column], rows: Iterable[tuple[str, ...]], replicas: list[UsedView]
) -> list[str]:
    header, *cells = table(columns, list(rows))
    lines = [faint(joined(header))]
    for replica, row in zip(replicas, cells, strict=True):
        row[0] = click.style(row[0], fg=replica_colour(replica.id))
        if columns[1].title == "STATE" and replica.state:
            row[1] = click.style(row[1], fg=state_colour(replica.state))
        lines.append(joined(row))
    return lines


def hint_lines(found: Mapping[str, Any]) -> list[str]:
    """What was asked for and hardly used."""
    hints: list[str] = found["hints"]
    return ["", *(click.style(hint, fg="yellow") for hint in hints)] if hints else []


def _gpu_cells(replica: UsedView) -> tuple[str, str]:
    if replica.over:
        return _NOTHING, _NOTHING
    return (
        _percents(gpu.busy for gpu in replica.gpus),
        _sizes(replica.gpus, lambda gpu: gpu.memory),
    )


def _percents(busy: Iterable[float | None]) -> str:
    """`97% 85%`: a GPU each."""
    return " ".join(_NOTHING if one is None else f"{one:.0%}" for one in busy) or _NOTHING


def _sizes(gpus: tuple[GpuView, ...], size: Callable[[GpuView], int]) -> str:
    """`5.0 GiB of 16.0 GiB`, of all GPUs together."""
    total = sum(gpu.total for gpu in gpus)
    return f"{gibibytes(sum(map(size, gpus)))} of {gibibytes(total)}" if total else _NOTHING


def _share(cpus: float, vcpus: float) -> str:
    return f"{cpus / vcpus:.0%}" if vcpus else f"{cpus:.2f}"
