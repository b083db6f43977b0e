"""What replicas use, with types and as tables. Pure.

Moments are nanoseconds since the epoch, sizes bytes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from trainshed.cli.colours import faint, replica_colour, state_colour
from trainshed.cli.moments import duration, gibibytes, parse_moment
from trainshed.cli.sparks import spark
from trainshed.cli.tables import Column, joined, table
from trainshed.core.lifecycle.states import ReplicaState

_NOTHING = "–"


@dataclass(frozen=True, slots=True)
class GpuView:
    """One GPU: the part of the time that it is at work, lately and on average (None: it does not tell), and its memory."""

    busy: float | None
    mean_busy: float | None
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
    """One replica. `state` None: of an earlier attempt; `seen`: when it was last looked at, ns, 0 = not yet; `over`: it runs
    no more. Processors at work `cpus` lately, `mean_cpus` on average; memory and disk in bytes, `disk` 0 = not known;
    `lately`: processors, oldest first."""

    id: str
    task: str
    state: ReplicaState | None
    vcpus: float
    limit: int
    seen: int
    over: bool
    cpus: float
    mean_cpus: float
    memory: int
    peak: int
    disk: int
    gpus: tuple[GpuView, ...]
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
