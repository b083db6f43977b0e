"""Stores all attempts whose replicas have positions on a cluster (slots) or wait for them, in memory and on
disk. Reports events of the replicas. Every change of an attempt is stored before it takes effect."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from trainshed.core.capacity import Delay
from trainshed.core.lifecycle.replica_events import ReplicaEvent, ReplicaLost
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    EngineEvent,
    EngineUnavailable,
    LaunchRejected,
    NodesChosen,
    ReplicaReport,
    StartWaits,
)
from trainshed.eventloop.background import joined
from trainshed.replica.protocol import NEVER_STARTED
from trainshed.replica.system import durable
from trainshed_cluster.remote.gang import Gang, GangRecord
from trainshed_cluster.remote.replica_slot import ReplicaSlot


class Attempts:
    """The attempts of a remote engine. `directory`: contains the records of the attempts."""

    def __init__(self, directory: Path) -> None:
        self.gangs: dict[tuple[JobUid, int], Gang] = {}
        self.is_closed = False
        self._records = Records(directory)
        self._locks: dict[tuple[JobUid, int], asyncio.Lock] = {}
        #: The pending write of each attempt's record.
        self._writing: dict[tuple[JobUid, int], asyncio.Task[None]] = {}
        self._events: deque[EngineEvent] = deque()
        self._wake = asyncio.Event()

    async def load(self) -> None:
        """Read the records that an earlier service process stored. Raises OSError if a file cannot be read,
        and ValueError if a record is invalid."""
        for record in await asyncio.to_thread(lambda: list(self._records.load())):
            gang = self.gangs[record.job_uid, record.attempt] = Gang(record)
            self.report_nodes(gang)
            for replica_slot in record.replica_slots:
                if replica_slot.lost and replica_slot.lost == replica_slot.launched:
                    self.report_lost(gang, replica_slot)

    async def close(self) -> None:
        """Wait until all pending writes have finished."""
        self.is_closed = True
        await asyncio.gather(*self._writing.values(), return_exceptions=True)
        self._wake.set()

    def lock(self, key: tuple[JobUid, int]) -> asyncio.Lock:
        """Return the lock that is held while an attempt's record is read and changed."""
        return self._locks.setdefault(key, asyncio.Lock())

    def replica_slot(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> tuple[Gang, ReplicaSlot]:
        """Return the gang of a replica, and the replica's slot (its position on the cluster). Raises
        LaunchRejected if the replica has no slot."""
        gang = self.gangs.get((job_uid, attempt))
        replica_slot = gang.record.replica_slot(replica) if gang else None
        if gang is None or replica_slot is None:
            raise LaunchRejected(
                f"{replica} of job {job_uid}, attempt {attempt}, cannot start, because no slot is allocated "
                "for it"
            )
        return gang, replica_slot

    async def write(self, gang: Gang, record: GangRecord) -> None:
        """Store a record of a gang, and make it the gang's current record. Raises EngineUnavailable if it
        cannot be stored."""
        # If the caller is cancelled, the write continues. The next write of this record then waits until the
        # current write has finished.
        writing = joined(self._write_after(self._writing.get(gang.key), record))
        self._writing[gang.key] = writing
        writing.add_done_callback(lambda done: self._forget_write(gang.key, done))
        try:
            await asyncio.shield(writing)
        except OSError as error:
            raise EngineUnavailable(
                f"cannot store the slots of job {record.job_uid} ({error}); free disk space and retry"
            ) from error
        gang.record = record

    async def _write_after(self, earlier: asyncio.Task[None] | None, record: GangRecord) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await asyncio.to_thread(self._records.write, record)

    def _forget_write(self, key: tuple[JobUid, int], writing: asyncio.Task[None]) -> None:
        if self._writing.get(key) is writing:
            del self._writing[key]

    async def delete(self, gang: Gang) -> None:
        """Delete the record of an attempt. Its allocations then belong to no attempt. Raises
        EngineUnavailable if the record cannot be deleted."""
        if writing := self._writing.get(gang.key):
            await asyncio.wait([writing])
        try:
            await asyncio.to_thread(self._records.delete, *gang.key)
        except OSError as error:
            raise EngineUnavailable(
                f"cannot delete the record of job {gang.record.job_uid}: {error}"
            ) from error

    def forget(self, gang: Gang) -> None:
        """Remove an attempt, and the lock of its record, from memory."""
        self.gangs.pop(gang.key, None)
        self._locks.pop(gang.key, None)

    # --- events ---

    def report_lost(self, gang: Gang, replica_slot: ReplicaSlot) -> None:
        """Report that the current run (incarnation) of a replica is lost: it ended together with its agent,
        or never started."""
        self.report(
            gang,
            ReplicaLost(
                attempt=gang.record.attempt,
                replica=replica_slot.replica,
                incarnation=replica_slot.lost,
                cause=replica_slot.cause or NEVER_STARTED,
                loss=replica_slot.loss,
            ),
        )

    def report_end(self, gang: Gang, replica_slot: ReplicaSlot, incarnation: int | None = None) -> None:
        """Report the end of a replica's run again. Used for runs whose end no agent can report.
        `incarnation`: number of the run; None = the last one."""
        incarnation = replica_slot.launched if incarnation is None else incarnation
        end = gang.ends.get(replica_slot.replica)
        if end is not None and end.incarnation == incarnation:
            self.report(gang, end)
        elif incarnation:
            cause = f"superseded by incarnation {replica_slot.launched}"
            if incarnation == replica_slot.launched:
                cause = "it has ended for an unknown reason"
            self.report(
                gang,
                ReplicaLost(
                    attempt=gang.record.attempt,
                    replica=replica_slot.replica,
                    incarnation=incarnation,
                    cause=cause,
                ),
            )

    def report(self, gang: Gang, event: ReplicaEvent) -> None:
        """Emit an event about a replica of a gang."""
        self.emit(ReplicaReport(gang.record.job_uid, event))

    def report_delay(self, gang: Gang, delay: Delay | None) -> None:
        """Emit the reason why the start of a gang waits, if the reason has changed. `delay`: None = the start
        does not wait."""
        if delay != gang.delay:
            gang.delay = delay
            self.emit(StartWaits(*gang.key, delay))

    def report_nodes(self, gang: Gang, *, is_given: bool = False) -> None:
        """Emit the nodes that the cluster has chosen for replicas that have not ended. `is_given`: whether
        the cluster has just chosen the nodes of all pending replicas."""
        nodes = tuple(
            (replica_slot.replica, replica_slot.request.node)
            for replica_slot in gang.record.replica_slots
            if replica_slot.wish and (is_given or not replica_slot.launched or gang.is_live(replica_slot))
        )
        if nodes:
            self.emit(NodesChosen(*gang.key, nodes))

    def emit(self, event: EngineEvent) -> None:
        """Add an event to the queue that `watch` returns."""
        self._events.append(event)
        self._wake.set()

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while not self.is_closed:
            while self._events:
                yield self._events.popleft()
            self._wake.clear()
            await self._wake.wait()


class Records:
    """The files with the records of attempts, in one directory, which is created if it does not exist. All
    methods block briefly."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> Iterator[GangRecord]:
        """Yield all records. Raises OSError if a file is unreadable, ValueError if a record is invalid."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=GangRecord)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"cannot read {path} ({error}); move it away to continue without the job's replicas"
                ) from error

    def write(self, record: GangRecord) -> None:
        """Write a record and sync it to disk. Raises OSError."""
        durable.write(str(self._path(record.job_uid, record.attempt)), msgspec.json.encode(record).decode())

    def delete(self, job_uid: JobUid, attempt: int) -> None:
        self._path(job_uid, attempt).unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _path(self, job_uid: JobUid, attempt: int) -> Path:
        return self._directory / f"{job_uid}-{attempt}.json"
