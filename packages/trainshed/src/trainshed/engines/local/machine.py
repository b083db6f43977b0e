"""Determines, once, the properties of this machine for an engine: isolation levels, resources (divided among
virtual nodes), and the resulting capabilities."""

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.capacity import Node
from trainshed.engines.launch.devices import NO_DRIVER, Device, find_devices, find_driver, totals
from trainshed.engines.launch.documents import HostFacts
from trainshed.engines.local.layout import MachineHosts
from trainshed.engines.local.options import Declared, Options
from trainshed.engines.local.spawner import Spawner
from trainshed.engines.port import Capabilities, EngineUnavailable, LevelUnavailable
from trainshed.replica import protocol
from trainshed.replica.sandbox import levels
from trainshed.replica.system import cgroups

NAME = "local"

_NODE_NAME = re.compile(rf"{NAME}(-\d+)?")

Shares = Mapping[str, Sequence[Device]]
"""The GPUs of each virtual node, by the node's name."""


def identity(data: Path) -> str:
    """Return eight hexadecimal digits that distinguish this data directory from those of other services."""
    return hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:8]


def is_node(name: str) -> bool:
    """Whether a virtual node of this machine can have the name `name`, for any number of virtual nodes."""
    return _NODE_NAME.fullmatch(name) is not None


class HostProbe:
    """Determines the properties of this machine. `identity`: distinguishes this service from others on the
    machine."""

    def __init__(self, options: Options, identity: str) -> None:
        self._options = options
        self._identity = identity
        self._host: HostFacts | None = None
        self._refused: dict[str, str] = {}
        #: The machine's virtual nodes, and the GPUs of each.
        self.nodes: tuple[Node, ...] = ()
        self.shares: Shares = {}
        #: The machine's hosts file, if programs use it because the gang's own file cannot be mounted. None:
        #: programs do not use it, or this engine may not write it.
        self.machine_hosts: MachineHosts | None = None

    @property
    def host(self) -> HostFacts:
        """The properties of the machine. Raises EngineUnavailable before `explore`."""
        if self._host is None:
            raise EngineUnavailable("the local engine has not been started yet")
        return self._host

    @property
    def can_resolve_peers(self) -> bool:
        """Whether programs can resolve the hostnames of their peers."""
        return self.host.has_namespaces or self.machine_hosts is not None

    async def explore(self, spawner: Spawner, scratch: Path) -> None:
        """Determine all properties, including the isolation levels that work. `scratch`: an empty directory
        on the file system of the replicas' directories. Raises LevelUnavailable."""
        options = self._options
        level, devices = await asyncio.gather(
            self._find_level(spawner, scratch), asyncio.to_thread(find_devices, os.environ)
        )
        bases = await asyncio.to_thread(cgroups.find_bases, membership=options.membership)
        if level == protocol.LEVEL_SESSION and options.hosts_file is not None:
            hosts = MachineHosts(options.hosts_file)
            self.machine_hosts = hosts if hosts.is_ours else None
        driver = await asyncio.to_thread(find_driver) if devices else NO_DRIVER
        whole = node(bases.get("memory"))
        self.shares = share(devices, options.nodes)
        self.nodes = split(whole, self.shares, options.declared_resources)
        self._host = HostFacts(
            level=level,
            bases=bases,
            memory_bytes=whole.memory_bytes,
            identity=self._identity,
            gpus=devices,
            processes=await asyncio.to_thread(cgroups.process_share, bases.get("pids")),
            driver=driver,
            processors=whole.vcpus,
        )

    def capabilities(self) -> Capabilities:
        host = self.host
        return Capabilities(
            process_namespace=host.has_namespaces,
            stable_hostname=self.can_resolve_peers,
            memory_limit="kernel" if "memory" in host.bases else "polling",
            isolation=host.level,
            not_stronger=tuple(self._refused.items()),
            process_limit="kernel" if "pids" in host.bases or host.level == protocol.LEVEL_USER else None,
            images=host.has_namespaces,
        )

    async def _find_level(self, spawner: Spawner, scratch: Path) -> str:
        demanded = self._options.rules.isolation
        if demanded is not None and demanded not in levels.LEVELS:
            raise LevelUnavailable(
                f"The isolation {demanded!r} does not exist. Choose one of {', '.join(levels.LEVELS)}"
            )
        level, self._refused = await spawner.probe(scratch, (demanded,) if demanded else levels.LEVELS)
        if level or not demanded:
            return level or protocol.LEVEL_SESSION
        level, _ = await spawner.probe(scratch, levels.LEVELS)
        raise LevelUnavailable(
            f"The isolation {demanded} does not work on this machine: {self._refused[demanded]}. "
            f"The level {level or protocol.LEVEL_SESSION} works"
        )


def node(group_of_memory: str | None) -> Node:
    """Return the machine as one node, without its GPUs. `group_of_memory`: control group whose limit, if it
    has one, counts as the machine's memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # In a container, `cgroups.ROOT` is the container's own group, whose limit applies. The group is usually
    # read-only, so it is not `group_of_memory`. Always include it.
    groups = [cgroups.ROOT, f"{cgroups.ROOT}/memory"]
    while group_of_memory and group_of_memory.startswith(f"{cgroups.ROOT}/"):
        groups.append(group_of_memory)
        group_of_memory = os.path.dirname(group_of_memory)  # noqa: PTH120 - no file of ours
    for group in groups:
        memory = min(memory, cgroups.memory_limit(group) or memory)
    return Node(NAME, len(os.sched_getaffinity(0)), memory)


def share(devices: tuple[Device, ...], count: int) -> dict[str, tuple[Device, ...]]:
    """Divide the GPUs among `count` virtual nodes. Return the GPUs of each node."""
    if count == 1:
        return {NAME: devices}
    return {f"{NAME}-{index}": devices[index::count] for index in range(count)}


def split(whole: Node, shares: dict[str, tuple[Device, ...]], declared: Declared) -> tuple[Node, ...]:
    """Divide the machine into virtual nodes, each with an equal share of its resources or with the declared
    resources."""
    count = len(shares)
    return tuple(
        replace(
            whole,
            name=name,
            vcpus=declared.vcpus or whole.vcpus / count,
            memory_bytes=declared.memory_bytes or whole.memory_bytes // count,
            accelerators=declared.accelerators or totals(devices),
        )
        for name, devices in shares.items()
    )
