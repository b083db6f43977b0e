"""Who is there on this machine: processes that carry a mark, mounts and control groups of a service."""

import contextlib
import os
import select
import signal
import uuid
from pathlib import Path


def new_mark() -> str:
    """A word that no other process carries."""
    return f"mark-{uuid.uuid4().hex}"


def marked(mark: str) -> list[int]:
    """Processes with `mark` in their command line or environment, zombies excluded, this process too."""
    pids: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            texts = [Path(entry.path, name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue  # Ended since it was listed.
        if any(mark.encode() in text for text in texts):
            pids.append(int(entry.name))
    return pids


def commands(mark: str) -> list[int]:
    """Processes with `mark` in their command line alone, which is quicker to look through."""
    lines: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes()
            except OSError:
                continue  # Ended since it was listed.
            if mark.encode() in words:
                lines.append(int(entry.name))
    return lines


def wait_until_gone(pids: list[int], seconds: float = 20) -> None:
    """Wait for the end of processes; woken by the kernel."""
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
    pids: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_bytes()
            except OSError:
                continue
            if int(stat.rpartition(b")")[2].split()[1]) == pid:
                pids.append(int(entry.name))
    return pids


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


def processor_seconds(pid: int) -> float:
    """What a process has computed so far, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
