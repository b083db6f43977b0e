"""The states of a replica slot, which is a replica's position on a cluster: its allocation, node and slot.
Pure.

Each change of state uses the table in `replica_slots.toml`, which has a cell for each state and trigger.
`state_of` derives the state from the stored fields and from the reported end of the last run (incarnation).
"""

import enum
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from trainshed.core.failure.evidence import Cause
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost
from trainshed.core.lifecycle.transition import Table
from trainshed.core.names import ReplicaId
from trainshed.engines.port import Slot, SlotRequest
from trainshed.replica.protocol import NEVER_STARTED

Ended = ReplicaExited | ReplicaLost


class SlotState(enum.StrEnum):
    """The state of a replica slot."""

    #: The replica has no slot (directory, address and resources) on its node yet.
    WAITING = "waiting"
    #: The replica has a slot (directory, address and resources), and no program runs in it.
    READY = "ready"
    #: A program of the replica runs on its node, or may run there.
    RUNNING = "running"
    #: A program of the replica may run, but another agent has replaced the agent that allocated its directory
    #: and address.
    DETACHED = "detached"
    #: The replica waits for another node, so its former node needs no agent for it.
    VACANT = "vacant"

    @property
    def is_live(self) -> bool:
        """Whether a program of the replica runs or may run."""
        return self in (SlotState.RUNNING, SlotState.DETACHED)


class SlotTrigger(enum.StrEnum):
    """The events that change a replica slot."""

    #: The agent on the replica's node has allocated the replica's slot: directory, address and resources.
    ALLOCATED = "allocated"
    #: A run (incarnation) of the replica was launched.
    LAUNCHED = "launched"
    #: A run (incarnation) of the replica will never start.
    REJECTED = "rejected"
    #: The agent was lost, together with all its programs.
    AGENT_LOST = "agent lost"
    #: Another agent is started on the replica's node.
    AGENT_REPLACED = "agent replaced"
    #: The service gave up the replica's node, because the node no longer accepts replicas.
    VACATED = "vacated"
    #: A caller requested the replica on another node.
    MOVED = "moved"


TABLE: Final = Table(
    "replica slot",
    SlotState,
    SlotTrigger,
    tomllib.loads(Path(__file__).with_name("replica_slots.toml").read_text("utf-8")),
)
_LEAVING: Final = (SlotTrigger.AGENT_REPLACED, SlotTrigger.VACATED, SlotTrigger.MOVED)
"""Triggers after which no agent can report the end of an earlier program of the replica."""


class ReplicaSlot(msgspec.Struct, frozen=True, rename={"allocation_index": "part"}):
    """The position of a replica on the cluster, and its runs (incarnations)."""

    replica: ReplicaId
    request: SlotRequest
    #: Number of the replica's allocation within the attempt.
    allocation_index: int
    #: The directory, address and resources that the agent allocated, with the cluster's name of the node;
    #: None = the agent has not allocated them yet.
    slot: Slot | None = None
    #: Number of the last launched run (incarnation); 0 = none.
    launched: int = 0
    #: Runs of the replica (incarnations) up to this number must not start.
    forbidden: int = 0
    #: The identity of the replica's program (`launch.documents.identity`); None = no program was launched.
    identity: str | None = None
    #: Number of the run (incarnation) that was lost with its agent; 0 = none.
    lost: int = 0
    #: Why the run with the number `lost` was lost; None = none was lost.
    cause: str | None = None
    #: The kind of loss of the run with the number `lost`.
    loss: Cause = Cause.LOST
    #: Number of the run (incarnation) that had ended before its agent was shut down, so that no agent can
    #: report its end again; 0 = none.
    ended: int = 0
    #: Port of the replica at its last position, at which its peers connect; None = the replica had no port
    #: yet.
    port: int | None = None
    #: The node that the caller requested, if the cluster has chosen a different node; otherwise None.
    wish: str | None = None
    #: The replica waits for another node, so its former node needs no agent for it.
    is_vacant: bool = False

    @property
    def node(self) -> str:
        return self.request.node

    @property
    def agent_key(self) -> str:
        return agent_key(self.allocation_index, self.node)


def agent_key(index: int, node: str) -> str:
    """Return the key that identifies one node of one allocation, and the current agent there. `index`: number
    of the allocation."""
    return f"{index}/{node}"


def state_of(replica_slot: ReplicaSlot, end: Ended | None) -> SlotState:
    """Return the state of a replica slot. `end`: the last reported end of a program of the replica; None = no
    end was reported."""
    is_over = end is not None and end.incarnation >= replica_slot.launched
    if replica_slot.launched > max(replica_slot.lost, replica_slot.ended) and not is_over:
        return SlotState.RUNNING if replica_slot.slot is not None else SlotState.DETACHED
    if replica_slot.is_vacant:
        return SlotState.VACANT
    return SlotState.READY if replica_slot.slot is not None else SlotState.WAITING


def fire(replica_slot: ReplicaSlot, end: Ended | None, trigger: SlotTrigger, **changes: Any) -> ReplicaSlot:
    """Return the replica slot after a trigger. If the trigger has no effect, the result is `replica_slot`
    itself.

    Args:
        end: The last reported end of the replica; None = no end was reported.
        changes: New values of fields that the trigger sets.

    Raises:
        IllegalTransition: The trigger can never occur in this state.
    """
    after = TABLE.fire(state_of(replica_slot, end), trigger, [repr(replica_slot)])
    if after is None:
        return replica_slot
    if trigger in (SlotTrigger.AGENT_REPLACED, SlotTrigger.MOVED):
        changes["slot"] = None
    if trigger in _LEAVING and not after.is_live:
        changes["ended"] = replica_slot.launched
    match trigger:
        case SlotTrigger.REJECTED:
            changes |= {"lost": changes["launched"], "cause": NEVER_STARTED, "loss": Cause.LOST}
        case SlotTrigger.AGENT_LOST:
            changes["lost"] = replica_slot.launched
        case SlotTrigger.MOVED:
            changes["wish"] = None
        case _:
            pass
    return replace(replica_slot, is_vacant=after is SlotState.VACANT, **changes)
