"""A real Slurm cluster on one machine: a controller on the hub (one of the lab's machines), and a munged and
a slurmd on each node.

It requires root and Debian's packages slurm-wlm, munge and iproute2. Only its machines see its configuration
as /etc/slurm.
"""

import contextlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.slurm.nodes import HUB, Machines, until

_COMMANDS = ("salloc", "srun", "squeue", "scontrol", "sinfo", "scancel", "sbatch")
_NEEDED = (*_COMMANDS, "slurmctld", "slurmd", "munged", "ip", "nsenter", "unshare")
_CONTROL_GROUPS = Path("/sys/fs/cgroup/memory/cgroup.procs")
_NO_DRIVERS = 240
"""Major number for local use: distinguishable devices without drivers."""

CPUS = 16
MEMORY_MB = 6000
GPUS = 2


def unavailable_reason() -> str | None:
    """Return why this machine cannot run the lab; None = it can."""
    missing = [name for name in _NEEDED if not shutil.which(name, path=_search_path())]
    if missing:
        return f"needs the Debian packages slurm-wlm, munge and iproute2: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root, for nodes of namespaces"
    if not Path("/etc/slurm").is_dir():
        return "needs the directory /etc/slurm, over which each lab lays its own"
    try:
        subprocess.run(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true"],
            check=True,
            capture_output=True,
        )
    except subprocess.CalledProcessError as e:
        return f"needs namespaces: {e.stderr.decode().strip()}"
    return None


def other_slurm() -> Path | None:
    """Return the directory with the programs and libraries of another release's Slurm (`release.sh`); None =
    this machine's Slurm is used."""
    version = os.environ.get("TRAINSHED_TEST_SLURM", "")
    return Path(version) if version else None


def enforces() -> bool:
    """Return whether Slurm's control groups work on this machine and limit memory and devices."""
    return _CONTROL_GROUPS.exists()


SPOOL = "/run/slurmd"
"""Directory on nodes for slurmd's data of steps, and their sockets."""
USERS = {"lab-ada": 61001, "lab-bob": 61002}
"""Users that exist only on the lab's machines. Each has a group with the same name and number."""


