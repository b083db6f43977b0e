"""Keeps all attempts that have slots on a cluster, or wait for them, in memory and on disk, and reports their
events. A change is written down before anything follows from it."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec

from trainshed.core.capacity import Delay
from trainshed.core.failure.evidence import Cause
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
from trainshed_cluster.remote.gang import Gang, GangRecord, Seat


class Attempts:
    """The attempts of a remote engine. `directory`: of their records."""

    def __init__(self, directory: Path) -> None:
        self.gangs: dict[tuple[JobUid, int], Gang] = {}
        self.is_closed = False
        self._records = Records(directory)
        self._locks: dict[tuple[JobUid, int], asyncio.Lock] = {}
        #: The last write of each attempt's record, while it lasts.
        self._writing: dict[tuple[JobUid, int], asyncio.Task[None]] = {}
        self._events: deque[EngineEvent] = deque()
        self._wake = asyncio.Event()

    async def load(self) -> None:
        """Read what an earlier service wrote down. Raises OSError, ValueError."""
        for record in await asyncio.to_thread(lambda: list(self._records.load())):
            gang = self.gangs[record.job_uid, record.attempt] = Gang(record)
            self.report_nodes(gang)
            for seat in record.seats:
                if seat.lost and seat.lost == seat.launched:
                    self.report_lost(gang, seat)

    async def close(self) -> None:
        """Wait for writes under way."""
        self.is_closed = True
        await asyncio.gather(*self._writing.values(), return_exceptions=True)
        self._wake.set()

    def lock(self, key: tuple[JobUid, int]) -> asyncio.Lock:
        """Return the lock that is held while an attempt's record is read and changed."""
        return self._locks.setdefault(key, asyncio.Lock())

    def seat(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> tuple[Gang, Seat]:
        """Return a replica's gang and seat. Raises LaunchRejected if it has none."""
        gang = self.gangs.get((job_uid, attempt))
        seat = gang.record.seat(replica) if gang else None
        if gang is None or seat is None:
            raise LaunchRejected(
                f"{replica} of job {job_uid}, attempt {attempt}, has no slot; allocate first"
            )
        return gang, seat

    async def write(self, gang: Gang, record: GangRecord) -> None:
        """Write a gang's record, and make it current once it is on disk. Raises EngineUnavailable."""
        # A cancelled caller does not cancel the write, and the next one has to come after it.
        writing = joined(self._write_after(self._writing.get(gang.key), record))
        self._writing[gang.key] = writing
        writing.add_done_callback(lambda done: self._written(gang.key, done))
        try:
            await asyncio.shield(writing)
        except OSError as error:
            raise EngineUnavailable(
                f"the slots of job {record.job_uid} cannot be written down ({error}); make room and try again"
            ) from error
        gang.record = record

    async def _write_after(self, earlier: asyncio.Task[None] | None, record: GangRecord) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await asyncio.to_thread(self._records.write, record)

    def _written(self, key: tuple[JobUid, int], writing: asyncio.Task[None]) -> None:
        if self._writing.get(key) is writing:
            del self._writing[key]

    async def delete(self, gang: Gang) -> None:
        """Forget an attempt on disk: what it holds belongs to nobody from now on. Raises
        EngineUnavailable."""
        if writing := self._writing.get(gang.key):
            await asyncio.wait([writing])
        try:
            await asyncio.to_thread(self._records.delete, *gang.key)
        except OSError as error:
            raise EngineUnavailable(
                f"the record of job {gang.record.job_uid} cannot be removed: {error}"
            ) from error

    def forget(self, gang: Gang) -> None:
        """Forget an attempt altogether, with its lock, which nothing waits for any more."""
        self.gangs.pop(gang.key, None)
        self._locks.pop(gang.key, None)

    # --- what is reported ---

    def report_lost(self, gang: Gang, seat: Seat) -> None:
        """Report the incarnation as lost that went with its agent, or never began."""
        self.report(
            gang,
            ReplicaLost(
                attempt=gang.record.attempt,
                replica=seat.replica,
                incarnation=seat.lost,
                cause=seat.cause or NEVER_STARTED,
                loss=seat.loss,
            ),
        )

    def report_end(self, gang: Gang, seat: Seat, incarnation: int | None = None) -> None:
        """Report again how an incarnation ended, which no agent can tell any more; None = the last one."""
        incarnation = seat.launched if incarnation is None else incarnation
        end = gang.ends.get(seat.replica)
        if end is not None and end.incarnation == incarnation:
            self.report(gang, end)
        elif incarnation:
            cause = f"superseded by incarnation {seat.launched}"
            if incarnation == seat.launched:
                cause = "it has ended, and how is not known any more"
            self.report(
                gang,
                ReplicaLost(
                    attempt=gang.record.attempt,
                    replica=seat.replica,
                    incarnation=incarnation,
                    cause=cause,
                ),
            )

    def report(self, gang: Gang, event: ReplicaEvent) -> None:
        """Emit what was seen of a gang's replica."""
        self.emit(ReplicaReport(gang.record.job_uid, event))

    def report_delay(self, gang: Gang, delay: Delay | None) -> None:
        """Emit what the gang's start waits for now, unless that is known already; None = nothing."""
        if delay != gang.delay:
            gang.delay = delay
            self.emit(StartWaits(*gang.key, delay))

    def report_nodes(self, gang: Gang, *, is_given: bool = False) -> None:
        """Emit the nodes of replicas that have not ended, if the cluster has chosen them. `is_given`: it has
        just done so, for all that are to be started."""
        nodes = tuple(
            (seat.replica, seat.request.node)
            for seat in gang.record.seats
            if seat.wish and (is_given or not seat.launched or gang.is_live(seat))
        )
        if nodes:
            self.emit(NodesChosen(*gang.key, nodes))

    def emit(self, event: EngineEvent) -> None:
        """Have `watch` return it."""
        self._events.append(event)
        self._wake.set()

    async def watch(self) -> AsyncIterator[EngineEvent]:
        while not self.is_closed:
            while self._events:
                yield self._events.popleft()
            self._wake.clear()
            await self._wake.wait()


class Records:
    """The files of a directory, which is made if needed. All methods block for a small file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> Iterator[GangRecord]:
        """Yield all records. Raises OSError, ValueError if one cannot be read."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=GangRecord)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{path} cannot be read ({error}); move it away to go on without the job's replicas"
                ) from error

    def write(self, record: GangRecord) -> None:
        """Write a record durably. Raises OSError."""
        durable.write(
            str(self._path(record.job_uid, record.attempt)), msgspec.json.encode(record).decode()
        )

    def delete(self, job_uid: JobUid, attempt: int) -> None:
        self._path(job_uid, attempt).unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _path(self, job_uid: JobUid, attempt: int) -> Path:
        return self._directory / f"{job_uid}-{attempt}.json"


def never_started(seat: Seat, incarnation: int = 1) -> Seat:
    """Return the seat of a replica that was stopped before it started."""
    return msgspec.structs.replace(
        seat, launched=incarnation, lost=incarnation, cause=NEVER_STARTED, loss=Cause.LOST
    )
