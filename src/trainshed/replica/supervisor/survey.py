"""How replicas stand, by what the files of their slots say, whoever wrote them and whatever was killed since.

A service that starts has the zygote do so for all slots at once (`main`), in a process of its own, while the
service still loads itself. Nobody is woken by it: that a shim holds a slot is seen from the slot's lock. What
it finds goes over a stream socket as JSON lines:

    {"job": UID, "attempt": NUMBER, "slots": {REPLICA: {..}}}    as the list of the attempt's slots has them
    {"replica": REPLICA, "incarnation": N, "answers": true, ..}  of the attempt before; with a `Standing`
    {"end": true}                                                this was all; without it something went wrong

Blocks. Runs on Python 3.6.
"""

import os

from trainshed.replica import protocol
from trainshed.replica.supervisor import journal
from trainshed.replica.system import durable
from trainshed.replica.system import lean_json as json
from trainshed.replica.system import lean_socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from trainshed.replica.protocol import Message

    Standing = Message
    """How an incarnation stands, one of

    {"over": RECORD, "notes": [..]}  it ended; its attempt record (exited or lost), all that its shim noted
    {"alive": true}                  a shim holds the slot: it serves it, or begins, ends or dies
    {"changing": true}               what a shim left is not cleared away yet, or it cannot be told now
    {"never": true}                  nothing of it ever ran, and nobody is about to run it
    """

SLOTS = "slots.json"
"""In the directory of an attempt: its slots, by replica."""
_PLACE = ".place"
"""In the directory of all slots: which directory that was when it was written."""
_LONGEST = 1 << 15
"""Bytes from which on lines are sent."""


def standing(slot: str, entries: journal.Entries, incarnation: int) -> "Standing":
    """How an incarnation stands. `entries`: as they were read just now. If its shim was killed, what is left
    of it is cleared away and the loss recorded, so that the answer stays the same for ever. Raises OSError:
    this cannot be found out now."""
    record = entries.record(incarnation)
    if record is not None:
        return _over(entries, record, incarnation)
    lock = journal.try_lock(slot)
    if lock < 0:
        return {"alive": True}
    try:
        # Its holder may have written the record between the two looks.
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


def _over(entries: journal.Entries, record: "Message", incarnation: int) -> "Standing":
    return {"over": record, "notes": entries.notes(incarnation)}


def attempts(slots: str) -> "Iterator[tuple[int, int]]":
    """Job and number of every attempt that has a directory below that of all slots, in no order. Jobs that
    have none any more lose theirs."""
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


def looked_into(directory: str, documents: "dict[str, Any]") -> "Iterator[Message]":
    """The slots of one attempt, by the list of them, of which anything was ever started: as the lines that
    tell of them."""
    for replica in documents:
        place = os.path.join(directory, replica)
        entries = journal.Entries(place)
        if not entries.latest:
            continue
        try:
            found = standing(place, entries, entries.latest)
        except OSError:
            # To be looked at again, by somebody who has time to wait.
            found = {"changing": True}
        told = {
            "replica": replica,
            "incarnation": entries.latest,
            # Its shim is of a version that answers to pings.
            "answers": entries.shim[1] > 0,
        }
        told.update(found)
        yield told


def here(slots: str) -> "Message":
    """Which directory it is: two that are there at once are never the same."""
    status = os.stat(slots)
    return {"device": status.st_dev, "inode": status.st_ino}


def was_here(slots: str) -> "Message | None":
    """Which directory it was when a service wrote that down last; None: no service has."""
    return durable.read_document(os.path.join(slots, _PLACE))


def note_here(slots: str) -> None:
    """Write down which directory it is. Raises OSError."""
    durable.write(os.path.join(slots, _PLACE), json.dumps(here(slots)))


def main(slots: str, connection: socket.socket) -> None:
    """Tell of all slots below a directory. Of one that was copied nothing is told: the processes that it
    names are the original's. Raises OSError: nobody listens."""
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
