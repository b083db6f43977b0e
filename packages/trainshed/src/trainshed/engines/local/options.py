"""The options of the local engine, and the settings for all programs that follow from them."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from trainshed.engines.launch import environs
from trainshed.engines.launch.devices import Devices
from trainshed.engines.launch.where import SharedPaths
from trainshed.engines.local import machine
from trainshed.engines.local.autopsies import NOTHING, Keeping
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import NO_ACCESS, SecretSource, ServiceAccess


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
    #: Paths that programs may only read, visible even inside hidden ones.
    read_only: tuple[Path, ...] = ()
    #: Further such paths, chosen by the operator.
    visible: tuple[Path, ...] = ()
    #: The sandbox level that is demanded, a `protocol.LEVEL_*`; "" = the strongest that works here.
    level: str = ""
    #: How many processes a replica may have; 0 = any number.
    processes: int = 0
    #: Ports that the service listens on, which no program can take while it is away.
    kept_ports: tuple[int, ...] = ()
    #: The service's own environment, of which `environs` says what is passed on; None = this process's.
    ambient: Mapping[str, str] | None = None
    #: Resolves the secrets that plans refer to; None = plans may refer to none.
    secrets: SecretSource | None = None
    #: Number of virtual nodes that the machine is divided into.
    nodes: int = 1
    declared: machine.Declared = machine.Declared()
    #: Finds the GPUs; None = the driver is asked.
    devices: Devices | None = None
    #: Seed by which replicas' addresses and ports are chosen, so that they are the same again; "" = the data
    #: directory's identity.
    places: str = ""
    #: Seconds after which a silent shim is killed and its replica lost.
    lease: float = 30.0
    #: Seconds between two measurements of what a replica uses; 0 = use is not measured.
    usage_every: float = 0.0
    #: End a replica whose files take more than its disk.
    disk_enforced: bool = False
    #: Seconds without a program after which a preloader ends; 0 = there are no preloaders.
    warm_idle: float = 0.0
    #: How long the files of failed replicas are kept.
    keeping: Keeping = NOTHING
    #: Slots' journals are read again after a power cut, so that they are synced, which costs each start.
    outlasts_power: bool = True
    #: The clock, in nanoseconds since the epoch.
    now: Callable[[], int] = time.time_ns

    def environment(self) -> dict[str, str]:
        """Return the service's own environment."""
        return dict(os.environ if self.ambient is None else self.ambient)

    def shared(self, layout: Layout) -> SharedPaths:
        """Return the settings that all launch documents share."""
        ambient = self.environment()
        lent = (path for path in environs.places(ambient) if Path(path).exists())
        private = (layout.slots, layout.logs, layout.autopsies, *machine.private_places())
        return SharedPaths(
            hidden=tuple(map(str, (*private, *_resolved(self.hidden)))),
            read_only=_resolved(self.read_only),
            visible=tuple(sorted({*map(str, _resolved(self.visible)), *lent})),
            access=self.access,
            ambient=ambient,
            processes=self.processes,
            usage_every=self.usage_every,
            disk_enforced=self.disk_enforced,
            kept_ports=self.kept_ports,
            outlasts_power=self.outlasts_power,
        )


def _resolved(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)
