"""`trainshed jobs top`: shows the resources that a job's replicas use, and their peaks. Also makes the part
of `jobs describe` about them."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView
from trainshed.cli.output_format import print_data, takes_form
from trainshed.cli.reader import until_reader_leaves
from trainshed.cli.reduction_table import reduction_lines, size
from trainshed.cli.text.colours import faint, replica_colour, state_colour
from trainshed.cli.text.moments import duration, gibibytes, parse_moment
from trainshed.cli.text.tables import Column, joined, spark, table
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.record import read
from trainshed.wire.trainshed_v1.usage import GpuUsage, ReplicaUsage, Usage

_LOOK_AGAIN = 2.0
"""Seconds between two requests; replicas are measured less often than that."""
_SHOWN = 24
"""Points of a small chart in a column."""

_NOTHING = "–"
_NETWORK = (Column("SENT", right=True), Column("RECEIVED", right=True))


@click.command()
@takes_job
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
    """Show what replicas use: processors, memory, disk, network, GPUs.

    CPU is in per cent of the vCPUs that were asked for; MEMORY leaves out files that are only cached; DISK is
    what a replica's own files take; SENT and RECEIVED are what went over TCP since its start.
    """
    if watch and (attempt or form == "json"):
        raise click.UsageError("--watch goes with neither --attempt nor --format json.")
    client = endpoint.client(raw=form == "json")
    path = job_path(JobView.parse(find_job(client, job, endpoint.project)).program.uid, "/usage")

    def look() -> Usage:
        return read(client.get(path, attempt=attempt, points=_SHOWN), Usage)

    if form == "json":
        print_data(client.get(path, attempt=attempt))
    elif watch:
        _watch(look, session.now)
    else:
        for line in _lines(look(), session.now()):
            click.echo(line)


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


def _lines(usage: Usage, now: Nanos) -> list[str]:
    return [*usage_lines(usage, now), *reduction_lines(usage.replicas)]


def _watch(look: Callable[[], Usage], now: Callable[[], int]) -> None:
    """Show the usage until the job is over: refreshed in place on a terminal, else printed at each change."""
    try:
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
            _draw(look, now)
        else:
            with until_reader_leaves():
                _print(look, now)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _print(look: Callable[[], Usage], now: Callable[[], int]) -> None:
    shown: list[tuple[str, ...]] = []
    while True:
        usage = look()
        samples = [
            (replica.state, replica.sample_time, replica.reduction.sample_time)
            if replica.reduction
            else (replica.state, replica.sample_time)
            for replica in usage.replicas
        ]
        if samples != shown:
            for line in [*([""] if shown else []), *_lines(usage, now())]:
                click.echo(line)
            shown = samples
        if _is_over(usage):
            return
        time.sleep(_LOOK_AGAIN)


def _draw(look: Callable[[], Usage], now: Callable[[], int]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            usage = look()
            text = Text.from_ansi("\n".join(_lines(usage, now())))
            text.no_wrap = True
            live.update(text, refresh=True)
            if _is_over(usage):
                return
            time.sleep(_LOOK_AGAIN)


def _is_over(usage: Usage) -> bool:
    return JobState(usage.state).is_final


def usage_lines(usage: Usage, now: Nanos) -> list[str]:
    """Return the lines of a job's usage: the table, how old it is, and hints."""
    last = max((parse_moment(replica.sample_time) for replica in usage.replicas), default=0)
    if not last and _is_over(usage):
        return [
            "Nothing is known: it was over within a second, or its usage was deleted with its log."
        ]
    if not last:
        return ["Nothing is known yet: a replica is first looked at a second after its start."]
    lines = top_table(usage.replicas)
    if any(not replica.over and replica.sample_time for replica in usage.replicas):
        lines.append(faint(f"as of {duration(now - last)} ago"))
    return [*lines, *hint_lines(usage)]


def top_table(replicas: Sequence[ReplicaUsage]) -> list[str]:
    """Return the lines of a table of what replicas use now. GPUs and the network have columns only if there
    are GPUs, or the network is measured."""
    gpus = any(replica.gpus for replica in replicas)
    network = _is_counted(replicas)
    columns: list[Column] = [
        Column("REPLICA"),
        Column("STATE"),
        Column("CPU", right=True),
        Column("MEAN", right=True),
        Column("OF", right=True),
        Column("MEMORY", right=True),
        Column("PEAK", right=True),
        Column("OF", right=True),
        Column("DISK", right=True),
        *(_NETWORK if network else []),
        *([Column("GPU"), Column("GPU MEMORY", right=True)] if gpus else []),
        Column("CPU LATELY"),
    ]
    rows = [
        (
            replica.task,
            replica.state or _NOTHING,
            _NOTHING
            if replica.over or not replica.sample_time
            else _share(replica.cpus, replica.vcpus),
            _share(replica.mean_cpus, replica.vcpus) if replica.sample_time else _NOTHING,
            f"{replica.vcpus:g}" if replica.vcpus else _NOTHING,
            _NOTHING if replica.over else gibibytes(replica.memory_bytes),
            gibibytes(replica.peak_memory_bytes),
            gibibytes(replica.limit_bytes),
            gibibytes(replica.disk_bytes),
            *(_network_cells(replica) if network else ()),
            *(_gpu_cells(replica) if gpus else ()),
            spark([point.cpus for point in replica.points]),
        )
        for replica in replicas
    ]
    return _coloured(columns, rows, replicas)


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
        if columns[1].title == "STATE" and replica.state:
            row[1] = click.style(row[1], fg=state_colour(ReplicaState(replica.state)))
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


def _gpu_cells(replica: ReplicaUsage) -> tuple[str, str]:
    if replica.over:
        return _NOTHING, _NOTHING
    return (
        _percents(gpu.busy for gpu in replica.gpus),
        _sizes(replica.gpus, lambda gpu: gpu.memory_bytes),
    )


def _percents(busy: Iterable[float | None]) -> str:
    """Return a share for each GPU, such as `97% 85%`."""
    return " ".join(_NOTHING if share is None else f"{share:.0%}" for share in busy) or _NOTHING


def _sizes(gpus: Sequence[GpuUsage], size: Callable[[GpuUsage], int | None]) -> str:
    """Return the memory of all GPUs together, such as `5.0 GiB of 16.0 GiB`."""
    total = sum(gpu.total_memory_bytes or 0 for gpu in gpus)
    used = sum(size(gpu) or 0 for gpu in gpus)
    return f"{gibibytes(used)} of {gibibytes(total)}" if total else _NOTHING


def _share(cpus: float, vcpus: float) -> str:
    return f"{cpus / vcpus:.0%}" if vcpus else f"{cpus:.2f}"
