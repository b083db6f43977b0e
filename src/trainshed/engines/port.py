"""The engine port: slots for an admitted gang, and what is seen of them.

One slot is one replica's "VM": a node, resources, an address. The verdict on a replica comes from its
shim's record, never from an engine. Conformance suite: tests/contract/engines.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import ExitRecord
from trainshed.core.names import JobUid, ReplicaId


class EngineUnavailable(Exception):
    """The engine cannot answer now; the same call may be made again."""


class LaunchRejected(Exception):
    """The engine will never run this. The message says why and what would run."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the engine can promise on this host; `doctor` and the docs show it.

    `addresses`: "loopback" (own 127.x.y.z and hostname per replica) or "literal" (127.0.0.1, own ports).
    """

    enforced_memory: bool
    oom_verdict: bool
    process_namespace: bool
    stable_hostname: bool
    addresses: str
    durable: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A place where replicas run. Memory in bytes."""

    name: str
    vcpus: float
    memory_bytes: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class SlotRequest:
    replica: ReplicaId
    hostname: str
    node: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A replica's place: `host` is what peers use to reach it (hostname or literal address), `port` the
    one it may bind there, `address` the IP behind it."""

    replica: ReplicaId
    node: str
    hostname: str
    host: str
    address: str
    port: int


@dataclass(frozen=True, slots=True)
class SlotStarted:
    """The replica's main process was started at `at`."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    at: int


@dataclass(frozen=True, slots=True)
class SlotExited:
    """The main process ended; log and attempt record are sealed and synced."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    exit: ExitRecord


@dataclass(frozen=True, slots=True)
class SlotLost:
    """The shim is gone without a record (its program died with it), or never came up.

    `by_service`: the engine could not do its part (a sandbox, a control group, a process); no outside cause.
    """

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    incarnation: int
    cause: str
    by_service: bool = False


@dataclass(frozen=True, slots=True)
class LinesWritten:
    """New log lines of a replica can be read. Coalesced: at most one in about 20 ms per replica."""

    job_uid: JobUid
    attempt: int
    replica: ReplicaId
    lines: int


EngineEvent = SlotStarted | SlotExited | SlotLost | LinesWritten


class Engine(Protocol):
    """All methods are idempotent per (job_uid, attempt[, replica, incarnation]) and survive a restart of
    the service: state is found again on disk or in the cluster, never only in memory."""

    def capabilities(self) -> Capabilities: ...

    async def start(self) -> None:
        """Bring the engine up and adopt what an earlier service left running: every live or unreported
        replica is reported again through `watch` (started, exited or lost)."""
        ...

    async def close(self) -> None:
        """Let go of everything without stopping any replica."""
        ...

    async def capacity(self) -> tuple[Node, ...]: ...

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """Slots for the whole gang or none. The same call again returns the same slots.
        Raises EngineUnavailable, LaunchRejected."""
        ...

    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        """Start programs in their slots, all at once. Returns when each start was handed over; the outcome
        of each comes through `watch`. A plan whose incarnation already started, ended or was stopped is
        not started again, only reported again."""
        ...

    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        """SIGTERM to every live replica of the attempt, SIGKILL after `grace` ns. Every replica named in
        `allocate` is then reported: exited, or lost with cause "never started". Returns at once."""
        ...

    async def allocations(self) -> tuple[tuple[JobUid, int], ...]:
        """Every (job_uid, attempt) that holds slots now, in no order; for reconciliation after a crash."""
        ...

    async def release(self, job_uid: JobUid, attempt: int) -> None:
        """Forget the slots and remove their scratch files (logs stay). Only after all are over."""
        ...

    def watch(self) -> AsyncIterator[EngineEvent]:
        """Events in the order seen, per replica: started, lines…, exited|lost. One reader."""
        ...