class SlurmLab(Machines):
    """A cluster with the nodes node1, node2 and node3, each with `size` and `GPUS`.

    Partitions: main (the default), hi (higher priority), short (10 minutes at most), tiny (only node1), spot
    (other jobs preempt its jobs).
    """

    def __init__(
        self, directory: Path, shown: Sequence[Path], size: tuple[int, int] = (CPUS, MEMORY_MB)
    ) -> None:
        """Use it as a context manager. `shown`: directories below /tmp that nodes share with the hub (the
        controller's machine), like a shared file system. `size`: CPUs and MB of memory of each node."""
        super().__init__(directory, ["node1", "node2", "node3"], shown)
        self._cpus, self._memory = size
        #: Directory of Slurm's commands for processes outside the lab. They behave like commands on the hub,
        #: the controller's machine.
        self.commands = directory / "commands"
        self._controller: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "SlurmLab":
        for path in ("etc", "state", "commands", "log"):
            (self.directory / path).mkdir(parents=True, exist_ok=True)
        for path in self._empty():
            Path(path).mkdir(exist_ok=True)
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for number in range(GPUS):
            device = os.makedev(_NO_DRIVERS, number)
            os.mknod(self.directory / f"gpu{number}", stat.S_IFCHR | 0o666, device)
        self._write_users()
        self._configure()
        super().__enter__()
        try:
            self._write_commands()
            for name in (HUB, *self.nodes):
                self.start_munged(name)
            self._start_controller("-c")
            for name in self.nodes:
                self.start_slurmd(name)
            self.await_states(dict.fromkeys(self.nodes, ("idle",)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def states(self) -> dict[str, str]:
        """Return the states of nodes as sinfo prints them; none if the controller does not respond."""
        try:
            printed = self.run(HUB, ["sinfo", "-h", "-N", "-p", "main", "-o", "%N %T"])
        except subprocess.CalledProcessError:
            return {}
        return dict(line.split() for line in printed.splitlines())

    def await_states(self, wanted: Mapping[str, Iterable[str]], seconds: float = 60) -> None:
        """Wait until each node has one of these states."""
        now: dict[str, str] = {}
        try:
            for _ in until(f"states {wanted}", seconds):
                now = self.states()
                if all(now.get(name, "") in states for name, states in wanted.items()):
                    return
        except TimeoutError as e:
            raise TimeoutError(f"{e}: {now}\n{self._logs()}") from None

    def slurm(self, *command: str) -> str:
        """Run one of Slurm's commands on the hub (the controller's machine), and return its output."""
        return self.run(HUB, command)

    def await_saved(self) -> None:
        """Wait until the controller has saved its current state. It saves every few seconds. After a kill it
        restores the last saved state: earlier drained nodes, without newer jobs."""
        mark = secrets.token_hex(8)
        written = {"node_state": f"nodename={self.nodes[0]}"}
        if jobs := self.slurm("squeue", "-h", "-o", "%i").split():
            written["job_state"] = f"jobid={jobs[0]}"
        for text in written.values():
            self.slurm("scontrol", "update", text, f"comment={mark}")
        for _ in until("the controller to save its state"):
            # A new controller has not written them yet.
            files = [self.directory / "state" / name for name in written]
            if all(file.exists() and mark.encode() in file.read_bytes() for file in files):
                return

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        """Stop the controller. SIGKILL simulates its power loss: unsaved state is lost (`await_saved`)."""
        self._stop(HUB, "slurmctld", number)
        if self._controller:
            self._controller.wait()

    def start_controller(self) -> None:
        """Start the controller with its saved state. Returns when it responds and knows the state of each
        node."""
        self._start_controller()
        for _ in until("an answer of slurmctld"):
            states = self.states().values()
            if states and not any("unknown" in state for state in states):
                return

    def stop_slurmd(self, name: str, number: int = signal.SIGTERM) -> None:
        self._stop(name, "slurmd", number)

    def start_slurmd(self, name: str) -> None:
        with (self.directory / "log" / f"slurmd.{name}").open("ab") as log:
            self.popen(name, self.joining([_path("slurmd"), "-D", "-N", name]), output=log)

    def stop_munged(self, name: str) -> None:
        self._stop(name, "munged", signal.SIGTERM)

    def start_munged(self, name: str) -> None:
        """Start a node's munged, and wait until it responds. Each machine has its own, because a shared one
        reports replays."""
        own = ["--key-file", str(self.directory / "munge.key"), "--seed-file", "/run/munge/seed"]
        log = ["--log-file", str(self.directory / "log" / f"munged.{name}")]
        self.run(name, [_path("munged"), "--force", *own, *log])

    def drain(self, name: str, reason: str = "maintenance") -> None:
        self.slurm("scontrol", "update", f"nodename={name}", "state=drain", f"reason={reason}")

    def resume(self, name: str) -> None:
        self.slurm("scontrol", "update", f"nodename={name}", "state=resume")

    def boot(self, name: str) -> None:
        """Boot a node after a power loss."""
        self.start([name])
        self.start_munged(name)
        self.start_slurmd(name)

    def await_idle(self) -> None:
        """Wait until no job has an allocation. Idle allocations are kept briefly for the next job (ADR
        62)."""
        for _ in until("the end of all allocations"):
            if not self.slurm("squeue", "-h"):
                return

    def clear(self) -> None:
        """End all jobs of all users, and wait until the nodes have their initial state."""
        if jobs := self.slurm("squeue", "-h", "-o", "%i").split():
            self.slurm("scancel", *jobs)
        self.await_idle()
        self.await_states(dict.fromkeys(self.nodes, ("idle",)))

    def _start_controller(self, *options: str) -> None:
        with (self.directory / "log" / "slurmctld").open("ab") as log:
            command = [_path("slurmctld"), "-D", *options]
            self._controller = self.popen(HUB, command, output=log)

    def _stop(self, name: str, command: str, number: int) -> None:
        for _ in until(f"the end of {command} on {name}"):
            if not (left := self.processes(name, command)):
                return
            # Repeated, because a process that is starting a step has a fork of the same name.
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _write_commands(self) -> None:
        for name in _COMMANDS:
            script = self.commands / name
            argv = " ".join(self.argv_outside([_path(name)]))
            script.write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
            script.chmod(0o755)

    def _extra_binds(self) -> list[tuple[str, str]]:
        own = self.directory
        return [
            (str(own / "etc"), "/etc/slurm"),
            (str(own / "passwd"), "/etc/passwd"),
            (str(own / "group"), "/etc/group"),
            *_other_programs(),
        ]

    def on_login_node(self) -> list[str]:
        """Return the prefix of a command that runs as on a login node, but as a process of the real machine
        with its addresses. It sees the files and name of the hub (the controller's machine), Slurm's
        commands, and the users of nodes."""
        init = str(self._machines[HUB].init)
        # The /proc of the hub (the controller's machine) has other process IDs.
        proc = ["unshare", "--mount", "sh", "-c", 'mount -t proc proc /proc && exec "$@"', "-"]
        return ["nsenter", "-t", init, "--uts", "--mount", "--wd=/", "--", *proc]

    def _empty(self) -> tuple[str, ...]:
        return ("/run/munge", SPOOL)

    def _write_users(self) -> None:
        passwd = [f"{name}:x:{n}:{n}::/nonexistent:/bin/sh" for name, n in USERS.items()]
        group = [f"{name}:x:{n}:" for name, n in USERS.items()]
        for kind, lines in (("passwd", passwd), ("group", group)):
            text = Path("/etc", kind).read_text().rstrip("\n")
            (self.directory / kind).write_text("\n".join([text, *lines]) + "\n")

    def _logs(self) -> str:
        logs = sorted((self.directory / "log").iterdir())
        return "\n".join(f"{log.name}:\n{log.read_text()[-1500:]}" for log in logs)

    def _configure(self) -> None:
        own = self.directory
        limits = "cgroup" if enforces() else "linuxproc"
        lines = [
            "ClusterName=lab",
            f"SlurmctldHost=hub({self.address(HUB)})",
            "AuthType=auth/munge",
            "CredType=cred/munge",
            "SlurmUser=root",
            "SlurmdUser=root",
            f"StateSaveLocation={own}/state",
            f"SlurmdSpoolDir={SPOOL}",
            f"SlurmctldPidFile={own}/slurmctld.pid",
            f"SlurmdPidFile={own}/slurmd.%n.pid",
            "SlurmdDebug=info",
            "SlurmctldDebug=info",
            f"ProctrackType=proctrack/{limits}",
            f"TaskPlugin=task/{'cgroup' if enforces() else 'none'}",
            f"JobAcctGatherType=jobacct_gather/{'cgroup' if enforces() else 'linux'}",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "MpiDefault=none",
            "SlurmctldTimeout=30",
            "MessageTimeout=3",
            # With a shorter timeout, newer releases mark nodes as down that responded together with a silent
            # one.
            f"SlurmdTimeout={10 if other_slurm() else 5}",
            "InactiveLimit=0",
            "KillWait=2",
            "SwitchType=switch/none",
            "PriorityType=priority/multifactor",
            "PriorityWeightPartition=1000",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=CANCEL",
            "RebootProgram=/bin/true",
            "GresTypes=gpu",
        ]
        for name in self.nodes:
            feature = "old" if name == "node1" else "new"
            lines.append(
                f"NodeName={name} NodeAddr={self.address(name)} CPUs={self._cpus} RealMemory={self._memory} "
                f"Gres=gpu:t4:{GPUS} Feature={feature} State=UNKNOWN"
            )
        every = ",".join(self.nodes)
        own_way = "State=UP PreemptMode=OFF"
        lines += [
            f"PartitionName=main Nodes={every} Default=YES MaxTime=INFINITE {own_way} PriorityTier=1",
            f"PartitionName=hi Nodes={every} MaxTime=INFINITE {own_way} PriorityTier=10",
            f"PartitionName=short Nodes={every} MaxTime=10 {own_way}",
            f"PartitionName=tiny Nodes=node1 MaxTime=INFINITE {own_way}",
            f"PartitionName=spot Nodes={every} MaxTime=INFINITE State=UP PriorityTier=0",
        ]
        if other := other_slurm():
            lines.append(f"PluginDir={other}/system/usr/lib/x86_64-linux-gnu/slurm-wlm")
        (own / "etc" / "slurm.conf").write_text("\n".join(lines) + "\n")
        (own / "etc" / "gres.conf").write_text(
            "".join(f"NodeName={name} Name=gpu Type=t4 File={own}/gpu[0-{GPUS - 1}]\n" for name in self.nodes)
        )
        (own / "etc" / "cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nCgroupAutomount=no\n"
            "ConstrainCores=no\nConstrainRAMSpace=yes\nConstrainDevices=yes\nConstrainSwapSpace=no\n"
            if enforces()
            else "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
        )
        # slurmd and slurmstepd also read this file.
        (own / "etc" / "plugstack.conf").write_text("")


def _other_programs() -> list[tuple[str, str]]:
    """Return (source, target) of the mounts that replace this machine's Slurm on every machine."""
    if not (other := other_slurm()):
        return []
    daemons = ("slurmctld", "slurmd", "slurmstepd")
    return [(str(other / "programs" / name), _path(name)) for name in (*_COMMANDS, *daemons)]


def _search_path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def _path(command: str) -> str:
    path = shutil.which(command, path=_search_path())
    assert path, command
    return path
