"""Starts a gang's first programs on their nodes before its agents have loaded: the service itself chooses
slots and makes launch documents from what each node has told of itself (docs/adr/0082).

Nothing else changes: agents are asked for slots and told to launch as always, and find it done. An agent
starts what could not be started before it.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.engines.launch import environs
from trainshed.engines.launch.documents import (
    HostFacts,
    Revealed,
    SharedPaths,
    hosts_text,
    intercepted,
    launch_document,
    outermost,
)
from trainshed.engines.local import machine, places
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.layout import Layout, slots_text
from trainshed.engines.port import ServiceAccess, Slot, SlotRequest
from trainshed.engines.remote import node_directory, opening
from trainshed.engines.remote.content.manifest import Unit
from trainshed.engines.remote.content.shelf import NodeShelf
from trainshed.engines.remote.messages import AgentDocument, NodeFacts
from trainshed.engines.streams import FileStreams
from trainshed.replica import protocol

_PATIENCE = 1.0
"""Seconds for which nodes that are held wait for launch plans, which follow at once upon slots."""
_ANY_MEMORY = 1 << 62
"""Bytes; what there really is is looked up on the node."""
_CERTIFICATE, _TRUST, _DOORS = "interception.pem", "trust.pem", "doors"
"""In an agent's directory."""


class FirstStart:
    """The first programs of one gang. It is empty until all places are known (`choose`)."""

    def __init__(self) -> None:
        #: Slots of the whole gang, with the cluster's node names.
        self.slots: Mapping[ReplicaId, Slot] = {}
        self._facts: Mapping[ReplicaId, NodeFacts] = {}
        self._shown: Sequence[Revealed] = ()
        self._lines: Mapping[ReplicaId, int] = {}
        self._offered = asyncio.Event()

    def choose(self, slots: Mapping[ReplicaId, Slot], facts: Mapping[ReplicaId, NodeFacts]) -> None:
        """Set the slots. `facts`: of each replica's place."""
        self.slots, self._facts = slots, facts

    @property
    def plans(self) -> list[LaunchPlan]:
        """The plans of the last offer."""
        return [plan for plan, _ in self._shown]

    def hosts(self) -> tuple[tuple[str, str], ...]:
        """Return (hostname, address) of each replica."""
        return tuple((slot.hostname, slot.address) for slot in self.slots.values())

    def offer(self, shown: Sequence[Revealed], lines: Mapping[ReplicaId, int]) -> None:
        """Offer programs to be started. `lines`: the number of each log's next line."""
        self._shown, self._lines = shown, lines
        self._offered.set()

    async def is_ready(self) -> bool:
        """Wait for an offer. Returns False if none came, or not all of it can be started in this way."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._offered.wait()
        except TimeoutError:
            return False
        return {plan.replica for plan in self.plans} == set(self.slots) and all(
            plan.software.image is None and not plan.reduction.packages for plan in self.plans
        )

    def text(
        self,
        document: AgentDocument,
        replicas: Collection[ReplicaId],
        units: Iterable[Unit] = (),
    ) -> bytes:
        """Return the JSON text from which `opening` starts the programs of one agent, whose `replicas` share
        one place. `units`: units of the node's cache that programs run in."""
        facts = next(self._facts[replica] for replica in replicas)
        directory = Path(document.directory) / node_directory.name_of(document.credential.name)
        layout, streams = Layout(directory), FileStreams(directory / "logs")
        host = HostFacts(facts.level, "", "", _ANY_MEMORY, machine.identity(directory))
        shared = _shared(document, facts, directory)
        shown = [one for one in self._shown if one[0].replica in replicas]
        shelf = NodeShelf(Path(document.cache))
        slots = [replace(self.slots[plan.replica], node=machine.NAME) for plan, _ in shown]
        attempt = layout.attempt(document.job_uid, document.attempt)
        directories = [(path, 0o700) for path in layout.directories()]
        directories.append((attempt, 0o755))
        files = [
            (layout.record(document.job_uid, document.attempt), slots_text(slots), 0o600),
            (
                attempt / protocol.HOSTS,
                hosts_text(slots, self.hosts(), intercepted(host, shared)),
                0o644,
            ),
            *certificates(replace(document, trust=""), directory),
        ]
        programs: list[object] = []
        for (plan, masked), slot in zip(shown, slots, strict=True):
            place = attempt / str(plan.replica)
            directories.append((place, 0o700))
            logs = streams.directory(StreamSource(plan.job_uid, plan.attempt, plan.replica))
            if line := self._lines[plan.replica]:
                directories.append((logs, 0o700))
                files.append((logs / f"{line:012}.jsonl", "", 0o600))
            made = launch_document(
                plan=plan,
                slot=slot,
                host=host,
                shared=shared,
                directory=place,
                hosts=attempt / protocol.HOSTS,
                logs=logs,
                masked=masked,
                trainer_token=secrets.token_urlsafe(24) if plan.reports_progress else "",
            )
            own = {"replica": str(plan.replica), "slot": str(place), "plan": made.to_message()}
            programs.append(own)
        needs = {
            path for plan, _ in shown for path in (plan.software.template, *plan.software.path)
        }
        needs.add(document.trust_file)
        message = {
            "boot": facts.boot,
            "parent": document.directory,
            "name": directory.name,
            "needs": sorted(needs - {""}),
            "units": [
                {"path": one.path, "digest": one.digest, "record": str(shelf.record_of(one.path))}
                for one in units
            ],
            "hosts_file": document.hosts_file if _has_own_hosts(facts, slots) else "",
            "hosts": self.hosts(),
            "trust": _TRUST if document.trust else "",
            "ports": [(slot.address, slot.port) for slot in slots],
            "directories": [(os.path.relpath(path, directory), mode) for path, mode in directories],
            "files": [(os.path.relpath(path, directory), text, mode) for path, text, mode in files],
            "programs": programs,
        }
        return json.dumps(message).encode()


