"""Declares the options of an engine of other machines, and derives them from the service's context; checks
what its configuration says of machines, and where agents reach the service."""

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
from trainshed_cluster.remote.gang import PAUSES
from trainshed_cluster.remote.messages import AgentDocument


def service_identity(data: Path, directory: Path) -> str:
    """Return eight hexadecimal digits that tell this service from all others of the cluster, also where they
    have data directories of the same path, or copies of it. `directory`: the engine's in `data`."""
    place = directory / "identity"
    if not place.exists():
        directory.mkdir(parents=True, exist_ok=True)
        # A service of before 0.3 goes on by the name that its holds have.
        is_old = any((directory / "attempts").glob("*.json"))
        durable.write(str(place), "" if is_old else os.urandom(16).hex())
    return hashlib.sha256(os.fsencode(data.resolve()) + place.read_bytes()).hexdigest()[:8]


class AgentCommand(Struct, frozen=True):
    """How an agent's process is started."""

    argv: Sequence[str]
    #: Makes the process's standard input from the agent's document.
    parcel: Callable[[bytes], bytes] = lambda document: document


class Listening(Struct, frozen=True):
    """Where agents reach the service."""

    #: Name or address that they dial; None = this machine's name.
    address: str | None = None
    #: 0 = any free one, the same again after a restart.
    port: int = 0
    #: The service's Unix sockets to which tunnels lead, by name.
    sockets: Mapping[str, Path] = {}

    @property
    def dialled(self) -> str:
        return self.address or socket.gethostname()

    @property
    def host(self) -> str:
        """The address on which the service listens: all of its own, since only who has a certificate is let
        in."""
        return "::" if self.address and ":" in self.address else "0.0.0.0"


class RemoteOptions(Struct, frozen=True, kw_only=True):
    """The options of a remote engine."""

    #: Tells this service from others that use the cluster.
    identity: str
    #: Directory of the engine's own files.
    directory: Path
    listening: Listening
    #: Seconds without contact to the service after which an agent of a new attempt ends its programs.
    lease: float
    #: Programs on a node that the cluster gives up are lost at once, although they may live until their
    #: agent's lease ends.
    down_is_lost: bool = False
    #: Makes an agent's document from its credential, job, node, user (`Owner.user`) and address.
    agent: Callable[..., AgentDocument]
    #: Returns how an agent is started on a node. It may block, because all of the agents' code may have to be
    #: read.
    command: Callable[[str], AgentCommand]
    #: Resolves the secrets that launch plans refer to; None = plans may refer to none.
    secrets: SecretSource | None = None
    #: Seconds for which nothing is started on a node where no agent stays.
    quarantine: float = 3600.0
    #: The cluster chooses nodes: those that requests name are preferences.
    anywhere: bool = False
    #: Each replica has its own hold and agent, even beside others on its node.
    apart: bool = False
    #: Seconds for which an attempt's holds are kept for another one with the same needs, unless `anywhere` or
    #: `apart`; two at least, for a retry or the next job in the queue.
    keep: float = 0.0
    #: Seconds between failed starts of agents, as `gang.PAUSES`.
    start_pauses: Sequence[float] = PAUSES
    #: The clock, in seconds since the epoch.
    now: Callable[[], float] = time.time
    #: Content for nodes that do not see the service's files; None = they see them.
    library: Library | None = None
    #: Reads what a container image starts, if the cluster pulls those of jobs; None = it does not.
    read_image: Callable[[str], Image] | None = None


_BEGIN = """\
import sys
sys.path[:0] = sys.argv[1:]
from trainshed_cluster.remote.start import main
main()
"""


def module_command() -> AgentCommand:
    """Return how agents are started on nodes that see this Python and this package at the same paths: with
    this process's module search path, whatever another user's Python would find, and nothing of that user's
    own."""
    paths = [path for path in sys.path if Path(path).is_dir()]
    return AgentCommand((sys.executable, "-I", "-S", "-c", _BEGIN, *paths))


def service_sockets(context: EngineContext) -> dict[str, Path]:
    """Return the service's Unix sockets to which tunnels lead, by name."""
    access = context.access
    known = {
        "buckets": access.storage_socket,
        "rest": access.rest_socket,
        "grpc": access.grpc_socket,
    }
    return {name: path for name, path in known.items() if path is not None}


