"""Runs a service on a cluster of the lab whose jobs are attacked on their node, with the attacks of all
engines (`tests.e2e.hostile`) and attacks on Slurm's nodes."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tests.caches import cache_for_users, cache_of
from tests.contract.ordinary_user import NOBODY
from tests.e2e.hostile.attack_setup import (
    LIMITS,
    OTHER,
    OWN,
    AttackSetup,
    parent_of,
    readable_directory,
    with_buckets,
)
from tests.e2e.hostile.attacks import Attack, attack
from tests.e2e.processes import commands
from tests.slurm.lab import SPOOL, USERS, SlurmLab
from tests.slurm.nodes import HUB
from tests.slurm.services import configure, service_on_login_node
from trainshed.replica.system import trees

_DAEMONS = ("slurmd", "slurmstepd", "munged")
_SLURMCTLD, _SLURMD = 6817, 6818
"""Slurm's ports, unless an administrator has changed them."""


@dataclass(frozen=True)
class Identity:
    """The users of a service and of its jobs. `users`: of the attacker's and of the victim's project; None =
    the service's own. `level`: the required isolation level."""

    title: str
    uid: int
    level: str
    users: tuple[str, str] | None = None

    @property
    def attacker(self) -> int:
        """User id of the agents of the attacker's jobs."""
        return USERS[self.users[0]] if self.users else self.uid

    def settings(self) -> str:
        if not self.users:
            return ""
        own, other = self.users
        return f'[engines.slurm.users]\n{OWN} = "{own}"\n{OTHER} = "{other}"\n'


IDENTITIES = (
    Identity("the service is root", 0, "own-user"),
    Identity("`users`: another user's job", 0, "user", ("lab-bob", "lab-ada")),
    Identity("`users`: the same user's", 0, "user", ("lab-ada", "lab-ada")),
    Identity("the service runs as an ordinary user at level `user`", NOBODY, "user"),
    Identity("the service runs as an ordinary user at level `session`", NOBODY, "session"),
)


@dataclass
class SlurmYard(AttackSetup):
    """All jobs run on `node`."""

    #: Lines of `[engines.slurm]`.
    slurm: ClassVar[str] = ""

    lab: SlurmLab = field(kw_only=True)
    node: str = field(kw_only=True)
    identity: Identity = field(kw_only=True)
    #: Id of the victim's Slurm job.
    allocation: str = field(default="", kw_only=True)

    @property
    def cache(self) -> Path:
        return cache_of(self.identity.uid) if self.identity.uid else cache_for_users()

    def directory(self, uid: int) -> str:
        """Return the directory on the node for agents of that user."""
        return f"/tmp/trainshed-{uid}"

    def target(
        self, victim: list[int], other: str, endpoint: str, abstract: str, at_home: Path | None
    ) -> dict[str, Any]:
        target = super().target(victim, other, endpoint, abstract, at_home)
        self.allocation = _allocation_of(victim[0])
        # Nodes cannot reach the service's loopback interface.
        return target | {"storage_port": target["rest"]}

    def others_files(self) -> list[str]:
        victim = USERS[self.identity.users[1]] if self.identity.users else self.identity.uid
        place = self.directory(victim)
        on_node = self.lab.on_disk(self.node, place)
        there = [*on_node.glob("*/slots/*/*/*/files/*/secret"), *on_node.glob("*/logs/*/*/*/*")]
        assert there, "no files of another user exist"
        here = [*self.service.data.glob("logs/*/*/*/*.jsonl")]
        assert here
        return [*(f"{place}/{path.relative_to(on_node)}" for path in there), *map(str, here)]

    def numbers(self, pids: list[int]) -> list[int]:
        return [number for pid in pids if (number := self._number(pid))]

    def _number(self, pid: int) -> int:
        """Return a process id as the node numbers it; 0 = the process is not on the node, or has just ended.
        Other labs have agents, too."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        for line in status.splitlines():
            if line.startswith("NSpid:"):
                numbers = line.split()[1:]
                return int(numbers[1]) if len(numbers) > 1 else 0
        return 0

    @contextlib.contextmanager
    def listening(self, name: str) -> Generator[None]:
        code = (
            "import socket, sys; one = socket.socket(socket.AF_UNIX); one.bind(chr(0) + sys.argv[1]); "
            "one.listen(); print('up', flush=True); sys.stdin.read()"
        )
        process = self.lab.popen(
            self.node, [sys.executable, "-c", code, name], stdin=subprocess.PIPE, output=subprocess.PIPE
        )
        assert process.stdout and process.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            self.lab.kill(process)

    def on_slurm(self) -> dict[str, Any]:
        """Return the input of the program that attacks Slurm's nodes."""
        lab = self.lab
        allocation = lab.slurm("squeue", "-h", "-j", self.allocation, "-o", "%i %j").split()
        own, theirs = self.directory(self.identity.attacker), self.directory(self.victim)
        sockets, files = (self._find_files(kind, *dict.fromkeys((own, theirs))) for kind in "sf")
        daemons = [pid for name in _DAEMONS for pid in lab.processes(self.node, name)]
        agents = [pid for pid in commands("trainshed_cluster.remote.start") if self._number(pid)]
        assert sockets and files and daemons and agents
        names = {Path(f"/proc/{pid}/comm").read_text().strip() for pid in (*daemons, *agents)}
        return {
            "munge_key": str(lab.directory / "munge.key"),
            "others_allocation": allocation,
            "node": self.node,
            "daemons": [(lab.address(HUB), _SLURMCTLD), (lab.address(self.node), _SLURMD)],
            "spool_files": self._find_files("f", SPOOL),
            "step_sockets": self._find_files("s", SPOOL),
            "agents": own,
            "agent_files": [*([theirs] if theirs != own else []), *files],
            "agent_sockets": sockets,
            "hub": (lab.outside, int((self.service.data / "engines/slurm/port").read_text())),
            "daemon_pids": self.numbers([*daemons, *agents]),
            "daemon_names": sorted(names),
        }

    def _find_files(self, kind: str, *places: str) -> list[str]:
        """Return files ("f") or sockets ("s") in these directories of the node. Files of programs are in
        deeper directories."""
        look = ["find", *places, "-maxdepth", "3", "-type", kind]
        return self.lab.run(self.node, look).split()

    @property
    def victim(self) -> int:
        users = self.identity.users
        return USERS[users[1]] if users else self.identity.uid


