"""A replica's processes by the system's process table: who they are, what they use, how they stand.

Reads, and ends nobody but a caller's own descendants. From outside the replica's process namespace the
numbers are the outer ones. Where there is no /proc (macOS) nearly nothing is known: lists are empty,
`resident` asks `ps`. A process may end between any two looks, so nothing here raises because of that. Runs on
Python 3.6.
"""

import os
import time

from trainshed.replica import protocol
from trainshed.replica.system import lean_signal as signal

_EXITING = 0x4
"""PF_EXITING of the kernel's process flags: on its way out, which may take a while with much memory."""


def read(path: str) -> bytes:
    """A file of /proc; b"" if it is not there, not readable or not any more. Cheaper than `open`."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        data = b""
        while True:
            chunk = os.read(handle, 8192)
            if not chunk:
                return data
            data += chunk
    except OSError:
        return b""
    finally:
        os.close(handle)


def stat(process: int) -> "list[bytes]":
    """The fields of /proc/PID/stat from the state (number 3 in proc(5)) on; [] if there is no such
    process."""
    return read("/proc/%d/stat" % process).rpartition(b")")[2].split()


def parents() -> "dict[int, int]":
    """The parent of every process that is to be seen."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    found: "dict[int, int]" = {}
    for name in names:
        if name.isdigit():
            fields = stat(int(name))
            if fields:
                found[int(name)] = int(fields[1])
    return found


def descendants(process: int) -> "list[int]":
    """Every process below `process`, parents before their children, by a look at all processes of the
    machine."""
    return _below(process, parents())


def _below(process: int, parent_of: "dict[int, int]") -> "list[int]":
    found: "list[int]" = []
    layer = [process]
    while layer:
        above = set(layer)
        layer = [child for child, parent in parent_of.items() if parent in above]
        found.extend(layer)
    return found


def family(process: int) -> "list[int]":
    """The same, quicker: what it costs depends on the replica alone, not on the machine.

    It may miss a process that is made, or whose sibling ends, in this very moment: good enough for measuring.
    """
    if not os.path.exists("/proc/thread-self/children"):
        return descendants(process)
    found: "list[int]" = []
    layer = [process]
    while layer:
        below: "list[int]" = []
        for parent in layer:
            below.extend(_children(parent))
        found.extend(below)
        layer = below
    return found


def _children(process: int) -> "list[int]":
    """Each thread has children of its own."""
    tasks = "/proc/%d/task" % process
    try:
        threads = os.listdir(tasks)
    except OSError:
        return []
    return [
        int(child)
        for thread in threads
        for child in read("%s/%s/children" % (tasks, thread)).split()
    ]


def oldest_child(process: int) -> int:
    """The child that has lived longest; 0 = none is known. A guardian's is the replica's main process: what a
    guardian adopts descends from that, and is younger."""
    ages = [(protocol.process_start(child), child) for child in _children(process)]
    if not ages:
        ages = [(protocol.process_start(c), c) for c, p in parents().items() if p == process]
    return min(ages)[1] if ages else 0


def is_dying(process: int) -> bool:
    """It has been killed and is not gone yet: giving its memory back may take seconds."""
    for line in read("/proc/%d/status" % process).splitlines():
        if line.startswith((b"SigPnd:", b"ShdPnd:")) and _has(line, signal.SIGKILL):
            return True
    fields = stat(process)
    return bool(fields) and bool(int(fields[6]) & _EXITING)


def handles(process: int, number: int) -> bool:
    """Whether it has a handler of its own for a signal."""
    for line in read("/proc/%d/status" % process).splitlines():
        if line.startswith(b"SigCgt:"):
            return _has(line, number)
    return False


def _has(line: bytes, number: int) -> bool:
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


def libraries(process: int) -> "set[str]":
    """Paths of the shared libraries that it has mapped, as it sees them; nothing where it may not be looked
    at."""
    found: "set[str]" = set()
    for line in read("/proc/%d/maps" % process).splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and b".so" in fields[5]:
            found.add(fields[5].decode("utf-8", "replace"))
    return found


def name(process: int) -> str:
    """What `ps` calls it, at most 15 characters."""
    return read("/proc/%d/comm" % process).decode("utf-8", "replace").strip()


def number_inside(process: int) -> int:
    """Its process id as it sees it itself, in its own namespace."""
    for line in read("/proc/%d/status" % process).splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return process


def used(guardian: int) -> "tuple[float, int]":
    """What a guardian's family has used so far: seconds of processor time, and bytes read and written.

    Sums over those that live; who was waited for is part of whoever waited, the guardian included.
    """
    ticks = moved = 0
    for process in [guardian, *family(guardian)]:
        fields = stat(process)
        if fields:
            # Of the guardian only what it inherited: its own work is ours.
            ticks += sum(map(int, fields[13:15] if process == guardian else fields[11:15]))
        for line in read("/proc/%d/io" % process).splitlines()[:2]:
            moved += int(line.split()[1])  # rchar, wchar
    return ticks / os.sysconf("SC_CLK_TCK"), moved


def running_time(process: int) -> int:
    """How long a process with one thread has been on a processor, in the finest unit that there is; 0 = not
    known."""
    fields = read("/proc/%d/schedstat" % process).split()
    return int(fields[0]) if fields else sum(map(int, stat(process)[11:13]))


def resident(guardian: int) -> "dict[int, int]":
    """Bytes of memory of each process below a guardian, at most: what they share is counted for each of them,
    and so are mapped files."""
    page = os.sysconf("SC_PAGE_SIZE")
    found: "dict[int, int]" = {}
    for process in family(guardian):
        fields = read("/proc/%d/statm" % process).split()
        if fields:
            found[process] = int(fields[1]) * page
    if found or os.path.isdir("/proc/self"):
        return found
    return _asked_for(guardian)


def _asked_for(guardian: int) -> "dict[int, int]":
    import subprocess  # Only here: every module imported before makes every fork dearer.

    try:
        table = subprocess.check_output(["ps", "-axo", "pid=,ppid=,rss="])
    except (OSError, subprocess.CalledProcessError):
        return {}
    rows = [tuple(map(int, line.split())) for line in table.splitlines()]
    below = _below(guardian, {pid: parent for pid, parent, _ in rows})
    return {pid: kilobytes << 10 for pid, _, kilobytes in rows if pid in below}


def own_memory(process: int) -> int:
    """Bytes that a process has for itself: memory without mapped files, what is shared by halves (or as many
    parts as share it), as control groups would count it. Dearer than `resident`; -1 = not known."""
    total = -1
    for line in read("/proc/%d/smaps_rollup" % process).splitlines():
        if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
            total = max(total, 0) + (int(line.split()[1]) << 10)
    if total >= 0:
        return total
    for line in read("/proc/%d/status" % process).splitlines():  # Kernels before 5.1.
        if line.startswith((b"RssAnon:", b"RssShmem:")):
            total = max(total, 0) + (int(line.split()[1]) << 10)
    return total


def has_open(process: int, file: os.stat_result) -> bool:
    """Whether a process has a file open, as far as this one may look."""
    places = "/proc/%d/fd/" % process
    try:
        handles = os.listdir(places)
    except OSError:
        return False
    for handle in handles:
        try:
            if os.path.samestat(os.stat(places + handle), file):
                return True
        except OSError:
            continue  # Closed meanwhile.
    return False


def send(process: int, number: int) -> None:
    """Signal a process, if it is still there."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def end_descendants() -> None:
    """Kill and reap every descendant of this process, which adopts orphans; new ones that they make as
    well."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in descendants(os.getpid()):
            send(child, signal.SIGKILL)
        time.sleep(0.001)