def engine_here(context: EngineContext, directory: Path) -> LocalEngine:
    """Make the local engine for what runs on the service's own machine. `directory`: its data."""
    here = Options(
        hidden=context.hidden, rules=replace(context.rules, autopsy_ttl=None), now=context.now
    )
    return LocalEngine(directory, here)


def told_to_agents(context: EngineContext) -> dict[str, Any]:
    """Return the fields of an `AgentDocument` that follow from the service's settings. The files of
    certificates are read now: a service makes and renews them before its engine is built, and never later."""
    access = context.access
    return {
        # What fails on a node goes with its agent's files.
        "rules": replace(context.rules, autopsy_ttl=None),
        "hidden": tuple(map(str, context.hidden)),
        "interception": _text(access.certificate),
        "trust": _text(access.trust),
        "sockets": tuple(service_sockets(context)),
    }


def _text(path: Path | None) -> str | None:
    return path.read_text("utf-8") if path is not None and path.exists() else None


def examine_address(engine: str, callers: str, address: str | None) -> Finding:
    """Check an engine's setting `address`. `callers`: the word for who calls there, nodes or Pods."""
    finding, name = finding_builder(__file__), Listening(address).dialled
    values = {"engine": engine, "callers": callers, "name": name}
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    except OSError as failure:
        return finding("unknown", failure=failure, **values)
    is_own = all(ipaddress.ip_address(number.partition("%")[0]).is_loopback for number in addresses)
    numbers = ", ".join(sorted(addresses))
    return finding("loopback" if is_own else "address", numbers=numbers, **values)


_MACHINES: Final = "a machine type, or a pattern of some, such as n1-*"
_Pattern = Annotated[str, Meta(pattern=r"^[a-z0-9_*?-]{1,100}$", description=_MACHINES)]


class ForMachines(Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of an engine's `machines` table, which chooses machines."""

    #: Patterns of machine types (`a2-*`); [] = all.
    types: Annotated[list[_Pattern], Meta(max_length=200)] = []
    #: Public accelerator types, one of which the machine must have; [] = any, or none.
    accelerators: Annotated[list[str], Meta(max_length=50)] = []


S = TypeVar("S", bound=Struct)


def parse_table(
    engine: str,
    kind: type[S],
    table: Mapping[str, Any],
    check: Callable[[S], Iterable[str]],
    missing: Sequence[str] = (),
) -> S:
    """Parse the table `[engines.ENGINE]`; "" = a setting that is not set. `check`: returns what is wrong with
    fields that are right by themselves. `missing`: messages for fields that are missing. Raises ValueError
    with everything that is wrong, one line each."""
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
    """Yield a message for each name that is not a public accelerator type."""
    known = sorted(_accelerators())
    for public in names:
        if public not in known:
            hint = closest(public.replace("-", "_"), known) or f" There are {', '.join(known)}."
            yield f"there is no accelerator type {public!r}.{hint}"


def wrong_machines(tables: Sequence[ForMachines], engine: str) -> list[str]:
    """Return what is wrong with the patterns of an engine's `machines` tables, of which the first match
    counts. `engine`: its name in the configuration."""
    wrong: list[str] = []
    types, devices = machine_types(), _accelerators()
    left = {MachineWanted(name, device) for name in types for device in (None, *devices)}
    for number, table in enumerate(tables):
        at = f"machines[{number}]"
        unknown = list(unknown_accelerators(table.accelerators))
        wrong += [f"{at}.accelerators: {line}" for line in unknown]
        strange = [name for name in table.types if not any(fnmatchcase(t, name) for t in types)]
        for name in strange:
            hint = closest(name, types) or " Such as n1-standard-4, or n1-* for all of a series."
            wrong.append(f"{at}.types: no machine type is called {name!r}.{hint}")
        mine = {m for m in left if Route(tuple(table.types), tuple(table.accelerators)).is_for(m)}
        if not mine and not strange and not unknown:
            wrong.append(
                f"{at}: those before it are for all of its machines already; put it before them"
            )
        if not table.types and not table.accelerators:
            wrong.append(
                f"{at}: it names neither types nor accelerators; what is for all machines is said in "
                f"[engines.{engine}] itself"
            )
        left -= mine
    return wrong
