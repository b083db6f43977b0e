"""Says where programs are started: the facts about a machine, the settings for all its programs, and the
place of one of them. What is started is said by a launch plan (`core.launch`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

from trainshed.core.catalog import regions
from trainshed.engines.launch.devices import NO_DRIVER, Device, Driver
from trainshed.engines.port import NO_ACCESS, ProgramRules, ServiceAccess, Slot
from trainshed.replica import protocol

PROGRAM_PORT = 2222
"""The port that every replica may bind on its own address (facts/program#cluster_spec)."""

_METADATA = ("metadata.google.internal", "metadata")
"""Names of the metadata server, which TensorFlow before 2.5 takes from no variable."""


class HostFacts(Struct, frozen=True):
    """The facts about this machine that the engine found out at its start."""

    #: Sandbox level (`protocol.LEVEL_*`).
    level: str
    #: Directories in which control groups may be made, by what these limit: memory, cpu, pids.
    bases: dict[str, str]
    #: Memory that all replicas share.
    memory_bytes: int
    #: Tells this service from others on the machine.
    identity: str
    #: The GPUs of the machine; each replica is told which are its own.
    gpus: tuple[Device, ...] = ()
    #: Processes and threads that one program gets at most, whatever the settings say; None = not known.
    processes: int | None = None
    #: Files of the GPUs' driver.
    driver: Driver = NO_DRIVER
    #: Number of processors that programs may use; None = not known.
    processors: float | None = None

    @property
    def namespaced(self) -> bool:
        return self.level != protocol.LEVEL_SESSION

    def process_limit(self, chosen: int | None) -> int | None:
        """Return an operator's limit of a program's processes, if there is one, held to `processes`."""
        return min(chosen, self.processes) if chosen and self.processes else chosen


class BuildPlace(Struct, frozen=True):
    """What the sandboxes in which the service itself installs packages and renders curves may see of this
    machine."""

    host: HostFacts
    #: Directories whose content they must not see.
    hidden: tuple[str, ...]
    #: Paths that may be read even inside those.
    visible: tuple[str, ...]


@runtime_checkable
class HasBuildPlace(Protocol):
    """Optional part of an engine: it knows the `BuildPlace` of its machine."""

    def build_place(self) -> BuildPlace:
        """Return the machine's build place. Raises EngineUnavailable before `start`."""
        ...


class SharedPaths(Struct, frozen=True):
    """The settings that all launch documents of one engine share."""

    #: Directories whose content programs must not see.
    hidden: tuple[Path, ...] = ()
    #: Paths that they may only read, visible even inside hidden ones.
    read_only: tuple[Path, ...] = ()
    access: ServiceAccess = NO_ACCESS
    #: The service's own environment.
    ambient: Mapping[str, str] | None = None
    rules: ProgramRules = ProgramRules()
    #: Seconds between two looks at what a replica uses.
    usage_every: float = 10.0
    #: Ports of the service, which programs can bind on their own address alone, also while it is away.
    kept_ports: tuple[int, ...] = ()


class Where(Struct, frozen=True):
    """Where one program is started."""

    host: HostFacts
    shared: SharedPaths
    slot: Slot
    #: Of the slot.
    directory: Path
    #: The gang's hosts file.
    hosts: Path
    #: Directory of the replica's log.
    logs: Path

    @property
    def files(self) -> Path:
        """The directory of what the program may write."""
        return self.directory / protocol.FILES

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where the replica's own endpoint listens: always on the loopback, even if other machines reach the
        replica."""
        if self.slot.endpoint:
            return self.slot.endpoint, PROGRAM_PORT + 1
        return self.slot.address, self.slot.port + 1

    @property
    def intercepted(self) -> tuple[str, ...]:
        """The names of Google's hosts that lead to the replica's own endpoint."""
        return intercepted(self.host, self.shared)


def intercepted(host: HostFacts, shared: SharedPaths) -> tuple[str, ...]:
    """Return the names of Google's hosts that lead to replicas' own endpoints there."""
    if not (host.namespaced and shared.access.certificate):
        return ()
    ours = tuple(regions.apis()) if shared.access.rest_socket else ()
    return (*regions.STORAGE, *_METADATA, *ours)
