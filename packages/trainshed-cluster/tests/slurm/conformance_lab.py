"""The Slurm engine as the conformance suite wants it: on the lab from outside, or as a process on its login
node, as another user perhaps (`new_lab`, in `tests.slurm.elsewhere`)."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tests.engines.conformance.lab import Lab, LabWithNodes
from tests.slurm.lab import SlurmLab
from trainshed.core.secrets import SecretRef
from trainshed.engines.port import Engine, ServiceAccess
from trainshed.engines.registry import EngineContext, ProgramRules
from trainshed_cluster.slurm.build import new_engine

TOLD = "TRAINSHED_TESTS_SLURM_LAB"
"""Variable by which `new_lab` is told what its lab is like: JSON of the fields `settings`, `kills`, and
`switch`, a descriptor."""


class Switch(Protocol):
    """What all machines of a lab are plugged into."""

    def unplug(self, name: str) -> None:
        """Nobody reaches that node any more, and it nobody."""
        ...

    def replug(self, name: str) -> None: ...


class OnMachines(LabWithNodes):
    """An engine over the machines of a lab. `settings`: the engine's table."""

    def __init__(
        self, switch: Switch, directory: Path, settings: Mapping[str, Any], kills: int
    ) -> None:
        self.kills = kills
        self._switch = switch
        self._directory = directory
        self._settings = {"lease": 10.0, **settings}

    def engine(self) -> Engine:
        build = self.elsewhere()
        assert build
        return build()

    async def cut_off(self, engine: Engine, node: str) -> None:
        self._switch.unplug(node)

    async def reconnect(self, engine: Engine, node: str) -> None:
        self._switch.replug(node)


class SlurmEngineLab(OnMachines):
    patience = 40.0

    def elsewhere(self) -> Callable[[], Engine]:
        return partial(engine_of, self._directory, {"shared": True, **self._settings})


class _NoSecrets:
    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        return {}


def engine_of(directory: Path, settings: dict[str, Any]) -> Engine:
    rules = ProgramRules(visible=(Path(sys.prefix), Path(sys.base_prefix)))
    return new_engine(context_of(directory, settings, rules))


def context_of(
    directory: Path, settings: dict[str, Any], rules: ProgramRules | None = None
) -> EngineContext:
    """Of a service that has nothing but that directory."""
    return EngineContext(
        data=directory,
        settings=settings,
        secrets=_NoSecrets(),
        now=time.time_ns,
        hidden=(),
        kept_ports=(),
        access=ServiceAccess(),
        rules=rules or ProgramRules(),
        cache=directory / "cache",
    )


# --- on the login node ---


def new_lab(directory: Path) -> Lab:
    """For a process that was started with `TOLD` in its environment."""
    facts = json.loads(os.environ[TOLD])
    switch = _FarSwitch(facts["switch"])
    # Each test is another service, which leaves what it keeps for a next attempt to its next start.
    switch.clear()
    return SlurmEngineLab(switch, directory, facts["settings"], facts["kills"])


class _FarSwitch:
    """Asks whoever may pull plugs, and end jobs of others (`served`)."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def unplug(self, name: str) -> None:
        self._ask("unplug", name)

    def replug(self, name: str) -> None:
        self._ask("replug", name)

    def clear(self) -> None:
        """End all jobs of everybody."""
        self._ask("clear", "")

    def _ask(self, verb: str, node: str) -> None:
        with socket.socket(fileno=os.dup(self._descriptor)) as line:
            line.send(f"{verb} {node}".encode())
            answer = line.recv(99)
            assert answer == b"done", answer


@contextlib.contextmanager
def served(lab: SlurmLab) -> Generator[socket.socket]:
    """Pulls plugs, and ends jobs, for a process that has the socket, which it inherits. In the end all plugs
    are in again."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pulled: set[str] = set()

    def serve() -> None:
        while order := ours.recv(99).decode():
            verb, _, node = order.partition(" ")
            if verb == "unplug":
                lab.unplug(node)
                pulled.add(node)
            elif verb == "replug":
                lab.replug(node)
                pulled.discard(node)
            else:
                lab.clear()
            ours.send(b"done")

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield theirs
    finally:
        theirs.close()
        ours.shutdown(socket.SHUT_RDWR)
        thread.join()
        ours.close()
        for node in pulled:
            lab.replug(node)