def _has_own_hosts(facts: NodeFacts, slots: Iterable[Slot]) -> bool:
    """Whether programs of a place use the machine's own hosts file, because none can be mounted for them."""
    return facts.level == protocol.LEVEL_SESSION and any(one.host == one.hostname for one in slots)


def choose_slots(
    job_uid: JobUid,
    requests: Sequence[SlotRequest],
    facts: NodeFacts,
    *,
    identity: str,
    taken: Container[int] = (),
    named: bool = False,
) -> dict[ReplicaId, Slot]:
    """Choose slots as the agent of one place would. `identity`: that agent's, by which addresses and users
    are chosen. `taken`: ports that are in use there. `named`: programs find their peers by name even where no
    hosts file can be mounted."""

    def is_free(port: int, *, again: bool) -> bool:
        return port not in taken

    slots = places.new_slots(
        identity,
        job_uid,
        requests,
        (),
        {},
        named=named or facts.level != protocol.LEVEL_SESSION,
        own_users=facts.level == protocol.LEVEL_OWN,
        shared=facts.address,
        is_free=is_free,
    )
    return {slot.replica: slot for slot in slots}


# --- what a node is, as its agent knows it ---


def facts_of(engine: LocalEngine, document: AgentDocument, address: str) -> NodeFacts | None:
    """Return what an agent tells of its node; None = programs are not started there before agents, because
    their settings or their place differ each time."""
    host, shared, boot = engine.host, engine.shared, opening.boot()
    parent = Path(document.directory)
    if host.gpus or document.user or not boot or parent.resolve() != parent:
        return None
    own = parent / node_directory.name_of(document.credential.name)
    return NodeFacts(
        boot=boot,
        level=host.level,
        address=address,
        hidden=tuple(path for path in shared.hidden if not Path(path).is_relative_to(own)),
        read_only=tuple(map(str, shared.read_only)),
        visible=shared.visible,
        ambient=environs.ambient(shared.ambient or {}),
        commands=shared.commands,
    )


def doors(document: AgentDocument, directory: Path) -> dict[str, Path]:
    """Return where the agent listens for each of the service's sockets."""
    return {door: directory / _DOORS / door for door in document.doors}


def access(document: AgentDocument, directory: Path) -> ServiceAccess:
    """Return how programs of an agent reach the service."""
    paths = doors(document, directory)
    return ServiceAccess(
        storage_socket=paths.get("buckets"),
        rest_socket=paths.get("rest"),
        grpc_socket=paths.get("grpc"),
        certificate=directory / _CERTIFICATE if document.interception else None,
        trust=_trust(document, directory),
    )


def _trust(document: AgentDocument, directory: Path) -> Path | None:
    if document.trust_file:
        return Path(document.trust_file)
    return directory / _TRUST if document.trust else None


def certificates(document: AgentDocument, directory: Path) -> list[tuple[Path, str, int]]:
    """Return (path, text, mode) of the certificate files of an agent's directory. Programs can read the
    trusted authorities."""
    found = (
        (directory / _CERTIFICATE, document.interception, 0o600),
        (directory / _TRUST, document.trust, 0o644),
    )
    return [one for one in found if one[1]]


def _shared(document: AgentDocument, facts: NodeFacts, directory: Path) -> SharedPaths:
    """Return the `SharedPaths` that the agent's local engine has."""
    layout = Layout(directory)
    private = (layout.slots, layout.logs, layout.autopsies)
    return SharedPaths(
        hidden=outermost([*private, *map(Path, facts.hidden)]),
        read_only=tuple(map(Path, facts.read_only)),
        visible=facts.visible,
        access=access(document, directory),
        ambient=facts.ambient,
        processes=document.processes,
        usage_every=document.usage_every,
        disk_enforced=document.disk_enforced,
        commands=facts.commands,
        outlasts_power=False,
    )
