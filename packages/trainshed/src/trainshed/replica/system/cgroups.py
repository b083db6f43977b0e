"""Manages the control groups of a replica: memory limit, out-of-memory kills, CPU share, process limit.
Supports versions 1 and 2 of control groups.

Each replica has one directory per controller. `find_bases` finds the parents of these directories.
`serve.delegation` prepares the parents for version 2. Runs on Python 3.6.
"""

import os
import signal
import time

from trainshed.replica import protocol
from trainshed.replica.system import kernel, processes

ROOT = "/sys/fs/cgroup"
SERVICE = "service"
"""Name of a child group. If a group enables controllers, its own processes must move to this child."""
SCOPE = "trainshed-"
"""Prefix of the names of systemd scopes that contain a service."""
BOOTED = "/run/systemd/system"
"""This directory exists only if systemd manages the control groups."""
CONTROLLERS = ("memory", "cpu", "pids")


def _read(path: str) -> str:
    return processes.read(path).decode("utf-8", "replace")


def _is_v2(directory: str) -> bool:
    return os.path.exists(os.path.join(directory, "cgroup.controllers"))


def find_bases(
    root: str = ROOT, membership: str = "/proc/self/cgroup", booted: str = BOOTED
) -> "dict[str, str]":
    """Return the directories in which this process may create groups with limits, by controller: memory, cpu,
    pids. `booted`: a path that exists only if systemd manages the groups.

    Version 1: the group of this process, so that limits of the service also apply to its replicas; otherwise
    the root group.

    Version 2: the unit for replicas (`jobs_unit`), the parent of the service's group, or the service's group.
    The group must enable the controller. systemd must have delegated the group.
    """
    places = [line.split(":", 2)[1:] for line in _read(membership).splitlines()]
    own = own_group(root, membership)
    around = [group for group in (os.path.dirname(own), own) if is_delegated(group, booted)]
    bases: "dict[str, str]" = {}
    for name in CONTROLLERS:
        of_its_own = [
            _v1_base(root, controllers, name, path)
            for controllers, path in places
            if name in controllers.split(",")
        ]
        common = [_v2_base(group, name) for group in [jobs_unit(own), *around] if group]
        for base in filter(None, of_its_own + common):
            bases.setdefault(name, base)
    return bases


def own_group(root: str = ROOT, membership: str = "/proc/self/cgroup") -> str:
    """Return the directory of a process's version 2 group, or "" if the controllers are of version 1."""
    for line in _read(membership).splitlines():
        own = os.path.join(root, line[3:].lstrip("/")).rstrip("/")
        if line.startswith("0::") and _read(os.path.join(own, "cgroup.controllers")).strip():
            return own
    return ""


def jobs_unit(own: str) -> str:
    """Return the directory of the systemd unit for replicas, a sibling of the service's own unit. Returns ""
    if the unit does not exist, or if this process may not move processes into it."""
    jobs = own[: -len(".service")] + "-jobs.service"
    ways = (os.path.join(os.path.dirname(own), "cgroup.procs"), _subtree(jobs))
    return jobs if own.endswith(".service") and all(os.access(p, os.W_OK) for p in ways) else ""


def enlist(process: int) -> None:
    """Move a process that forks shims into the systemd unit for replicas, if the unit exists.
    Otherwise systemd would end the shims together with the service's own unit."""
    jobs = jobs_unit(own_group())
    if jobs:
        move(process, os.path.join(jobs, SERVICE))


def move(process: int, group: str) -> None:
    """Move a process to a control group. Does nothing if the process has exited, or is in another
    namespace."""
    try:
        kernel.write(os.path.join(group, "cgroup.procs"), str(process))
    except OSError:
        pass


def is_delegated(group: str, booted: str = BOOTED) -> bool:
    """Whether this process may change a version 2 group. systemd marks the groups of delegated units."""
    if not os.access(_subtree(group), os.W_OK) or not os.path.isdir(booted):
        return os.access(_subtree(group), os.W_OK)
    while len(group) > 1 and not group.endswith((".service", ".scope", ".slice")):
        group = os.path.dirname(group)
    for attribute in ("user.delegate", "trusted.delegate"):
        try:
            return os.getxattr(group, attribute) == b"1"
        except OSError:
            continue
    # The mark is not always visible: before systemd 251, only root could read it, and a user's systemd sets
    # none. So the owner decides. Groups of other units belong to root, except for the groups of the user's
    # systemd.
    is_own = os.path.basename(group).startswith(SCOPE)
    return os.geteuid() != 0 and (is_own or "/user@" not in group)


def _subtree(group: str) -> str:
    return os.path.join(group, "cgroup.subtree_control")


def _v1_base(root: str, controllers: str, name: str, path: str) -> "str | None":
    for mounted in (name, controllers):
        for inside in (path.lstrip("/"), ""):
            base = os.path.join(root, mounted, inside).rstrip("/")
            if os.path.exists(os.path.join(base, "cgroup.procs")) and _can_create_groups(base):
                return base
    return None


def _v2_base(base: str, controller: str) -> "str | None":
    enabled = _read(_subtree(base)).split()
    return base if controller in enabled and _can_create_groups(base) else None


