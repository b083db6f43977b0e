"""Reads a replica's processes from the system's process table: which they are, what they use, and their
state.

It ends no process but descendants of its caller. Outside the replica's process namespace, process ids are the
outer ones. A process may end between any two reads, so that no function raises because of that. Runs on
Python 3.6.
"""

import os
import signal
import time


def read(path: str) -> bytes:
    """Return a file of /proc; b"" if it does not exist or cannot be read. Cheaper than `open`."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(handle, 8192), b""))
    except OSError:
        return b""
    finally:
        os.close(handle)


def stat(process: int) -> "list[bytes]":
    """Return the fields of /proc/PID/stat from the state (number 3 in proc(5)) on; [] if there is no such
    process."""
    return read("/proc/%d/stat" % process).rpartition(b")")[2].split()


def parents() -> "dict[int, int]":
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    fields_of = {int(name): stat(int(name)) for name in names if name.isdigit()}
    return {process: int(fields[1]) for process, fields in fields_of.items() if fields}


def descendants(process: int) -> "list[int]":
    """Return every process below `process`, parents before their children. Reads all visible processes, which
    in a process namespace are only the replica's."""
    parent_of = parents()
    below: "list[int]" = []
    layer = [process]
    while layer:
        above = set(layer)
        layer = [child for child, parent in parent_of.items() if parent in above]
        below.extend(layer)
    return below


def programs(shim: int) -> "list[int]":
    """Return every process of a shim's replica, parents before their children: all below the shim but its
    helpers, which stay in its session. A program has a session of its own, and none can join another."""
    own = _session(shim)
    return [process for process in descendants(shim) if _session(process) != own]


def _session(process: int) -> int:
    fields = stat(process)
    return int(fields[3]) if fields else 0


def group(process: int) -> int:
    """Return the process group of a process; 0 if there is no such process."""
    fields = stat(process)
    return int(fields[2]) if fields else 0


def handles(process: int, number: int) -> bool:
    """Whether a process has its own handler for a signal."""
    for line in read("/proc/%d/status" % process).splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def used(shim: int) -> "tuple[float, int]":
    """Return what a shim's replica has used so far: seconds of processor time, and bytes read and written.

    These are sums over living processes; a process that was waited for counts with its parent, which may be
    the shim.
    """
    ticks = sum(map(int, stat(shim)[13:15]))
    moved = 0
    for process in programs(shim):
        ticks += sum(map(int, stat(process)[11:15]))
        for line in read("/proc/%d/io" % process).splitlines()[:2]:
            moved += int(line.split()[1])  # rchar, wchar
    return ticks / os.sysconf("SC_CLK_TCK"), moved


def running_time(process: int) -> int:
    """Return how long a process with one thread has been on a processor, in the finest unit available
    (nanoseconds or clock ticks); 0 = not known."""
    fields = read("/proc/%d/schedstat" % process).split()
    return int(fields[0]) if fields else sum(map(int, stat(process)[11:13]))


def resident(shim: int) -> "dict[int, int]":
    """Return bytes of memory, by process, of all processes of a shim's replica. These are upper bounds:
    shared memory counts for each process, and so do mapped files."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes: "dict[int, int]" = {}
    for process in programs(shim):
        fields = read("/proc/%d/statm" % process).split()
        if fields:
            sizes[process] = int(fields[1]) * page
    return sizes


def own_memory(process: int) -> int:
    """Return the private memory of a process in bytes: without mapped files, with shared memory divided among
    its users, like control groups. Slower than `resident`; -1 = unknown."""
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


def send(process: int, number: int) -> None:
    """Signal a process, if it still exists and we may."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def end_child(child: int) -> None:
    """Kill a child and reap it. Does nothing if it was reaped before: its number may be another's by now."""
    try:
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    except ChildProcessError:
        return


def end_descendants() -> None:
    """Kill and reap every descendant of this process, which adopts orphans, until none is left. Blocks."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in descendants(os.getpid()):
            send(child, signal.SIGKILL)
        time.sleep(0.001)
