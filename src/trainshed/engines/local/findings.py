"""Finds out from a slot's files how an incarnation stands (`replica.supervisor.survey`). Blocks.

Slots that were copied with their data directory are disowned: the processes that they name are the
original's, which may live on. An original is known by the device and inode of its directory of slots; two
directories that are there at once never share them.
"""

import asyncio
import errno
import logging
import os
import socket
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import spawner
from trainshed.engines.local.layout import Layout, slots_of
from trainshed.engines.local.spawner import ZygoteHandle
from trainshed.engines.port import Slot
from trainshed.replica import protocol
from trainshed.replica.supervisor import clients, journal, survey

log = logging.getLogger(__name__)

_SILENCE = 60.0
"""Seconds for which a survey may say nothing; to clear up after a killed shim takes two at most."""
_CHUNK = 1 << 16
_LINES = msgspec.json.Decoder()

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
    """A shim holds the slot but does not listen: it is beginning, ending or dying, so that the caller should
    probe again soon."""


class NeverStarted(Struct, frozen=True):
    """Nothing of the incarnation ever ran, and no shim is about to start it."""


Finding = Over | Alive | Held | Changing | NeverStarted


def probe_slot(slot: Path, incarnation: int) -> Over | Alive | Changing | NeverStarted:
    """Find out how an incarnation stands, and connect to the shim of one that is held. If its shim was
    killed, the remaining processes are killed and the loss recorded, so that the answer stays the same for
    ever. Raises OSError if this cannot be found out now."""
    told = survey.standing(str(slot), journal.Entries(str(slot)), incarnation)
    finding = _finding(told)
    if not isinstance(finding, Held):
        return finding
    try:
        return Alive(clients.connect(str(slot)))
    except OSError as error:
        if error.errno in _OURS:
            raise
        return Changing()


def _finding(told: protocol.Message) -> Over | Held | Changing | NeverStarted:
    """Convert what `survey` tells of an incarnation."""
    if (record := told.get("over")) is not None:
        return Over(record, tuple(told["notes"]))
    if "alive" in told:
        return Held()
    return Changing() if "changing" in told else NeverStarted()


class FoundReplica(Struct, frozen=True):
    """A replica's latest incarnation that was started, and how it stands."""

    incarnation: int
    finding: Finding


class FoundGang(Struct, frozen=True):
    """The slots of an attempt. `replicas`: those of which an incarnation was ever started."""

    job_uid: JobUid
    attempt: int
    slots: tuple[Slot, ...]
    replicas: dict[ReplicaId, FoundReplica]


def probe_all(layout: Layout) -> list[FoundGang]:
    """Probe every slot. Blocks."""
    gangs: list[FoundGang] = []
    for job_uid, attempt in layout.attempts():
        directory = str(layout.attempt(job_uid, attempt))
        documents = layout.documents(job_uid, attempt)
        gangs.append(_gang(job_uid, attempt, documents, survey.looked_into(directory, documents)))
    return gangs


def _gang(
    job_uid: JobUid,
    attempt: int,
    documents: dict[str, Any],
    replicas: Iterable[protocol.Message],
) -> FoundGang:
    """Convert what `survey` tells of an attempt."""
    found = {
        ReplicaId.parse(told["replica"]): FoundReplica(told["incarnation"], _finding(told))
        for told in replicas
    }
    return FoundGang(job_uid, attempt, slots_of(documents), found)


class SurveyFailed(Exception):
    """The survey did not describe all slots."""


class Survey:
    """A survey of all slots of an engine, made by the zygote while the service loads its modules. `limits`:
    of file handles, as they were before this process raised its own."""

    def __init__(self, zygote: ZygoteHandle, slots: Path) -> None:
        """Begin the survey, before any slot is used. Raises OSError."""
        self.limits = spawner.raise_file_limits()
        self._connection, theirs = socket.socketpair()
        self._connection.settimeout(_SILENCE)
        with theirs:
            zygote.request_at_once({"survey": str(slots)}, theirs.fileno())
        self._gangs: Future[list[FoundGang]] = Future()
        threading.Thread(target=self._receive, name="survey", daemon=True).start()

    async def gangs(self) -> list[FoundGang]:
        """Return what was found; called once. Raises SurveyFailed."""
        return await asyncio.wrap_future(self._gangs)

    def _receive(self) -> None:
        try:
            self._gangs.set_result(_received(self._connection))
        except Exception as failure:  # Whatever failed, the engine then probes the slots itself.
            self._gangs.set_exception(SurveyFailed(str(failure)))


def _received(connection: socket.socket) -> list[FoundGang]:
    """Read the survey's answer. Raises SurveyFailed, OSError."""
    text = bytearray()
    with connection:
        while data := connection.recv(_CHUNK):
            text += data
    lines: list[protocol.Message] = _LINES.decode_lines(text)
    if not lines or "end" not in lines.pop():
        raise SurveyFailed(f"it broke off after {len(lines)} lines")
    attempts: list[tuple[protocol.Message, list[protocol.Message]]] = []
    for line in lines:
        if "slots" in line:
            attempts.append((line, []))
        else:
            attempts[-1][1].append(line)
    return [
        _gang(JobUid(head["job"]), head["attempt"], head["slots"], replicas)
        for head, replicas in attempts
    ]


def disown_copies(layout: Layout) -> None:
    """Disown the processes that a copied directory of slots names: every incarnation without an end is
    recorded as lost, and no process is touched. Does nothing if it was not copied. The next call finishes
    what a crash interrupts. Raises OSError."""
    slots = str(layout.slots)
    before = survey.was_here(slots)
    if before == survey.here(slots):
        return
    if before is not None:
        log.warning(
            "%s was copied or moved to another file system: what ran in it counts as lost",
            layout.slots,
        )
        for job_uid, attempt in layout.attempts():
            for slot in layout.read(job_uid, attempt):
                _disown(layout.attempt(job_uid, attempt) / str(slot.replica))
    survey.note_here(slots)


def _disown(slot: Path) -> None:
    if not slot.is_dir():
        return
    lock = journal.try_lock(str(slot))
    if lock < 0:
        return  # The slot's lock is held by a shim that serves this very slot.
    try:
        entries = journal.Entries(str(slot))
        if entries.left is not None:
            journal.append(lock, {"guardian": 0, "since": 0, "groups": []})
        if entries.latest and entries.record(entries.latest) is None:
            journal.append(lock, {"over": entries.latest, "record": journal.lost_record(_COPIED)})
        os.fsync(lock)
    finally:
        journal.release(lock)