def _can_create_groups(base: str) -> bool:
    """Whether this process may create groups in `base` and move processes into them."""
    trial = os.path.join(base, "trainshed-probe-" + os.urandom(8).hex())
    try:
        os.mkdir(trial)
    except OSError:
        return False
    allowed = os.access(os.path.join(trial, "cgroup.procs"), os.W_OK)
    os.rmdir(trial)
    return allowed and os.access(os.path.join(base, "cgroup.procs"), os.W_OK)


def memory_limit(base: str) -> "int | None":
    """Return the memory limit of a group and its descendants in bytes, or None if unlimited or unknown."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = _read(os.path.join(base, name)).strip()
        # The text is empty if the file does not exist: the group has the other version of control groups, or
        # is the root group, which has no limit.
        if text:
            return int(text) if text.isdigit() else None
    return None


def process_share(base: "str | None", kernel_settings: str = "/proc/sys/kernel") -> "int | None":
    """Return the maximum number of processes and threads of one program, or None if it is unknown.

    The maximum is a quarter of the machine's limit, and at most half of the limit of the group `base` and of
    each of its parents. So fork bombs, even in several replicas, leave processes for the service and others.
    """
    names = ("pid_max", "threads-max")
    known = [_count(os.path.join(kernel_settings, name)) // 4 for name in names]
    while base and os.path.exists(os.path.join(base, "pids.max")):
        known.append(_count(os.path.join(base, "pids.max")) // 2)
        base = os.path.dirname(base)
    return min([count for count in known if count], default=None)


def _count(path: str) -> int:
    """Return the number in a file of the kernel, or 0 if the file does not exist or contains no limit."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _limit_memory(group: str, limit: int) -> None:
    names, swap = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), str(limit)
    if _is_v2(group):
        names, swap = ("memory.max", "memory.swap.max"), "0"
    kernel.write(os.path.join(group, names[0]), str(limit))
    try:
        kernel.write(os.path.join(group, names[1]), swap)
    except OSError:
        pass  # The kernel has no swap accounting: limit the memory only.


class ControlGroups:
    """The control groups of one replica. Without parent directories (`Limits.bases`), all methods do nothing
    and the number of kills is 0."""

    def __init__(self, limits: protocol.Limits) -> None:
        self._limits = limits
        self._groups = {kind: os.path.join(base, limits.cgroup_name) for kind, base in limits.bases.items()}
        #: File descriptors from `open_handles`. A single-threaded process enters the groups by writing 0 to
        #: each.
        self.entry_handles: "list[int]" = []

    def directories(self) -> "list[str]":
        """Return the directories of the groups, without duplicates."""
        return sorted(set(self._groups.values()))

    def create(self) -> None:
        """Create the groups; replace those of an earlier run of the replica. Raises OSError if a limit cannot
        be set."""
        limits = self._limits
        for path in self.directories():
            try:
                os.mkdir(path)
            except FileExistsError:
                remove([path])
                os.mkdir(path)
        memory, cpu, pids = map(self._groups.get, ("memory", "cpu", "pids"))
        if memory and limits.memory_limit:
            _limit_memory(memory, limits.memory_limit)
        if cpu and limits.cpu_weight:
            # A replica with 4 vCPUs or more gets the weight of an ordinary process, and a smaller replica
            # gets less. So the service has enough processor time to stop replicas and to report on them.
            name, usual = ("cpu.weight", 100) if _is_v2(cpu) else ("cpu.shares", 1024)
            share = min(usual, max(2, usual * limits.cpu_weight // 400))
            kernel.write(os.path.join(cpu, name), str(share))
        if pids and limits.pids_limit:
            kernel.write(os.path.join(pids, "pids.max"), str(limits.pids_limit))

    def open_handles(self) -> None:
        """Open the files of the created groups, for `enter`. Later, this process may see the files as
        read-only or not at all. Raises OSError."""
        for path in self.directories():
            # With version 1, move the calling thread, which is immediate. A move of a process waits for some
            # milliseconds, for a grace period of the kernel.
            name = "cgroup.procs" if _is_v2(path) else "tasks"
            self.entry_handles.append(os.open(os.path.join(path, name), os.O_WRONLY | os.O_CLOEXEC))

    def enter(self) -> None:
        """Move the calling process into the groups. The process must have only one thread, and must have
        called `open_handles`. Raises OSError."""
        for handle in self.entry_handles:
            os.write(handle, b"0")

    @property
    def has_memory_group(self) -> bool:
        return "memory" in self._groups

    def oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed at the memory limit so far."""
        if not self.has_memory_group:
            return 0
        memory = self._groups["memory"]
        name = "memory.events" if _is_v2(memory) else "memory.oom_control"
        for line in _read(os.path.join(memory, name)).splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        return 0


def kill(directories: "list[str]") -> None:
    """Send SIGKILL to all remaining processes in a replica's groups."""
    for path in directories:
        for member in _read(os.path.join(path, "cgroup.procs")).split():
            # The kernel lists a process of another namespace as 0. Skip it, because it cannot be signaled
            # from here.
            if int(member) > 0:
                processes.send(int(member), signal.SIGKILL)


def remove(directories: "list[str]") -> None:
    """Remove groups whose processes are dead or dying. Waits up to one second for each group, until the
    kernel allows its removal."""
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
