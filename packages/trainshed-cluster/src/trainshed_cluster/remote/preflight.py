"""Checks whether a node is fit to run replicas, before its agent gives out slots."""

import shutil
from pathlib import Path

from msgspec import Struct

from trainshed.engines.launch.devices import Devices
from trainshed.engines.port import EngineUnavailable
from trainshed_cluster.remote.clocks import told_skew

LEAST_DISK = 1 << 30
"""Bytes that must be free where agents and their programs write."""
_GIB = 1 << 30


class PreflightFailed(EngineUnavailable):
    """The node is not fit. The message says why."""


class Findings(Struct, frozen=True):
    """What the checks found on a node."""

    #: Free disk space where agents write.
    disk_bytes: int
    #: Memory that programs can still get; None = the system does not tell.
    memory_bytes: int | None
    #: Seconds by which the node's clock is ahead of the service's; None = unknown.
    skew: float | None
    #: Number of GPUs that the driver lists; None = none are needed.
    gpus: int | None = None


def look(
    directory: Path, *, skew: float | None, devices: Devices | None, meminfo: Path | None = None
) -> Findings:
    """Check the node. `devices`: None = GPUs are not counted. Blocks. Raises OSError."""
    return Findings(
        shutil.disk_usage(directory).free,
        _available(meminfo or Path("/proc/meminfo")),
        skew,
        len(devices.find()) if devices is not None else None,
    )


def failures(findings: Findings, *, memory_bytes: int, gpus: int) -> tuple[str, ...]:
    """Return everything that is wrong with a node for replicas that together need that much. Pure."""
    wrong: list[str] = []
    if findings.disk_bytes < LEAST_DISK:
        wrong.append(f"{_gib(findings.disk_bytes)} of disk are free, {_gib(LEAST_DISK)} are needed")
    if findings.memory_bytes is not None and findings.memory_bytes < memory_bytes:
        there, needed = _gib(findings.memory_bytes), _gib(memory_bytes)
        wrong.append(f"{there} of memory are free, {needed} are needed")
    if clock := told_skew(findings.skew or 0.0):
        wrong.append(clock)
    if findings.gpus is not None and findings.gpus < gpus:
        wrong.append(f"the driver names {findings.gpus} GPUs, {gpus} are needed")
    return tuple(wrong)


def _available(meminfo: Path) -> int | None:
    """Return the bytes that programs can get without swapping, as Linux estimates; None = unknown."""
    try:
        text = meminfo.read_text("ascii")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _gib(size: int) -> str:
    return f"{size / _GIB:.2g} GiB"
