"""Stores what a remote engine has to know of an attempt after a restart, in one small file each."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trainshed.core.lifecycle.replica_events import Loss
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import Slot, SlotRequest
from trainshed.replica.system import durable
from trainshed_cluster.remote.cluster import THE_SERVICE, HoldName, NodeNeed, Owner


class Seat(msgspec.Struct, frozen=True):
    """The place of one of the attempt's replicas."""

    replica: ReplicaId
    request: SlotRequest
    #: Number of the hold in the attempt that it is in.
    part: int
    #: Its slot as its agent gave it, but with the cluster's name of the node; None = none yet.
    slot: Slot | None = None
    #: The last launched incarnation; 0 = none.
    launched: int = 0
    #: No incarnation up to this one may start any more.
    forbidden: int = 0
    #: The identity of its program (`launch.documents.identity`); "" = none was launched.
    identity: str = ""
    #: The incarnation that was lost with its agent; 0 = none.
    lost: int = 0
    #: Why it was lost.
    cause: str = ""
    #: What kind of loss it was.
    loss: Loss = Loss.UNKNOWN
    #: The port of its last slot, where its peers look for it; 0 = it had none.
    port: int = 0
    #: The node that was requested, if the cluster has chosen another; "" = it has not.
    wish: str = ""
    #: The replica has left this place and has no other yet, so that no agent is needed.
    is_vacant: bool = False


class GangRecord(msgspec.Struct, frozen=True):
    """An attempt that has slots, or waits for them."""

    job_uid: JobUid
    attempt: int
    seats: tuple[Seat, ...]
    #: The needs of each hold, by its part.
    parts: dict[int, tuple[NodeNeed, ...]]
    #: What tells the last agent in each `place` from earlier ones.
    agents: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: Names of adopted holds, by part; the other holds are named after the attempt.
    holds: dict[int, HoldName] = msgspec.field(default_factory=dict[int, HoldName])
    #: Grace period in ns with which it was stopped; None = it was not stopped.
    stopped: int | None = None

    @property
    def owner(self) -> Owner:
        """The owner of its holds."""
        return next((need.owner for some in self.parts.values() for need in some), THE_SERVICE)

    def seat(self, replica: ReplicaId) -> Seat | None:
        return next((seat for seat in self.seats if seat.replica == replica), None)

    def with_seat(self, seat: Seat) -> "GangRecord":
        """Return the record with this seat in place of the replica's former one."""
        seats = tuple(seat if other.replica == seat.replica else other for other in self.seats)
        return msgspec.structs.replace(self, seats=seats)


def place(part: int, node: str) -> str:
    """Return the key of an agent's place: one node of one hold."""
    return f"{part}/{node}"


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
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{path} cannot be read ({error}); move it away to go on without the job's replicas"
                ) from error

    def write(self, record: GangRecord) -> None:
        """Write a record durably. Raises OSError."""
        durable.write(
            str(self._path(record.job_uid, record.attempt)), msgspec.json.encode(record).decode()
        )

    def delete(self, job_uid: JobUid, attempt: int) -> None:
        """Delete an attempt's record, if there is one."""
        self._path(job_uid, attempt).unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _path(self, job_uid: JobUid, attempt: int) -> Path:
        return self._directory / f"{job_uid}-{attempt}.json"
