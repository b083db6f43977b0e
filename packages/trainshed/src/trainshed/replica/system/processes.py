"""Reads a replica's processes, their resource usage and their state from /proc. Kills only its caller's
descendants.

Process IDs are those of the caller's process namespace. A process may exit between any two reads; no function
raises an error in this case. Runs on Python 3.6.
"""

import os
import signal
import time


def read(path: str) -> bytes:
    """Return the content of a file of /proc, or b"" if it is missing or unreadable. Faster than `open`."""
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
    """Return the fields of /proc/PID/stat, from the process state (field 3 in proc(5)) on. Returns [] if the
    process does not exist."""
    return read("/proc/%d/stat" % process).rpartition(b")")[2].split()


def parents() -> "dict[int, int]":
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    fields_of = {int(name): stat(int(name)) for name in names if name.isdigit()}
    return {process: int(fields[1]) for process, fields in fields_of.items() if fields}


def descendants(process: int) -> "list[int]":
    """Return all descendants of `process`, parents before their children. Reads all visible processes. In a
    process namespace, only the replica's processes are visible."""
    parent_of = parents()
    below: "list[int]" = []
    layer = [process]
    while layer:
        above = set(layer)
        layer = [child for child, parent in parent_of.items() if parent in above]
        below.extend(layer)
    return below


def programs(shim: int) -> "list[int]":
    """Return all processes of a shim's replica, parents before their children. These are the shim's
    descendants without its helpers. Helpers are in the shim's session. A program has another session and
    cannot join the shim's session."""
    own = _session(shim)
    return [process for process in descendants(shim) if _session(process) != own]


def _session(process: int) -> int:
    fields = stat(process)
    return int(fields[3]) if fields else 0


def group(process: int) -> int:
    """Return the process group ID of a process, or 0 if the process does not exist."""
    fields = stat(process)
    return int(fields[2]) if fields else 0


def has_handler(process: int, number: int) -> bool:
    """Whether a process has a handler for signal `number`."""
    for line in read("/proc/%d/status" % process).splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def resource_use(shim: int) -> "tuple[float, int]":
    """Return the resources that a shim's replica has used: processor seconds, and bytes read and written.

    These are sums over living processes. A reaped process counts for its parent, which may be the shim.
    """
    ticks = sum(map(int, stat(shim)[13:15]))
    moved = 0
    for process in programs(shim):
        ticks += sum(map(int, stat(process)[11:15]))
        for line in read("/proc/%d/io" % process).splitlines()[:2]:
            moved += int(line.split()[1])  # These fields are rchar and wchar.
    return ticks / os.sysconf("SC_CLK_TCK"), moved


def running_time(process: int) -> int:
    """Return the processor time of a process with one thread, or 0 if it is unknown. The unit is the finest
    available one: nanoseconds or clock ticks."""
    fields = read("/proc/%d/schedstat" % process).split()
    return int(fields[0]) if fields else sum(map(int, stat(process)[11:13]))


def resident(shim: int) -> "dict[int, int]":
    """Return the memory of all processes of a shim's replica in bytes, by process ID. These are upper bounds:
    shared memory and mapped files count for each process."""
    page = os.sysconf("SC_PAGE_SIZE")
    sizes: "dict[int, int]" = {}
    for process in programs(shim):
        fields = read("/proc/%d/statm" % process).split()
        if fields:
            sizes[process] = int(fields[1]) * page
    return sizes


def own_memory(process: int) -> int:
    """Return the private memory of a process in bytes, or -1 if it is unknown. Like control groups, it
    excludes mapped files and divides shared memory among its users. Slower than `resident`."""
    total = -1
    for line in read("/proc/%d/smaps_rollup" % process).splitlines():
        if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
            total = max(total, 0) + (int(line.split()[1]) << 10)
    if total >= 0:
        return total
    for line in read("/proc/%d/status" % process).splitlines():  # Fallback for kernels before 5.1.
        if line.startswith((b"RssAnon:", b"RssShmem:")):
            total = max(total, 0) + (int(line.split()[1]) << 10)
    return total


def send(process: int, number: int) -> None:
    """Send signal `number` to a process. Does nothing if it does not exist or permission is missing."""
    try:
        os.kill(process, number)
    except (ProcessLookupError, PermissionError):
        return


def end_child(child: int) -> None:
    """Kill a child and reap it. Does nothing if the child was reaped before, because its ID may be reused."""
    try:
        if os.waitpid(child, os.WNOHANG)[0] == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    except ChildProcessError:
        return


def end_descendants() -> None:
    """Kill and reap all descendants of this process, which must be a child subreaper. Blocks until no
    descendant remains."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in descendants(os.getpid()):
            send(child, signal.SIGKILL)
        time.sleep(0.001)
