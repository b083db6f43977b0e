"""Control groups of a replica: memory limit, out-of-memory verdict, CPU share, process limit. Versions 1 and
2.

Owns one directory per replica and controller; the directories under which they are made are found once by
`find_bases`. Runs on Python 3.6.
"""

import os
import time

from trainshed.replica import protocol
from trainshed.replica.system import kernel, processes
from trainshed.replica.system import lean_signal as signal

ROOT = "/sys/fs/cgroup"


def _read(path: str) -> str:
    # Not as text: Python would load what decodes it, in each shim anew.
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def _is_v2(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, "cgroup.controllers"))


def find_bases(root: str = ROOT, membership: str = "/proc/self/cgroup") -> "tuple[str, str, str]":
    """Directories (memory, cpu, pids) under which this process may make groups with limits; "" where it may
    not.

    Version 1: this process's own group, so that limits set on the service hold for its replicas. Version 2:
    its parent group if that hands the controllers on, else its own (a group with processes cannot hand them
    on).
    """
    try:
        lines = _read(membership).splitlines()
    except OSError:
        return "", "", ""
    memory = cpu = pids = ""
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if "memory" in names:
            memory = memory or _v1_base(root, controllers, "memory", path)
        if "cpu" in names:
            cpu = cpu or _v1_base(root, controllers, "cpu", path)
        if "pids" in names:
            pids = pids or _v1_base(root, controllers, "pids", path)
    for line in lines:
        if line.startswith("0::"):
            path = line[3:].lstrip("/")
            for candidate in (os.path.dirname(path), path):
                base = os.path.join(root, candidate).rstrip("/")
                memory = memory or _v2_base(base, "memory")
                cpu = cpu or _v2_base(base, "cpu")
                pids = pids or _v2_base(base, "pids")
    return memory, cpu, pids


def _v1_base(root: str, controllers: str, name: str, path: str) -> str:
    for mounted in (name, controllers):
        for inside in (path.lstrip("/"), ""):
            base = os.path.join(root, mounted, inside).rstrip("/")
            if os.path.exists(os.path.join(base, "cgroup.procs")) and _can_make(base):
                return base
    return ""


def _v2_base(base: str, controller: str) -> str:
    try:
        handed_on = _read(os.path.join(base, "cgroup.subtree_control")).split()
    except OSError:
        return ""
    return base if controller in handed_on and _can_make(base) else ""


def _can_make(base: str) -> bool:
    """Whether groups may be made there, and processes put into them."""
    trial = os.path.join(base, "trainshed-probe-%d" % os.getpid())
    try:
        os.mkdir(trial)
    except OSError:
        return False
    allowed = os.access(os.path.join(trial, "cgroup.procs"), os.W_OK)
    os.rmdir(trial)
    return allowed and os.access(os.path.join(base, "cgroup.procs"), os.W_OK)


