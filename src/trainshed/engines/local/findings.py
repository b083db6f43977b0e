"""Probes slots: what their files say about an incarnation, whoever wrote them and whatever was killed since.
Blocks.

Slots that were copied with their data directory are let go of: the processes that they name are the
original's, which may live on. An original is known by the device and inode of its directory of slots; two
directories that are there at once never share them.
"""

import errno
import json
import logging
import os
import socket
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.link import connect
from trainshed.engines.port import Slot
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal
from trainshed.replica.system import durable

log = logging.getLogger(__name__)

_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Why a connection cannot be had that says nothing about the shim."""
_COPY_MARK = ".place"
_COPIED = (
    "the data directory was copied, or put back from a backup: the replica's processes, if they "
    "are still there, are another service's"
)


class Over(Struct, frozen=True):
    """The incarnation ended; `record` is its attempt record (exited or lost). `notes`: all that its shim
    noted."""

    record: protocol.Message
    notes: tuple[protocol.Message, ...] = ()


class Alive(Struct, frozen=True):
    """A shim serves it and took the connection."""

    connection: socket.socket


class Changing(Struct, frozen=True):
    """A shim holds the slot but does not listen: it is beginning, ending or dying. Look again soon."""


class NeverStarted(Struct, frozen=True):
    """Nothing of it ever ran, and nobody is about to run it."""


Finding = Over | Alive | Changing | NeverStarted


def probe_slot(slot: Path, incarnation: int) -> Finding:
    """Find out how an incarnation stands. If its shim was killed, what is left of it is cleared away and the
    loss recorded, so that the answer stays the same for ever. Raises OSError: this cannot be found out
    now."""
    return probe_with(slot, journal.Entries(str(slot)), incarnation)


def probe_with(slot: Path, entries: journal.Entries, incarnation: int) -> Finding:
    """`probe_slot`, by somebody who has just read the slot's journal."""
    if record := entries.record(incarnation):
        return Over(record, tuple(entries.notes(incarnation)))
    lock = journal.try_lock(str(slot))
    if lock < 0:
        try:
            return Alive(connect(slot))
        except OSError as error:
            if error.errno in _OURS:
                raise
            return Changing()
    try:
        # Its holder may have written the record between the two looks.
        entries = journal.Entries(str(slot))
        if record := entries.record(incarnation):
            return Over(record, tuple(entries.notes(incarnation)))
        if entries.latest < incarnation:
            return NeverStarted()
        if not journal.clear(entries):
            return Changing()
        record = journal.lost_record(protocol.SHIM_LOST)
        journal.Claim(incarnation, lock).finish(record)
        return Over(record, tuple(entries.notes(incarnation)))
    finally:
        journal.release(lock)


class FoundReplica(Struct, frozen=True):
    """The latest incarnation that was started, and how it stands. `answers`: its shim is of a version that
    answers to pings."""

    incarnation: int
    finding: Finding
    answers: bool


class FoundGang(Struct, frozen=True):
    """`replicas`: those of which any incarnation was ever started."""

    job_uid: JobUid
    attempt: int
    slots: tuple[Slot, ...]
    replicas: dict[ReplicaId, FoundReplica]


def probe_all(layout: Layout, but: Collection[tuple[JobUid, int]] = ()) -> list[FoundGang]:
    """Read every slot, but those of some attempts. Blocks."""
    gangs: list[FoundGang] = []
    for job_uid, attempt in layout.attempts():
        if (job_uid, attempt) in but:
            continue
        slots = layout.read(job_uid, attempt)
        if not slots:
            layout.discard(job_uid, attempt)  # none were given out, so nothing ever ran there
            continue
        directory = layout.attempt(job_uid, attempt)
        replicas: dict[ReplicaId, FoundReplica] = {}
        for slot in slots:
            place = directory / str(slot.replica)
            entries = journal.Entries(str(place))
            if incarnation := entries.latest:
                finding = _probe(place, entries, incarnation)
                _, shim_since = entries.shim
                replicas[slot.replica] = FoundReplica(incarnation, finding, shim_since > 0)
        gangs.append(FoundGang(job_uid, attempt, slots, replicas))
    return gangs


def _probe(place: Path, entries: journal.Entries, incarnation: int) -> Finding:
    try:
        return probe_with(place, entries, incarnation)
    except OSError:
        return Changing()  # To be looked at again, by somebody who has time to wait.


def disown_copies(layout: Layout) -> None:
    """Let go of all that a copied directory of slots says of processes: every incarnation without an end is
    lost, and no process is touched for it. Nothing if it was not copied. A crash in between is made up for by
    the next call. Raises OSError."""
    path = layout.slots / _COPY_MARK
    status = layout.slots.stat()
    here = {"device": status.st_dev, "inode": status.st_ino}
    before = durable.read_document(str(path))
    if before == here:
        return
    if before is not None:
        log.warning(
            "%s was copied or moved to another file system: what ran in it counts as lost",
            layout.slots,
        )
        for job_uid, attempt in layout.attempts():
            for slot in layout.read(job_uid, attempt):
                _disown(layout.attempt(job_uid, attempt) / str(slot.replica))
    durable.write(str(path), json.dumps(here))


def _disown(slot: Path) -> None:
    if not slot.is_dir():
        return
    lock = journal.try_lock(str(slot))
    if lock < 0:
        return  # A shim holds it that serves this very slot.
    try:
        entries = journal.Entries(str(slot))
        if entries.left is not None:
            journal.append(lock, {"guardian": 0, "since": 0, "groups": []})
        if entries.latest and entries.record(entries.latest) is None:
            journal.append(lock, {"over": entries.latest, "record": journal.lost_record(_COPIED)})
        os.fsync(lock)
    finally:
        journal.release(lock)
