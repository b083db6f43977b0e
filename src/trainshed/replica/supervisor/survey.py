"""How replicas stand, by what the files of their slots say, whoever wrote them and whatever was killed since.

A service that starts has the zygote do so for all slots at once (`main`), in a process of its own: shims that
are called wake up beside it, while the service still loads itself. What it finds goes over a stream socket as
JSON lines, each of the file handles of connections to shims beside the lines that tell of them, in their
order:

    {"job": UID, "attempt": NUMBER, "slots": {REPLICA: {..}}}    as the list of the attempt's slots has them
    {"replica": REPLICA, "incarnation": N, "answers": true, ..}  of the attempt before; with a `Standing`
    {"end": true}                                                this was all; without it something went wrong

Blocks. Runs on Python 3.6.
"""

import errno
import os
import time

from trainshed.replica import protocol
from trainshed.replica.supervisor import clients, journal
from trainshed.replica.system import durable, unix_sockets
from trainshed.replica.system import lean_json as json
from trainshed.replica.system import lean_socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from trainshed.replica.protocol import Message

    Standing = Message
    """How an incarnation stands, one of

    {"over": RECORD, "notes": [..]}  it ended; its attempt record (exited or lost), all that its shim noted
    {"alive": true}                  a shim serves it and took the connection
    {"changing": true}               a shim holds the slot but does not listen: it begins, ends or dies
    {"never": true}                  nothing of it ever ran, and nobody is about to run it
    """

SLOTS = "slots.json"
"""In the directory of an attempt: its slots, by replica."""
_PLACE = ".place"
"""In the directory of all slots: which directory that was when it was written."""
_OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Why a connection cannot be had that says nothing about the shim."""
_AT_ONCE = 16
"""Handles that are sent with one message; as many as a receiver has room for."""
_LONGEST = 1 << 15
"""Bytes from which on lines are sent."""
_PATIENCE = 2.0
_PAUSE = 0.005
"""Seconds for which the kernel may say that too many handles are under way, and between two tries."""


def standing(
    slot: str, entries: journal.Entries, incarnation: int
) -> "tuple[Standing, socket.socket | None]":
    """How an incarnation stands, and the connection to its shim if it is alive. `entries`: as they were read
    just now. If its shim was killed, what is left of it is cleared away and the loss recorded, so that the
    answer stays the same for ever. Raises OSError: this cannot be found out now."""
    record = entries.record(incarnation)
    if record is not None:
        return _over(entries, record, incarnation), None
    lock = journal.try_lock(slot)
    if lock < 0:
        try:
            return {"alive": True}, clients.connect(slot)
        except OSError as error:
            if error.errno in _OURS:
                raise
            return {"changing": True}, None
    try:
        # Its holder may have written the record between the two looks.
        entries = journal.Entries(slot)
        record = entries.record(incarnation)
        if record is not None:
            return _over(entries, record, incarnation), None
        if entries.latest < incarnation:
            return {"never": True}, None
        if not journal.clear(entries):
            return {"changing": True}, None
        record = journal.lost_record(protocol.SHIM_LOST)
        journal.Claim(incarnation, lock).finish(record)
        return _over(entries, record, incarnation), None
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


def looked_into(
    directory: str, documents: "dict[str, Any]"
) -> "Iterator[tuple[Message, socket.socket | None]]":
    """The slots of one attempt, by the list of them, of which anything was ever started: as the lines that
    tell of them, with the connection to the shim of those that are alive."""
    for replica in documents:
        place = os.path.join(directory, replica)
        entries = journal.Entries(place)
        if not entries.latest:
            continue
        try:
            found, connection = standing(place, entries, entries.latest)
        except OSError:
            # To be looked at again, by somebody who has time to wait.
            found, connection = {"changing": True}, None
        told = {
            "replica": replica,
            "incarnation": entries.latest,
            # Its shim is of a version that answers to pings.
            "answers": entries.shim[1] > 0,
        }
        told.update(found)
        yield told, connection


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
    """Tell of all slots below a directory. Of one that was copied nothing is told, and nobody called: the
    processes that it names are the original's. Raises OSError: nobody listens."""
    if was_here(slots) != here(slots):
        return
    teller = _Teller(connection)
    for job, attempt in attempts(slots):
        directory = os.path.join(slots, str(job), str(attempt))
        documents = durable.read_document(os.path.join(directory, SLOTS)) or {}
        teller.tell({"job": job, "attempt": attempt, "slots": documents})
        for found, called in looked_into(directory, documents):
            teller.tell(found, called)
    teller.tell({"end": True})
    teller.flush()


class _Teller:
    """Gathers lines and handles, and sends them."""

    __slots__ = ("_called", "_connection", "_text")

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._text = b""
        self._called: "list[socket.socket]" = []

    def tell(self, message: "Message", called: "socket.socket | None" = None) -> None:
        self._text += protocol.encode(message)
        if called is not None:
            self._called.append(called)
        if len(self._called) == _AT_ONCE or len(self._text) >= _LONGEST:
            self.flush()

    def flush(self) -> None:
        handles = [each.fileno() for each in self._called]
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                unix_sockets.send_with(self._connection, self._text, handles)
                break
            except OSError as error:
                # Nothing of it was sent. They are counted for each user, until they are received.
                if error.errno != errno.ETOOMANYREFS or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)
        for each in self._called:
            each.close()
        self._text, self._called = b"", []
