"""Who is there on this machine: processes that carry a mark, mounts and control groups of a service."""

import contextlib
import os
import select
import signal
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path


def new_mark() -> str:
    """A word that no other process carries."""
    return f"mark-{uuid.uuid4().hex}"


def _all(file: str) -> Iterator[tuple[int, bytes]]:
    """Every process that is there, with what that file of it says."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                content = Path(entry.path, file).read_bytes()
            except OSError:
                continue  # Ended since it was listed.
            yield int(entry.name), content


def marked(mark: str) -> list[int]:
    """Processes with `mark` in their command line or environment, zombies excluded, this process too."""
    texts = (pair for file in ("cmdline", "environ") for pair in _all(file))
    return sorted({pid for pid, text in texts if mark.encode() in text} - {os.getpid()})


def commands(*words: str) -> list[int]:
    """Processes with all of these words in their command line, which is quicker to look through."""
    return [pid for pid, line in _all("cmdline") if all(word.encode() in line for word in words)]


def wait_until_gone(pids: Iterable[int], seconds: float = 60) -> None:
    """Wait for the end of processes, of others as well; woken by the kernel. A zombie is gone."""
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
    """Direct children of a process."""
    stats = _all("stat")
    return [child for child, stat in stats if int(stat.rpartition(b")")[2].split()[1]) == pid]


def end_those_in(directory: Path) -> None:
    """End every process that works in a directory or below it, as replicas do; their programs end with
    them."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if Path(entry.path, "cwd").readlink().is_relative_to(directory):
                    os.kill(int(entry.name), signal.SIGKILL)


def command_line(pid: int) -> str:
    """Its words; "" for a process that has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return words.replace(b"\0", b" ").decode()


def leftovers(data: Path) -> list[str]:
    """What a service with its data in `data` left on the machine: mounts, control groups, slots."""
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
    """What a process, and its ended children, have computed so far, all threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")
