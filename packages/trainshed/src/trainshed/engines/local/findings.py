"""Finds out from a slot's files how an incarnation stands, whatever was killed since. Blocks.

What a slot that was copied with its data directory says of processes is of the original's, which may live on:
its incarnation counts as lost (`journal`).
"""

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.layout import Layout
from trainshed.engines.port import Slot
from trainshed.replica import protocol
from trainshed.replica.supervisor import clients, journal

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Why a shim cannot be called that says nothing about the shim."""

_COPIED = (
    "the data directory was copied, or put back from a backup: the replica's processes, if they "
    "are still there, are another service's"
)


class Over(Struct, frozen=True):
    """The incarnation ended. `record`: its attempt record (exited or lost). `notes`: everything that its shim
    noted."""

    record: protocol.Message
    notes: tuple[protocol.Message, ...] = ()


class Alive(Struct, frozen=True):
    """A shim serves the incarnation and took the connection."""

    connection: socket.socket


class Held(Struct, frozen=True):
    """A shim holds the slot. Only a connection to it, which was not tried, shows whether it serves the slot,
    begins or ends."""


class Changing(Struct, frozen=True):
    """A shim begins, ends or dies, or what a killed one left is not cleared away yet: the caller should probe
    again soon."""


class NeverStarted(Struct, frozen=True):
    """Nothing of the incarnation ever ran, and no shim is about to start it."""


Finding = Over | Alive | Held | Changing | NeverStarted


def probe_slot(slot: Path, incarnation: int) -> Over | Alive | Changing | NeverStarted:
    """Find out how an incarnation stands, and connect to the shim of one that is held. If its shim was
    killed, the remaining processes are killed and the loss recorded, so that the answer stays the same for
    ever. Raises OSError if this cannot be found out now."""
    finding = _look(str(slot), journal.Entries(str(slot)), incarnation)
    if not isinstance(finding, Held):
        return finding
    try:
        return Alive(clients.connect(str(slot)))
    except OSError as error:
        if error.errno in _OURS:
            raise
        return Changing()


def _look(
    slot: str, entries: journal.Entries, incarnation: int
) -> Over | Held | Changing | NeverStarted:
    """As `probe_slot`, but wakes no shim. `entries`: the slot's journal, just read."""
    if (record := entries.record(incarnation)) is not None:
        return Over(record, tuple(entries.notes(incarnation)))
    lock = journal.try_lock(slot)
    if lock < 0:
        return Held()
    try:
        # Its holder may have written the record between our two readings.
        entries = journal.Entries(slot)
        if (record := entries.record(incarnation)) is None:
            if entries.latest < incarnation:
                return NeverStarted()
            if not journal.clear(entries):
                return Changing()
            record = journal.lost_record(_COPIED if entries.is_copied else protocol.SHIM_LOST)
            journal.Claim(incarnation, lock).finish(record)
        return Over(record, tuple(entries.notes(incarnation)))
    finally:
        journal.release(lock)


class FoundReplica(Struct, frozen=True):
    """A replica's latest incarnation that was started, and how it stands."""

    replica: ReplicaId
    incarnation: int
    finding: Finding


class FoundGang(Struct, frozen=True):
    """The slots of an attempt. `replicas`: those of which an incarnation was ever started."""

    job_uid: JobUid
    attempt: int
    slots: tuple[Slot, ...]
    replicas: tuple[FoundReplica, ...]


def probe_all(layout: Layout) -> list[FoundGang]:
    """Look into every slot, without waking any shim."""
    gangs: list[FoundGang] = []
    for job_uid, attempt in layout.attempts():
        slots = layout.read(job_uid, attempt)
        replicas = tuple(_latest(layout.attempt(job_uid, attempt), slots))
        gangs.append(FoundGang(job_uid, attempt, slots, replicas))
    return gangs


def _latest(directory: Path, slots: tuple[Slot, ...]) -> Iterator[FoundReplica]:
    for slot in slots:
        place = str(directory / str(slot.replica))
        entries = journal.Entries(place)
        if entries.latest:
            try:
                finding: Finding = _look(place, entries, entries.latest)
            except OSError:
                finding = Changing()  # It is looked into again.
            yield FoundReplica(slot.replica, entries.latest, finding)
