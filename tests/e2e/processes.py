"""Processes with a mark, and mounts and cgroups of a service on this machine."""

import contextlib
import os
import select
import signal
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path


def new_mark() -> str:
    """Return a word that no other process contains."""
    return f"mark-{uuid.uuid4().hex}"


def _all(file: str) -> Iterator[tuple[int, bytes]]:
    """Yield every process, with the contents of that file of it."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                content = Path(entry.path, file).read_bytes()
            except OSError:
                continue  # It has exited since the listing.
            yield int(entry.name), content


def find_marked(mark: str) -> list[int]:
    """Return processes with `mark` in their command line or environment, without zombies and this process."""
    texts = (pair for file in ("cmdline", "environ") for pair in _all(file))
    return sorted({pid for pid, text in texts if mark.encode() in text} - {os.getpid()})


def commands(*words: str) -> list[int]:
    """Return processes with all of these words in their command line, which is faster."""
    return [pid for pid, line in _all("cmdline") if all(word.encode() in line for word in words)]


def wait_until_gone(pids: Iterable[int], seconds: float = 60) -> None:
    """Wait for the exit of processes, including those of other parents, through the kernel. A zombie has
    exited.
    """
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], seconds)[0], f"process {pid} still lives"
        finally:
            os.close(handle)


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    stats = _all("stat")
    return [child for child, stat in stats if int(stat.rpartition(b")")[2].split()[1]) == pid]


def end_those_in(directory: Path) -> None:
    """Kill all processes whose working directory is below a directory, as those of replicas are. Their
    programs end with them."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if Path(entry.path, "cwd").readlink().is_relative_to(directory):
                    os.kill(int(entry.name), signal.SIGKILL)


def command_line(pid: int) -> str:
    """Return its command line; "" for a process that has exited."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode()


def leftovers(data: Path) -> list[str]:
    """Return the leftovers of a service with its data in `data`: mounts, cgroups, slots."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(data) in line]
    from trainshed.engines.local.machine import identity

    groups = [
        directory
        for directory, _, _ in os.walk("/sys/fs/cgroup")
        if f"trainshed-{identity(data)}-" in directory
    ]
    slots = data / "slots"
    kept = [str(path) for path in slots.glob("[0-9]*")]
    return [*mounts, *groups, *kept]


def processor_seconds(pid: int, *, with_children: bool = False) -> float:
    """Return the CPU time of a process and its exited children, with all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")
