"""Makes the part of `jobs describe` about the resources that a job's replicas use."""

from collections.abc import Callable, Iterable, Sequence

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.jobs.references import job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.reduction_table import reduction_lines, size
from trainshed.cli.text.colours import faint, replica_colour
from trainshed.cli.text.moments import gibibytes
from trainshed.cli.text.tables import Column, joined, table
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.usage import GpuUsage, ReplicaUsage, Usage

_NOTHING = "–"
_NETWORK = (Column("SENT", right=True), Column("RECEIVED", right=True))


def describe_lines(client: Client, job: JobView) -> list[str]:
    """Return the lines of `jobs describe` about the resources that a job used; [] if nothing is known yet."""
    program = job.program
    if not any(replica.started for replica in program.replicas):
        return []
    try:
        usage = read(client.get(job_path(program.uid, "/usage"), points=0), Usage)
    except Refused as refused:
        if refused.status == 404:
            return []  # The service is older than this command.
        raise
    replicas = [replica for replica in usage.replicas if replica.sample_time]
    if not replicas:
        return []
    return ["", *summary_table(replicas), *reduction_lines(usage.replicas), *hint_lines(usage)]


def summary_table(replicas: Sequence[ReplicaUsage]) -> list[str]:
    """Return the lines of a table of what replicas used on average and at most."""
    gpus = any(replica.gpus for replica in replicas)
    network = _is_counted(replicas)
    columns: list[Column] = [
        Column("USED BY"),
        Column("MEAN CPU", right=True),
        Column("PEAK MEMORY", right=True),
        *(_NETWORK if network else []),
        *([Column("MEAN GPU"), Column("PEAK GPU MEMORY", right=True)] if gpus else []),
    ]
    rows = [
        (
            replica.task,
            f"{replica.mean_cpus:.2f} of {replica.vcpus:g}",
            f"{gibibytes(replica.peak_memory_bytes)} of {gibibytes(replica.limit_bytes)}",
            *(_network_cells(replica) if network else ()),
            *(
                (
                    _percents(gpu.mean_busy for gpu in replica.gpus),
                    _sizes(replica.gpus, lambda gpu: gpu.peak_memory_bytes),
                )
                if gpus
                else ()
            ),
        )
        for replica in replicas
    ]
    return _coloured(columns, rows, replicas)


def _coloured(
    columns: list[Column], rows: Iterable[tuple[str, ...]], replicas: Sequence[ReplicaUsage]
) -> list[str]:
    header, *cells = table(columns, list(rows))
    lines = [faint(joined(header))]
    for replica, row in zip(replicas, cells, strict=True):
        row[0] = click.style(row[0], fg=replica_colour(replica.id))
        lines.append(joined(row))
    return lines


def hint_lines(usage: Usage) -> list[str]:
    """Return the service's hints about resources that were requested and hardly used, after an empty line."""
    return ["", *(click.style(hint, fg="yellow") for hint in usage.hints)] if usage.hints else []


def _is_counted(replicas: Sequence[ReplicaUsage]) -> bool:
    """Whether the network of any replica is measured."""
    return any(replica.sent_bytes is not None for replica in replicas)


def _network_cells(replica: ReplicaUsage) -> tuple[str, str]:
    counts = (replica.sent_bytes, replica.received_bytes)
    sent, received = (_NOTHING if count is None else size(count) for count in counts)
    return sent, received


def _percents(busy: Iterable[float | None]) -> str:
    """Return a share for each GPU, such as `97% 85%`."""
    return " ".join(_NOTHING if share is None else f"{share:.0%}" for share in busy) or _NOTHING


def _sizes(gpus: Sequence[GpuUsage], size: Callable[[GpuUsage], int | None]) -> str:
    """Return the memory of all GPUs together, such as `5.0 GiB of 16.0 GiB`."""
    total = sum(gpu.total_memory_bytes or 0 for gpu in gpus)
    used = sum(size(gpu) or 0 for gpu in gpus)
    return f"{gibibytes(used)} of {gibibytes(total)}" if total else _NOTHING
