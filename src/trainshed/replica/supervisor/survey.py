"""Finds the state of replicas from their slots' files, whichever version wrote them and whatever was killed
since.

When a service starts, the zygote does this for all slots at once (`main`), in a process of its own, while the
service is still loading. No shim is woken: the slot's lock shows whether one holds it. The results go over a
stream socket as JSON lines:

    {"job": UID, "attempt": NUMBER, "slots": {REPLICA: {..}}}  the attempt's list of slots (`SLOTS`)
    {"replica": REPLICA, "incarnation": N, ..}                 of the attempt before; with a `Standing`
    {"end": true}                                              the last line; without it it is incomplete

Blocks.
"""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from trainshed.replica import protocol
from trainshed.replica.protocol import Message
from trainshed.replica.supervisor import journal
from trainshed.replica.system import durable

Standing = Message

"""The state of an incarnation, one of

{"over": RECORD, "notes": [..]}  it ended; its attempt record (exited or lost), and all notes of its shim
{"alive": true}                  a shim holds the slot: it serves it, or begins, ends or dies {"changing":
true}               what a shim left is not cleared away yet, or its state cannot be told now {"never":
true}                  nothing of it ever ran, and nobody is about to run it
"""


SLOTS = "slots.json"
"""File in the directory of an attempt: its slots, by replica."""
_PLACE = ".place"
"""File in the directory of all slots that identifies the directory in which it was written."""
_LONGEST = 1 << 15
"""Bytes of text from which on lines are sent."""


def standing(slot: str, entries: journal.Entries, incarnation: int) -> Standing:
    """Return the state of an incarnation. `entries`: its journal, just read. If its shim was killed, what is
    left of it is killed and the loss is recorded, so that the answer never changes again. Raises OSError if
    the state cannot be found out now."""
    record = entries.record(incarnation)
    if record is not None:
        return _over(entries, record, incarnation)
    lock = journal.try_lock(slot)
    if lock < 0:
        return {"alive": True}
    try:
        # Its holder may have written the record between our two readings.
        entries = journal.Entries(slot)
        record = entries.record(incarnation)
        if record is not None:
            return _over(entries, record, incarnation)
        if entries.latest < incarnation:
            return {"never": True}
        if not journal.clear(entries):
            return {"changing": True}
        record = journal.lost_record(protocol.SHIM_LOST)
        journal.Claim(incarnation, lock).finish(record)
        return _over(entries, record, incarnation)
    finally:
        journal.release(lock)


def _over(entries: journal.Entries, record: Message, incarnation: int) -> Standing:
    return {"over": record, "notes": entries.notes(incarnation)}


def attempts(slots: str) -> Iterator[tuple[int, int]]:
    """Yield job uid and number of every attempt that has a directory below `slots`, in no order. Directories
    of jobs without attempts are removed."""
    for job in os.scandir(slots):
        if job.name.isdigit():
            found = [entry.name for entry in os.scandir(job.path) if entry.name.isdigit()]
            if not found:
                try:
                    os.rmdir(job.path)
                except OSError:
                    continue
            for attempt in found:
                yield int(job.name), int(attempt)


def looked_into(directory: str, documents: dict[str, Any]) -> Iterator[Message]:
    """Yield a line for each slot of one attempt in which anything was ever started. `documents`: the
    attempt's list of slots."""
    for replica in documents:
        place = os.path.join(directory, replica)
        entries = journal.Entries(place)
        if not entries.latest:
            continue
        try:
            found = standing(place, entries, entries.latest)
        except OSError:
            # To be looked at again by a caller that can wait.
            found = {"changing": True}
        told = {
            "replica": replica,
            "incarnation": entries.latest,
        }
        told.update(found)
        yield told


def here(slots: str) -> Message:
    """Return what identifies the directory: two that exist at once always differ."""
    status = os.stat(slots)
    return {"device": status.st_dev, "inode": status.st_ino}


def was_here(slots: str) -> Message | None:
    """Return what `note_here` wrote last; None if no service has written it."""
    return durable.read_document(os.path.join(slots, _PLACE))


def note_here(slots: str) -> None:
    """Record the directory's identity in it, for `was_here`. Raises OSError."""
    durable.write(os.path.join(slots, _PLACE), json.dumps(here(slots)))


def main(slots: str, connection: socket.socket) -> None:
    """Send the lines of all slots below a directory. Nothing is sent of a copied directory, because the
    processes that it names are the original's. Raises OSError if the receiver is gone."""
    if was_here(slots) != here(slots):
        return
    text = b""
    for job, attempt in attempts(slots):
        directory = os.path.join(slots, str(job), str(attempt))
        documents = durable.read_document(os.path.join(directory, SLOTS)) or {}
        text += protocol.encode({"job": job, "attempt": attempt, "slots": documents})
        for told in looked_into(directory, documents):
            text += protocol.encode(told)
        if len(text) >= _LONGEST:
            connection.sendall(text)
            text = b""
    connection.sendall(text + protocol.encode({"end": True}))