def _allocation_of(pid: int) -> str:
    """Return the id of the allocation of a process on a node. Slurm sets it for the agent, and the agent's
    zygote inherits the variable."""
    while pid > 1:
        with contextlib.suppress(OSError):
            for text in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = text.decode(errors="replace").partition("=")
                if name == "SLURM_JOB_ID":
                    return value
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    raise AssertionError("the process is in no allocation")


@dataclass(frozen=True)
class AttackResults:
    """The results of all attacks. `process`: process id of the attacker in its namespace."""

    identity: Identity
    kind: type[SlurmYard]
    attack: Attack
    process: str
    #: Results of `on_slurm.py`, by attack.
    verdicts: dict[str, str]
    why: dict[str, str]
    #: Remaining directories of agents after all agents have ended.
    leftovers: tuple[str, ...]


@contextlib.contextmanager
def attacked_service(
    lab: SlurmLab, identity: Identity, kind: type[SlurmYard] = SlurmYard
) -> Generator[AttackResults]:
    """Run a service with that identity and attack it."""
    place = Path(tempfile.mkdtemp(prefix="trainshed-hostile-", dir=readable_directory()))
    place.chmod(0o755)
    name = f"hostile-{IDENTITIES.index(identity)}-{kind.__name__}"
    top = f'host = "{lab.outside}"\ninsecure = true\nisolation = "{identity.level}"\n{LIMITS}'
    # The table of images ends the top-level settings.
    directory = configure(lab, name, top, kind.slurm + identity.settings(), place=place, wrapped=False)
    os.chown(directory, identity.uid, identity.uid)
    try:
        with service_on_login_node(lab, directory, identity.uid) as service:
            node, *others = [node["name"] for node in service.call("GET", "/trainshed/v1/nodes")["nodes"]]
            for idle in others:
                service.call("POST", f"/trainshed/v1/nodes/{idle}:drain", {})
            setup = with_buckets(
                kind(identity.level, identity.uid, place, service, lab=lab, node=node, identity=identity)
            )
            setup.open()
            results = attack(setup)
            process = setup.printed_value(results.job, "PROCESS")
            listed = service.call("GET", "/trainshed/v1/jobs?project=" + OTHER)["jobs"]
            [other] = [job["jobId"] for job in listed if job["state"] == "RUNNING"]
            target = json.dumps(setup.on_slurm())
            job = setup.submit(OWN, "on_slurm", TARGET=target)
            service.finish(job, 120)
            lines = {word: rest for word, _, rest in (x.partition(" ") for x in service.lines(job))}
            service.call("POST", f"{parent_of(OTHER)}/{other}:cancel", {})
            service.finish(other, 60)
        # All agents have ended by now.
        leftovers = [
            str(path)
            for uid in {identity.attacker, setup.victim}
            for path in lab.on_disk(node, setup.directory(uid)).glob("*trainshed-*")
        ]
        for path in leftovers:
            trees.delete(path)
        yield AttackResults(
            identity,
            kind,
            results,
            process,
            json.loads(lines["VERDICTS"]),
            json.loads(lines["WHY"]),
            tuple(leftovers),
        )
    finally:
        trees.delete(str(place))
        shutil.rmtree(place, ignore_errors=True)
