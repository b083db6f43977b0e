"""Machines made of namespaces, on a separate network. Each has its own address, host name, processes, /tmp
and control groups, and can lose its power or its connections.

One of them, the hub, contains the switch that connects all of them, and sees the files of the real machine.
The real machine is connected as `outside`. Requires root.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.commands import execute
from tests.e2e.processes import wait_until_gone
from tests.sources import ROOT

HUB = "hub"
_INIT = Path(__file__).with_name("node_init.py")
_CGROUPS = Path("/sys/fs/cgroup")
_UNUSED_CONTROLLERS = {"systemd", "unified", "cpuset"}
_UNASSIGNED_ADDRESS = "02:00:00:00:00:99"
"""A hardware address that no machine has: frames to it are lost silently."""


def tree() -> tuple[Path, ...]:
    """Return the paths that programs of this checkout need: the checkout and its interpreter."""
    return (ROOT, Path(sys.prefix), Path(sys.base_prefix))


@dataclass(slots=True)
class _Machine:
    address: str
    #: Number of its port of the switch; 0 = the port of the machine `hub`.
    port: int
    #: unshare(1), the parent of `init`.
    holder: subprocess.Popen[str] | None = None
    #: Process id of its first process on the real machine.
    init: int = 0


class Machines:
    """The machine `hub`, which connects all others, and these nodes, from `__enter__` to `__exit__`. They
    also end with this process."""

    def __init__(self, directory: Path, nodes: Sequence[str], shown: Sequence[Path] = ()) -> None:
        """Create the machines without starting them. `shown`: paths of the real machine that nodes see
        although they are below /tmp."""
        self.directory = directory
        self.nodes = tuple(nodes)
        self._shown = [
            path for path in dict.fromkeys((directory, *shown, *tree())) if path.is_relative_to("/tmp")
        ]
        self._number, self._reserved = _reserve_network()
        self._plug_outside = f"tslab{self._number}"
        self.network = f"10.213.{self._number}"
        self.mark = f"trainshed-lab-{os.getpid()}-{self._number}"
        #: The real machine's address in this network.
        self.outside = f"{self.network}.2"
        #: A second address of the machine `hub`, for services that are disconnected separately from the first
        #: one.
        self.login = f"{self.network}.3"
        self._machines = {HUB: _Machine(f"{self.network}.1", 0)}
        for port, name in enumerate(nodes, 1):
            self._machines[name] = _Machine(f"{self.network}.{10 + port}", port)
        self._life, self._death = os.pipe()

    def __enter__(self) -> "Machines":
        sweep_control_groups()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._write_hosts()
            self._begin(HUB)
            hub = self._machines[HUB].init
            _ip(
                f"link add {self._plug_outside} type veth peer name outside netns {hub}",
                f"addr add {self.outside}/24 dev {self._plug_outside}",
                f"link set {self._plug_outside} up",
            )
            self._ip(
                HUB,
                "link set lo up",
                "link add switch type bridge",
                f"addr add {self.address(HUB)}/24 dev switch",
                f"addr add {self.login}/24 dev switch",
                "link set switch up",
                "link set outside master switch up",
            )
            self.start(self.nodes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end_outside()
        for machine in reversed(self._machines.values()):
            _end(machine)
        for number in (self._life, self._death):
            os.close(number)
        _remove_control_groups(f"{self.mark}-*")
        self._reserved.close()

    def _end_outside(self) -> None:
        """End processes of `argv_outside` that wait for a stopped cluster, such as Slurm's clients of a
        killed engine."""
        if not (init := self._machines[HUB].init):
            return
        network = Path(f"/proc/{init}/ns/net").stat().st_ino
        inside = set(_of_namespace(init))
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (
                    int(entry.name) not in {os.getpid(), init, *inside}
                    and (entry / "ns/net").stat().st_ino == network
                ):
                    os.kill(int(entry.name), signal.SIGKILL)

    def address(self, name: str) -> str:
        return self._machines[name].address

    def argv(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a machine."""
        spaces = ["--net", "--uts", "--pid", "--mount", "--cgroup", "--wd=/"]
        return ["nsenter", "-t", str(self._machines[name].init), *spaces, "--", *command]

    def argv_outside(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command with the addresses and files of the machine `hub`, but
        as a process of the real machine. Killing that process kills the command."""
        init = str(self._machines[HUB].init)
        return ["nsenter", "-t", init, "--net", "--uts", "--mount", "--", *command]

    def run(self, name: str, command: Sequence[str], **options: Any) -> str:
        """Run a command on a machine and return its output. Raises CalledProcessError with its errors, also
        after a timeout."""
        options.setdefault("timeout", 60)
        done = execute(*self.argv(name, command), **options)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def popen(
        self,
        name: str,
        command: Sequence[str],
        *,
        output: IO[bytes] | int | None = None,
        stdin: int | None = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Run a command in the background; `kill` ends it."""
        return subprocess.Popen(
            self.argv(name, command),
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )

    @staticmethod
    def kill(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
        """Send a signal to a process of `popen`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait()

    def processes(self, name: str, command: str = "") -> list[int]:
        """Return the process ids on the real machine of a machine's processes, without its first one.
        `command`: only processes of this command (as in ps)."""
        init = self._machines[name].init
        return [pid for pid in _of_namespace(init) if not command or _command(pid) == command]

    def on_disk(self, name: str, path: str) -> Path:
        """Return the path on the real machine of a node's own file or directory in /tmp."""
        return self.directory / f"{name}.tmp" / Path(path).relative_to("/tmp")

    def start(self, names: Sequence[str]) -> None:
        """Power on machines and connect them."""
        for name in names:
            self._begin(name, wait=False)
        for name in names:
            self._wait(name)
        for name in names:
            self._plug(name)

    def kill_node(self, name: str) -> None:
        """Cut a node's power: its processes end without a message, and it no longer responds."""
        self.unplug(name)
        _end(self._machines[name])

    def unplug(self, name: str) -> None:
        """Disconnect a node from all others."""
        self._ip(HUB, f"link set port{self._machines[name].port} down")

    def replug(self, name: str) -> None:
        self._ip(HUB, f"link set port{self._machines[name].port} up")

    def cut(self, name: str, other: str) -> None:
        """Drop all packets between a node and `other`: "controller" (the first address of the machine `hub`)
        or "service" (its second one, and the real machine's)."""
        for peer in self._peers(other):
            self._ip(name, f"neigh replace {peer} lladdr {_UNASSIGNED_ADDRESS} dev eth0 nud permanent")
            if peer == self.outside:
                device = f"dev {self._plug_outside} nud permanent"
                _ip(f"neigh replace {self.address(name)} lladdr {_UNASSIGNED_ADDRESS} {device}")
            else:
                self._ip(HUB, f"rule add from {peer} to {self.address(name)} blackhole")

    def heal(self, name: str, other: str) -> None:
        """Undo `cut`."""
        for peer in self._peers(other):
            self._ip(name, f"neigh del {peer} dev eth0")
            if peer == self.outside:
                _ip(f"neigh del {self.address(name)} dev {self._plug_outside}")
            else:
                self._ip(HUB, f"rule del from {peer} to {self.address(name)} blackhole")

    def joining(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command in the node's own control groups."""
        files = " ".join(str(_CGROUPS / name / "cgroup.procs") for name in _controllers())
        return ["sh", "-c", f'for file in {files}; do echo 0 >$file; done; exec "$@"', "-", *command]

    def _peers(self, other: str) -> tuple[str, ...]:
        return {"controller": (self.address(HUB),), "service": (self.login, self.outside)}[other]

    def _ip(self, name: str, *lines: str) -> None:
        _ip(*lines, within=self._machines[name].init)

    def _write_hosts(self) -> None:
        known = {name: machine.address for name, machine in self._machines.items()}
        known |= {"login": self.login, "outside": self.outside}
        lines = ["127.0.0.1 localhost", *(f"{known[name]} {name}" for name in known)]
        (self.directory / "hosts").write_text("\n".join(lines) + "\n")

    def _begin(self, name: str, *, wait: bool = True) -> None:
        machine = self._machines[name]
        binds = [(str(self.directory / "hosts"), "/etc/hosts"), *self._extra_binds()]
        join: list[str] = []
        for controller in _controllers():
            own = _CGROUPS / controller / f"{self.mark}-{name}"
            own.mkdir(exist_ok=True)
            join.append(str(own / "cgroup.procs"))
            binds.append((str(own), str(_CGROUPS / controller)))
        view = {"hostname": name, "binds": binds, "empty": list(self._empty()), "shown": []}
        if name != HUB:
            own_tmp = self.directory / f"{name}.tmp"
            own_tmp.mkdir(exist_ok=True)
            own_tmp.chmod(0o1777)
            view["shown"] = [str(path) for path in self._shown]
            view["binds"] = [*binds, (str(own_tmp), "/tmp")]
            view["empty"] = [*self._empty(), "/dev/shm"]
        unshare = "unshare --net --uts --pid --mount --cgroup --ipc --fork --kill-child"
        machine.holder = subprocess.Popen(
            [
                "sh",
                "-c",
                f'for file in {" ".join(join)}; do echo 0 >$file; done; exec {unshare} "$@"',
                "-",
                *(sys.executable, "-I", "-S", str(_INIT), json.dumps(view)),
            ],
            stdin=self._life,
            stdout=subprocess.PIPE,
            stderr=(self.directory / f"{name}.errors").open("w"),
            start_new_session=True,
            text=True,
        )
        if wait:
            self._wait(name)

    def _extra_binds(self) -> list[tuple[str, str]]:
        """Return (source, target) of the mounts that every machine sees instead of the real files."""
        return []

    def _empty(self) -> tuple[str, ...]:
        """Directories that each machine has for itself, and that are empty at its start."""
        return ()

    def _wait(self, name: str) -> None:
        holder = self._machines[name].holder
        assert holder and holder.stdout
        if holder.stdout.readline() != "up\n":
            raise RuntimeError(f"{name} did not come up")
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text()
        self._machines[name].init = int(children)

    def _plug(self, name: str) -> None:
        machine = self._machines[name]
        with contextlib.suppress(subprocess.CalledProcessError):
            self._ip(HUB, f"link del port{machine.port}")
        self._ip(
            HUB,
            f"link add port{machine.port} type veth peer name eth0 netns {machine.init}",
            f"link set port{machine.port} master switch up",
        )
        self._ip(name, "link set lo up", f"addr add {machine.address}/24 dev eth0", "link set eth0 up")


def until(what: str, seconds: float = 60.0) -> Iterator[None]:
    """Yield repeatedly, with growing delays because each query of Slurm starts a process, until the caller
    breaks. Raises TimeoutError."""
    end, pause = time.monotonic() + seconds, 0.02
    while time.monotonic() < end:
        yield
        time.sleep(pause)
        pause = min(pause * 1.25, 0.2)
    raise TimeoutError(f"{what}: not within {seconds:g} s")


def _end(machine: _Machine) -> None:
    if machine.holder is None:
        return
    if machine.init:
        left = _of_namespace(machine.init)
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine.init, signal.SIGKILL)
        wait_until_gone(left)
    else:
        machine.holder.kill()
    machine.holder.wait()
    if machine.holder.stdout:
        machine.holder.stdout.close()
    machine.holder, machine.init = None, 0


def _of_namespace(init: int) -> list[int]:
    try:
        space = Path(f"/proc/{init}/ns/pid").readlink()
    except OSError:
        return []
    pids: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != init:
            with contextlib.suppress(OSError):
                if Path(f"{entry.path}/ns/pid").readlink() == space:
                    pids.append(int(entry.name))
    return pids


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _ip(*lines: str, within: int = 0) -> None:
    enter = ["nsenter", "-t", str(within), "--net", "--"] if within else []
    done = execute(*enter, "ip", "-batch", "-", input="\n".join(lines) + "\n")
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, lines, done.stderr)


def _reserve_network() -> tuple[int, socket.socket]:
    """Return the number of a network that no other lab uses, as long as the socket is open."""
    for number in range(200):
        if Path(f"/sys/class/net/tslab{number}").exists():
            continue  # used by a lab that is just ending
        mine = socket.socket(socket.AF_UNIX)
        try:
            mine.bind(f"\0trainshed-lab-{number}")
        except OSError:
            mine.close()
            continue
        return number, mine
    raise RuntimeError("200 labs are open already")


def _controllers() -> list[str]:
    """Return the controllers of version 1, each with its own tree; none if the machine has only version 2."""
    if not (_CGROUPS / "memory" / "cgroup.procs").exists():
        return []
    return sorted(
        path.name
        for path in _CGROUPS.iterdir()
        if path.name not in _UNUSED_CONTROLLERS and not path.is_symlink() and (path / "cgroup.procs").exists()
    )


def _remove_control_groups(pattern: str) -> None:
    """Remove the matching control groups of all trees."""
    for top in _CGROUPS.glob(f"*/{pattern}"):
        # Ignore control groups that vanish concurrently, such as those of an ending lab.
        for directory, _, _ in os.walk(top, topdown=False):
            _remove_control_group(Path(directory))


def _remove_control_group(directory: Path) -> None:
    end = time.monotonic() + 3
    while True:
        try:
            return directory.rmdir()
        except FileNotFoundError:
            return None
        except OSError:  # its processes are ending
            if time.monotonic() > end:
                return None
        time.sleep(0.01)


def sweep_control_groups() -> None:
    """Remove the control groups of labs whose process was killed."""
    for controller in _controllers()[:1]:
        for directory in (_CGROUPS / controller).glob("trainshed-lab-*"):
            match = re.match(r"trainshed-lab-(\d+)-\d+-", directory.name)
            if match and not Path("/proc", match[1]).exists():
                _remove_control_groups(match[0] + "*")
