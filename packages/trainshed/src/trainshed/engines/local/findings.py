"""Finds out from a slot's files how an incarnation stands, whatever was killed since. Blocks.

What a slot that was copied with its data directory says of processes is of the original's, which may live on:
its incarnation counts as lost (`journal`).
"""

import enum
import errno
import socket
from pathlib import Path

from msgspec import Struct

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


class Unclear(enum.Enum):
    """The incarnation has not ended, and no shim can be connected to."""

    #: A shim begins, ends or dies, or what a killed one left is not cleared away yet: the caller should probe
    #: again soon.
    CHANGING = enum.auto()
    #: Nothing of the incarnation ever ran, and no shim is about to start it.
    NEVER_STARTED = enum.auto()


Finding = Over | socket.socket | Unclear
"""A socket: a shim serves the incarnation, and took this connection."""


def probe_latest(slot: Path) -> tuple[int, Finding] | None:
    """Find out how the latest incarnation stands that was started in a slot; None = none was."""
    if not (latest := journal.Entries(str(slot)).latest):
        return None
    try:
        return latest, probe_slot(slot, latest)
    except OSError:
        return latest, Unclear.CHANGING  # It is looked into again.


def probe_slot(slot: Path, incarnation: int) -> Finding:
    """Find out how an incarnation stands, and connect to the shim of one that is held. If its shim was
    killed, the remaining processes are killed and the loss recorded, so that the answer stays the same for
    ever. Raises OSError if this cannot be found out now."""
    place = str(slot)
    entries = journal.Entries(place)
    if (record := entries.record(incarnation)) is not None:
        return Over(record, tuple(entries.notes(incarnation)))
    lock = journal.try_lock(place)
    if lock < 0:
        try:
            return clients.connect(place)
        except OSError as error:
            if error.errno in _OURS:
                raise
            return Unclear.CHANGING
    try:
        # Its holder may have written the record between our two readings.
        entries = journal.Entries(place)
        if (record := entries.record(incarnation)) is None:
            if entries.latest < incarnation:
                return Unclear.NEVER_STARTED
            if not journal.clear(entries):
                return Unclear.CHANGING
            record = journal.lost_record(_COPIED if entries.is_copied else protocol.SHIM_LOST)
            journal.Claim(incarnation, lock).finish(record)
        return Over(record, tuple(entries.notes(incarnation)))
    finally:
        journal.release(lock)
