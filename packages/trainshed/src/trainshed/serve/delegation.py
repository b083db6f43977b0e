"""Obtains a control group of version 2 in which the service may limit replicas (`replica.system.cgroups`).

A group that contains processes cannot enable controllers for its children. With systemd, the service may
change only the groups of units with `Delegate=yes`. Replicas therefore get groups in a unit next to the
service's own: `NAME-jobs.service` for `NAME.service`. They cannot use the service's own unit, because they
survive the service, and systemd cannot restart a unit whose group enables controllers (EBUSY).

A service without a unit requests a scope from systemd: from the user's systemd instance, or from the system's
if it is root. It then moves the processes of the scope into a child group.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Final

from trainshed.replica.system import cgroups, kernel, processes

_TIMEOUT: Final = 5.0
"""Maximum seconds for systemd to create a scope. After that, the service starts without a scope."""
_POLL_INTERVAL: Final = 0.01
_MOVE_ROUNDS: Final = 10
"""Maximum number of attempts to move all members of a group, because members may start new processes at the
same time."""
_START_SCOPE: Final = (
    "busctl {} call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager "
    "StartTransientUnit ssa(sv)a(sa(sv)) {}{}.scope fail 4 Description s Trainshed PIDs au 1 {} "
    "Delegate b true CollectMode s inactive-or-failed 0"
)


def prepare() -> None:
    """Enable this process to limit replicas with control groups, if the machine allows it.

    Call this function before other processes are started, because they inherit the group. Blocks for a tenth
    of a second.
    """
    own, is_booted = cgroups.own_group(), Path(cgroups.BOOTED).is_dir()
    if jobs := cgroups.jobs_unit(own):
        _divide(jobs)
    elif own and "memory" not in cgroups.find_bases():
        is_scope = own.endswith(".scope") and cgroups.is_delegated(own)
        if is_booted and not is_scope and not _is_main_process(os.getpid()):
            own = _get_scope(own)
        if not (is_booted and own.endswith(".service")) and cgroups.is_delegated(own):
            _divide(own)


def diagnose(service: int) -> tuple[str, str]:
    """Return the reason why the kernel cannot enforce limits for a service, and the name of the service's
    unit.

    `service`: the service's process ID, or the ID of this process if the service is down. The reasons are:

    - `none`: the machine has control groups v1, and this user may not change them.
    - `container`: the control groups of the container are not writable.
    - `unit`, `user_unit`: the system's unit, or the user's unit, lacks a second unit for programs.
    - `user`: the user has no systemd instance.
    - `bus`: D-Bus is missing.
    """
    own = cgroups.own_group(membership=f"/proc/{service}/cgroup")
    unit = own.rpartition("/")[2].removesuffix(".service")
    if not own or not Path(cgroups.BOOTED).is_dir():
        return "container" if own else "none", unit
    if _is_main_process(service):
        return "user_unit" if "/user@" in own else "unit", unit
    return "user" if os.geteuid() else "bus", unit


def _divide(group: str) -> None:
    """Enable all controllers for the children of a group, and move the group's processes into one of the
    children."""
    place = Path(group)
    enabled = (place / "cgroup.subtree_control").read_text().split()
    offered = (place / "cgroup.controllers").read_text().split()
    # Ignore errors: if a controller cannot be enabled, `find_bases` does not return the group.
    with contextlib.suppress(OSError):
        (place / cgroups.SERVICE).mkdir(exist_ok=True)
        # Move the processes of the group into the child, except for the root group of a hierarchy. Only a
        # root group may contain processes in addition to children.
        for _ in range(_MOVE_ROUNDS if (place / "cgroup.type").exists() and not enabled else 0):
            for member in (place / "cgroup.procs").read_text().split():
                # Skip 0, a member of another process namespace: writing 0 would move this process.
                if member != "0":
                    cgroups.move(int(member), str(place / cgroups.SERVICE))
        for name in {*cgroups.CONTROLLERS} & {*offered} - {*enabled}:
            kernel.write(f"{group}/cgroup.subtree_control", f"+{name}")


def _is_main_process(process: int) -> bool:
    """Return whether systemd has started a process of this user as the main process of a unit. Requires
    systemd 248."""
    variables = processes.read(f"/proc/{process}/environ").split(b"\0")
    return b"SYSTEMD_EXEC_PID=%d" % process in variables


def _get_scope(own: str) -> str:
    """Move this process into a new scope. Return the scope's group, or `own` if no scope was created."""
    uid, pid = os.geteuid(), os.getpid()
    manager = "--user" if uid else "--system"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            _START_SCOPE.format(manager, cgroups.SCOPE, pid, pid).split(),
            env={"XDG_RUNTIME_DIR": f"/run/user/{uid}", **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=True,
        )
        deadline = time.monotonic() + _TIMEOUT
        # systemd responds before it moves the process, and sends no notification after the move.
        while cgroups.own_group() == own and time.monotonic() < deadline:
            time.sleep(_POLL_INTERVAL)
        return cgroups.own_group()
    return own
