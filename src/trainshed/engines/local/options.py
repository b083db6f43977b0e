"""What an operator may choose about the local engine, and what follows for all programs alike."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainshed import gsutil
from trainshed.engines.launch import environs
from trainshed.engines.launch.devices import Devices
from trainshed.engines.launch.documents import SharedPaths, outermost
from trainshed.engines.local import machine
from trainshed.engines.local.autopsies import NOTHING, Keeping
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import SecretDoor

_COMMANDS = Path(gsutil.__path__[0]).resolve()
"""What is in its `bin` needs a replica's endpoint, and nothing else of ours."""


@dataclass(frozen=True, slots=True)
class Options:
    """`storage_socket`: the bucket process's Unix socket for replicas, None = they get no endpoint;
    `rest_socket`, `grpc_socket`: the service's for them, None = it answers for none of Google's hosts;
    `rest_url`: its address, for programs that cannot be led to it by those names.

    What programs see: `hidden`: directories that they must not, besides slots and logs; `read_only`: what
    they may only read, shown even inside hidden ones; `visible`: likewise, by the operator's wish. `level`:
    the sandbox level that is demanded, a `protocol.LEVEL_*`; "" = the strongest that works here. `processes`:
    how many a replica may have, 0 = any number. `certificate`, `trust`: by what Google's hosts are served
    (`SharedPaths`). `ambient`: the service's own environment, None = this process's (`environs` says what of
    it is passed on). `secrets`: what plans refer to. `kept_ports`: those that the service listens on; while
    it is away no program can.

    What there is: `nodes`: as how many virtual nodes the machine is offered; `node_vcpus`,
    `node_memory_bytes`, `node_accelerators`: what each of them is declared to have, 0 or () = its share of
    the machine. `devices`: where GPUs are learned of, None = from the driver.

    `lease`: seconds after which a shim that does not answer is killed and its replica lost. `usage_every`:
    seconds between two looks at what a replica uses, 0 = nobody looks; `disk_enforced`: end one whose files
    take more than its disk. `keeping`: how long what failed replicas left is kept. `now`: ns since the epoch.
    """

    storage_socket: Path | None = None
    rest_url: str = ""
    rest_socket: Path | None = None
    grpc_socket: Path | None = None
    hidden: tuple[Path, ...] = ()
    read_only: tuple[Path, ...] = ()
    visible: tuple[Path, ...] = ()
    level: str = ""
    processes: int = 0
    kept_ports: tuple[int, ...] = ()
    certificate: Path | None = None
    trust: Path | None = None
    ambient: Mapping[str, str] | None = None
    secrets: SecretDoor | None = None
    nodes: int = 1
    node_vcpus: float = 0
    node_memory_bytes: int = 0
    node_accelerators: tuple[tuple[str, int], ...] = ()
    devices: Devices | None = None
    lease: float = 30.0
    usage_every: float = 0.0
    disk_enforced: bool = False
    keeping: Keeping = NOTHING
    now: Callable[[], int] = time.time_ns

    def environment(self) -> dict[str, str]:
        """The service's own."""
        return dict(os.environ if self.ambient is None else self.ambient)

    def ground(self, layout: Layout) -> SharedPaths:
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
            storage_socket=_path(self.storage_socket),
            rest_url=self.rest_url,
            rest_socket=_path(self.rest_socket),
            grpc_socket=_path(self.grpc_socket),
            certificate=str(self.certificate or ""),
            trust=str(self.trust or ""),
            ambient=ambient,
            processes=self.processes,
            usage_every=self.usage_every,
            disk_enforced=self.disk_enforced,
            kept_ports=self.kept_ports,
            commands=str(_COMMANDS) if self.storage_socket else "",
        )


def _path(socket: Path | None) -> str:
    return str(socket.resolve()) if socket else ""


def _resolved(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)
