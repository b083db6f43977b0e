"""Declares the options of a remote engine, and derives them from the service's context. Also checks the
settings for machines and for the address to which agents connect."""

import hashlib
import ipaddress
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from trainshed.core.capacity import MachineWanted, Route
from trainshed.core.catalog.machines import accelerator_types, machine_types
from trainshed.core.errors import closest
from trainshed.core.names import Api
from trainshed.core.runtime import Image
from trainshed.engines.findings import Finding, finding_builder
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.port import SecretSource
from trainshed.engines.registry import EngineContext
from trainshed.engines.tables import wrong_fields
from trainshed.replica.system import durable
from trainshed_cluster.remote.content.library import Library
from trainshed_cluster.remote.failed_starts import START_INTERVALS
from trainshed_cluster.remote.messages import AgentDocument


def service_identity(data: Path, directory: Path) -> str:
    """Return the identity of this service among all services of the cluster: eight hexadecimal digits. It is
    unique even if two services have data directories with the same path, or if one directory is a copy of the
    other. `directory`: the engine's directory in `data`."""
    place = directory / "identity"
    if not place.exists():
        directory.mkdir(parents=True, exist_ok=True)
        # Version 0.3 introduced this identity. A service with older allocations keeps its former identity,
        # because the names of those allocations contain it.
        is_old = any((directory / "attempts").glob("*.json"))
        durable.write(str(place), "" if is_old else os.urandom(16).hex())
    return hashlib.sha256(os.fsencode(data.resolve()) + place.read_bytes()).hexdigest()[:8]


class AgentCommand(Struct, frozen=True):
    """How to start an agent's process."""

    argv: Sequence[str]
    #: Function that converts the agent's startup data (its document) to the bytes for the process's standard
    #: input.
    parcel: Callable[[bytes], bytes] = lambda document: document


class Listening(Struct, frozen=True):
    """The address and the sockets that the service opens for agents."""

    #: Host name or address to which agents connect; None = the name of the service's machine.
    address: str | None = None
    #: Port for agents; 0 = the service chooses a free port, and uses it again after a restart.
    port: int = 0
    #: The service's Unix sockets to which agents may open tunnels, by name.
    sockets: Mapping[str, Path] = {}

    @property
    def dialed_host(self) -> str:
        return self.address or socket.gethostname()

    @property
    def host(self) -> str:
        """The address to listen on. The hub (the server for agents) listens on all addresses of the machine,
        because it admits only clients with a certificate."""
        return "::" if self.address and ":" in self.address else "0.0.0.0"


class RemoteOptions(Struct, frozen=True, kw_only=True):
    """The options of a remote engine."""

    #: The service's identity among the services of the cluster (`service_identity`).
    identity: str
    #: Directory for the engine's own files.
    directory: Path
    listening: Listening
    #: Seconds without contact to the service after which an agent of a new attempt ends its programs.
    lease: float
    #: Whether programs on a node that the cluster reports as down count as lost at once. Otherwise they count
    #: as lost when their agent has been silent for a whole lease, because they may run until then.
    down_is_lost: bool = False
    #: Creates an agent's startup data (its document) from its credential, job, node, user (`Owner.user`) and
    #: address.
    agent: Callable[..., AgentDocument]
    #: Returns the command that starts an agent on the given node. It may block while it reads the agents'
    #: code.
    command: Callable[[str], AgentCommand]
    #: Provides the secrets to which launch plans refer; None = plans must not refer to secrets.
    secrets: SecretSource | None = None
    #: Seconds of the quarantine of a node on which no agent starts.
    quarantine: float = 3600.0
    #: Whether the cluster chooses the nodes. Requested nodes are then only preferences.
    anywhere: bool = False
    #: Whether each replica has its own allocation and agent.
    apart: bool = False
    #: Seconds to keep idle allocations for another attempt with the same needs, for example a retry or the
    #: next job in the queue. Values below 2 count as 2. Ignored if `anywhere` or `apart` is set.
    keep: float = 0.0
    #: Seconds to wait after each failed start of an agent (`failed_starts.START_INTERVALS`).
    start_intervals: Sequence[float] = START_INTERVALS
    #: Returns the current time in seconds since the epoch.
    now: Callable[[], float] = time.time
    #: The content (environments and other directories) that the service sends to nodes; None = nodes share
    #: the service's files.
    library: Library | None = None
    #: Reads the configuration of a container image from its registry, if the cluster pulls jobs' images; None
    #: = the cluster does not pull them.
    read_image: Callable[[str], Image] | None = None


_BEGIN = """\
import sys
sys.path[:0] = sys.argv[1:]
from trainshed_cluster.remote.start import main
main()
"""


def module_command() -> AgentCommand:
    """Return the command that starts an agent with this Python and this package, which the node has at the
    same paths. The command uses this process's module search path. It ignores Python packages and settings in
    the home directory of the node's user."""
    paths = [path for path in sys.path if Path(path).is_dir()]
    return AgentCommand((sys.executable, "-I", "-S", "-c", _BEGIN, *paths))