def memory_limit(base: str) -> int:
    """The memory limit, in bytes, that holds for a group and all below it; 0 = none is known."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = _read(os.path.join(base, name)).strip()
        except OSError:
            continue  # The other version, or the topmost group, which has none.
        return int(text) if text.isdigit() else 0
    return 0


class ControlGroups:
    """One replica's control groups. Without bases it does nothing and knows nothing."""

    __slots__ = ("_bases", "_cpu", "_inside", "_limits", "_memory", "_outside", "_pids")

    def __init__(self, limits: protocol.Limits) -> None:
        self._limits, name = limits, limits.cgroup_name
        self._memory = os.path.join(limits.memory_base, name) if limits.memory_base else ""
        self._cpu = os.path.join(limits.cpu_base, name) if limits.cpu_base else ""
        self._pids = os.path.join(limits.pids_base, name) if limits.pids_base else ""
        self._bases: "dict[str, int]" = {}
        self._inside: "list[int]" = []
        self._outside: "list[int]" = []

    def directories(self) -> "list[str]":
        """Where they are, each once."""
        return sorted({path for path in (self._memory, self._cpu, self._pids) if path})

    @property
    def memory(self) -> str:
        """The directory of the group that counts memory, "" = there is none."""
        return self._memory

    @property
    def cpu(self) -> str:
        """The directory of the group that shares out the processors, "" = there is none."""
        return self._cpu

    def create(self) -> None:
        """Make the groups, empty ones of an earlier incarnation anew. Raises OSError: the limit that was
        promised cannot be set."""
        limits = self._limits
        remove(self.directories())
        for path in self.directories():
            os.mkdir(path)
        if self._memory and limits.memory_limit:
            self._limit_memory(limits.memory_limit)
        if self._cpu and limits.cpu_weight:
            cpu_weight = limits.cpu_weight
            if _is_v2(self._cpu):
                kernel.write(
                    os.path.join(self._cpu, "cpu.weight"), str(min(10000, max(1, cpu_weight)))
                )
            else:
                shares = min(262144, max(2, cpu_weight * 1024 // 100))
                kernel.write(os.path.join(self._cpu, "cpu.shares"), str(shares))
        if self._pids and limits.pids_limit:
            kernel.write(os.path.join(self._pids, "pids.max"), str(limits.pids_limit))

    def _limit_memory(self, limit: int) -> None:
        if _is_v2(self._memory):
            kernel.write(os.path.join(self._memory, "memory.max"), str(limit))
            optional: "tuple[tuple[str, str], ...]" = (("memory.swap.max", "0"),)
        else:
            kernel.write(os.path.join(self._memory, "memory.limit_in_bytes"), str(limit))
            optional = (("memory.memsw.limit_in_bytes", str(limit)),)
        for name, text in optional:
            try:
                kernel.write(os.path.join(self._memory, name), text)
            except OSError:
                continue  # A kernel without swap accounting: nothing to turn off.

    def keep_bases(self) -> None:
        """Hold on to where they are made, for a process that will see it read-only when `hold` is called.
        Raises OSError."""
        for path in self.directories():
            base = os.path.dirname(path)
            if base not in self._bases:
                flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
                self._bases[base] = os.open(base, flags)

    def hold(self) -> None:
        """Open the ways in and out, for a process that will not be allowed to open them later. Raises
        OSError."""
        for path in self.directories():
            # By thread where that can be done: moving a process waits for every processor to have
            # noticed (a grace period of some milliseconds), moving the calling thread does not.
            name = "cgroup.procs" if _is_v2(path) else "tasks"
            base, own = os.path.split(path)
            for place, held in ((own, self._inside), ("", self._outside)):
                where = os.path.join(place, name)
                kept = self._bases.get(base)
                if kept is None:
                    where = os.path.join(base, where)
                held.append(os.open(where, os.O_WRONLY | os.O_CLOEXEC, dir_fd=kept))

    def enter(self) -> None:
        """Move the calling process, which has one thread and has called `hold`, in. Raises OSError."""
        for handle in self._inside:
            os.write(handle, b"0")

    @property
    def ways_in(self) -> "list[int]":
        """Handles by which a process of one thread moves itself in, by writing 0; after `hold`."""
        return self._inside

    @property
    def holds_memory(self) -> bool:
        """Whether the kernel holds a memory limit here."""
        return bool(self._memory)

    @property
    def moves_cheaply(self) -> bool:
        """Whether `enter` and `leave` are a matter of microseconds."""
        return not any(_is_v2(path) for path in self.directories())

    def leave(self) -> None:
        """Move the calling process back to where groups are made. Only where `moves_cheaply`. Raises
        OSError."""
        for handle in self._outside:
            os.write(handle, b"0")

    def watch(self) -> int:
        """A handle that polls as readable (or urgent) each time the memory limit is hit; -1 if there is
        none."""
        if not self._memory:
            return -1
        try:
            if _is_v2(self._memory):
                return os.open(os.path.join(self._memory, "memory.events"), os.O_RDONLY)
            return self._watch_v1()
        except OSError:
            return -1  # The verdict is then by the count alone.

    def _watch_v1(self) -> int:
        control = os.open(os.path.join(self._memory, "memory.oom_control"), os.O_RDONLY)
        try:
            handle = kernel.event_handle()
            kernel.write(
                os.path.join(self._memory, "cgroup.event_control"), "%d %d" % (handle, control)
            )
        finally:
            os.close(control)
        return handle

    def clear_watch(self, handle: int) -> None:
        """Take note of what `handle` tells, so that it polls as quiet until the next time."""
        if _is_v2(self._memory):
            os.lseek(handle, 0, os.SEEK_SET)
        os.read(handle, 4096)

    def oom_kills(self) -> int:
        """How many processes the kernel has killed at the memory limit so far."""
        if not self._memory:
            return 0
        name = "memory.events" if _is_v2(self._memory) else "memory.oom_control"
        try:
            for line in _read(os.path.join(self._memory, name)).splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        except OSError:
            return 0
        return 0


def kill(directories: "list[str]") -> None:
    """Send SIGKILL to all that is left in a replica's groups."""
    for path in directories:
        try:
            members = _read(os.path.join(path, "cgroup.procs")).split()
        except OSError:
            continue  # It is gone, as it should be.
        for member in members:
            if int(member) > 0:  # 0: of another namespace, out of reach.
                processes.send(int(member), signal.SIGKILL)


def remove(directories: "list[str]") -> None:
    """Remove groups whose processes are dead or dying; waits for the kernel to notice, a second at most."""
    for path in directories:
        for _ in range(100):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.01)
            else:
                break
