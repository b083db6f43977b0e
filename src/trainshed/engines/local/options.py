"""What an operator may choose about the local engine, and what follows for all programs alike."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from trainshed import gsutil
from trainshed.engines.launch import environs
from trainshed.engines.launch.devices import Devices
from trainshed.engines.launch.documents import SharedPaths, outermost
from trainshed.engines.local import machine
from trainshed.engines.local.autopsies import NOTHING, Keeping
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import NO_ACCESS, SecretSource, ServiceAccess

_COMMANDS = Path(gsutil.__path__[0]).resolve()
"""What is in its `bin` needs a replica's endpoint, and nothing else of ours."""


class Options(Struct, frozen=True):
    """What an operator, and the service, may choose about the local engine."""

    access: ServiceAccess = NO_ACCESS
    #: The machine's address, by which other machines reach its replicas, each on a port of its own; "" = they
    #: have loopback addresses.
    address: str = ""
    #: The machine's hosts file, where one gang has the machine to itself; None = others use it as well.
    hosts_file: Path | None = None
    #: Directories that programs must not see, besides slots and logs.
    hidden: tuple[Path, ...] = ()
    #: What programs may only read, shown even inside hidden ones.
    read_only: tuple[Path, ...] = ()
    #: Likewise, by the operator's wish.
    visible: tuple[Path, ...] = ()
    #: The sandbox level that is demanded, a `protocol.LEVEL_*`; "" = the strongest that works here.
    level: str = ""
    #: How many a replica may have; 0 = any number.
    processes: int = 0
    #: Those that the service listens on; while it is away no program can.
    kept_ports: tuple[int, ...] = ()
    #: The service's own environment, of which `environs` says what is passed on; None = this process's.
    ambient: Mapping[str, str] | None = None
    #: What plans refer to; None = they may name none.
    secrets: SecretSource | None = None
    #: As how many virtual nodes the machine is offered.
    nodes: int = 1
    #: What each node is declared to have; 0 = its share of the machine.
    node_vcpus: float = 0
    #: Likewise.
    node_memory_bytes: int = 0
    #: Likewise, (public type, count); () = its share of the machine.
    node_accelerators: tuple[tuple[str, int], ...] = ()
    #: Where GPUs are learned of; None = from the driver.
    devices: Devices | None = None
    #: What addresses and ports of replicas are chosen by, so that they are found again; "" = the directory.
    places: str = ""
    #: Seconds after which a shim that does not answer is killed and its replica lost.
    lease: float = 30.0
    #: Seconds between two looks at what a replica uses; 0 = nobody looks.
    usage_every: float = 0.0
    #: End a replica whose files take more than its disk.
    disk_enforced: bool = False
    #: Seconds without a program after which a preloader ends; 0 = there are none.
    warm_idle: float = 0.0
    #: How long what failed replicas left is kept.
    keeping: Keeping = NOTHING
    #: What slots' journals say is read again after a power cut; syncing it costs each start.
    outlasts_power: bool = True
    #: Nanoseconds since the epoch.
    now: Callable[[], int] = time.time_ns

    def environment(self) -> dict[str, str]:
        """The service's own."""
        return dict(os.environ if self.ambient is None else self.ambient)

    def shared(self, layout: Layout) -> SharedPaths:
        """What all launch documents share."""
        ambient = self.environment()
        lent = (Path(path) for path in environs.places(ambient))
        private = (layout.slots, layout.logs, layout.autopsies, *machine.private_places())
        return SharedPaths(
            hidden=outermost([*private, *_resolved(self.hidden)]),
            read_only=_resolved(self.read_only),
            visible=outermost(
                [*_resolved(self.visible), *(path for path in lent if path.exists())]
            ),
            access=self.access,
            ambient=ambient,
            processes=self.processes,
            usage_every=self.usage_every,
            disk_enforced=self.disk_enforced,
            kept_ports=self.kept_ports,
            commands=str(_COMMANDS) if self.access.storage_socket else "",
            outlasts_power=self.outlasts_power,
        )


def _resolved(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)