def service_sockets(context: EngineContext) -> dict[str, Path]:
    """Return the service's Unix sockets to which agents may open tunnels, by name."""
    access = context.access
    known = {"buckets": access.storage_socket, "rest": access.rest_socket, "grpc": access.grpc_socket}
    return {name: path for name, path in known.items() if path is not None}


def engine_here(context: EngineContext, directory: Path) -> LocalEngine:
    """Create the local engine that builds environments on the service's own machine. `directory`: for the
    engine's files."""
    here = Options(hidden=context.hidden, rules=replace(context.rules, autopsy_ttl=None), now=context.now)
    return LocalEngine(directory, here)


def agent_settings(context: EngineContext) -> dict[str, Any]:
    """Return the fields of an `AgentDocument` that are the same for all agents of this service. The
    certificates in them are read only once, because a service renews them only before it creates its engine.
    """
    access = context.access
    return {
        # Do not delete the files of failed replicas after a time, because they are deleted with the agent's
        # other files.
        "rules": replace(context.rules, autopsy_ttl=None),
        "hidden": tuple(map(str, context.hidden)),
        "interception": _text(access.certificate),
        "trust": _text(access.trust),
        "sockets": tuple(service_sockets(context)),
    }


def _text(path: Path | None) -> str | None:
    return path.read_text("utf-8") if path is not None and path.exists() else None


def check_address(engine: str, callers: str, address: str | None) -> Finding:
    """Check the setting `address` of an engine. `callers`: the clients that use the address ("nodes" or
    "Pods")."""
    finding, name = finding_builder(__file__), Listening(address).dialed_host
    values = {"engine": engine, "callers": callers, "name": name}
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as failure:
        return finding("unknown", failure=failure, **values)
    is_own = all(ipaddress.ip_address(number.partition("%")[0]).is_loopback for number in addresses)
    numbers = ", ".join(sorted(addresses))
    return finding("loopback" if is_own else "address", numbers=numbers, **values)


_MACHINES: Final = "A machine type, or a pattern such as n1-*."
_Pattern = Annotated[str, Meta(pattern=r"^[a-z0-9_*?-]{1,100}$", description=_MACHINES)]


class MachineSelector(Struct, frozen=True, forbid_unknown_fields=True):
    """The part of an entry of an engine's `machines` table that selects machines."""

    #: Patterns of machine types (`a2-*`); [] = all.
    types: Annotated[list[_Pattern], Meta(max_length=200)] = []
    #: Public accelerator types. The machine must have one of them. [] = any machine matches, even without
    #: accelerators.
    accelerators: Annotated[list[str], Meta(max_length=50)] = []


S = TypeVar("S", bound=Struct)


def parse_table(
    engine: str,
    kind: type[S],
    table: Mapping[str, Any],
    check: Callable[[S], Iterable[str]],
    missing: Sequence[str] = (),
) -> S:
    """Parse the table `[engines.ENGINE]`. A setting with the value "" counts as not set.

    Args:
        check: Returns the errors of a table whose fields are individually valid.
        missing: Messages for missing fields.

    Raises:
        ValueError: With all errors, one per line.
    """
    wrong = [*wrong_fields(kind, table), *missing]
    if not wrong:
        settings = convert({key: value for key, value in table.items() if value != ""}, kind)
        wrong = list(check(settings))
        if not wrong:
            return settings
    raise ValueError("\n".join(f"[engines.{engine}] {line}" for line in wrong))


def _accelerators() -> set[str]:
    return {name for api in Api for name in accelerator_types(api)}


def unknown_accelerators(names: Iterable[str]) -> Iterator[str]:
    """Yield an error message for each name that is not a public accelerator type."""
    known = sorted(_accelerators())
    for public in names:
        if public not in known:
            hint = closest(public.replace("-", "_"), known) or f" Use one of {', '.join(known)}."
            yield f"accelerator type {public!r} does not exist.{hint}"


def wrong_machines(tables: Sequence[MachineSelector], engine: str) -> list[str]:
    """Return the errors in the patterns of the `machines` tables of an engine. For each machine type, the
    first table that matches applies. `engine`: name of the engine in the configuration."""
    wrong: list[str] = []
    types, devices = machine_types(), _accelerators()
    left = {MachineWanted(name, device) for name in types for device in (None, *devices)}
    for number, table in enumerate(tables):
        key = f"machines[{number}]"
        unknown = list(unknown_accelerators(table.accelerators))
        wrong += [f"{key}.accelerators: {line}" for line in unknown]
        strange = [name for name in table.types if not any(fnmatchcase(t, name) for t in types)]
        for name in strange:
            hint = closest(name, types) or " Examples: n1-standard-4, or n1-* for a whole series."
            wrong.append(f"{key}.types: machine type {name!r} does not exist.{hint}")
        mine = {m for m in left if Route(tuple(table.types), tuple(table.accelerators)).is_for(m)}
        if not mine and not strange and not unknown:
            wrong.append(f"{key}: earlier tables already cover all of its machines; move it before them")
        if not table.types and not table.accelerators:
            wrong.append(
                f"{key}: it sets neither types nor accelerators; set options for all machines in "
                f"[engines.{engine}] itself"
            )
        left -= mine
    return wrong
