"""Checks whether a node is fit to run replicas, before its agent gives out slots."""

import shutil
from pathlib import Path

from trainshed.engines.launch.devices import Devices
from trainshed.engines.port import EngineUnavailable
from trainshed_cluster.remote.clocks import told_skew

LEAST_DISK = 1 << 30
"""Bytes that must be free where agents and their programs write."""
_GIB = 1 << 30


class PreflightFailed(EngineUnavailable):
    """The node is not fit. The message says why."""


def require_fit(
    directory: Path,
    *,
    memory_bytes: int,
    gpus: int,
    devices: Devices,
    skew: float | None,
    meminfo: Path = Path("/proc/meminfo"),
) -> None:
    """Check the node for replicas that together need that much. `devices`: tells the GPUs, if any are needed.
    `skew`: seconds by which the node's clock is ahead of the service's; None = unknown. Blocks. Raises
    PreflightFailed with everything that is wrong."""
    wrong: list[str] = []
    try:
        disk = shutil.disk_usage(directory).free
    except OSError as error:
        raise PreflightFailed(f"its disk cannot be looked at: {error}") from error
    if disk < LEAST_DISK:
        wrong.append(f"{_gib(disk)} of disk are free, {_gib(LEAST_DISK)} are needed")
    available = _available(meminfo)
    if available is not None and available < memory_bytes:
        wrong.append(f"{_gib(available)} of memory are free, {_gib(memory_bytes)} are needed")
    if clock := told_skew(skew or 0.0):
        wrong.append(clock)
    if gpus and (there := len(devices.find())) < gpus:
        wrong.append(f"the driver names {there} GPUs, {gpus} are needed")
    if wrong:
        raise PreflightFailed("; ".join(wrong))


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
