"""What a remote engine writes down of an attempt, so that a restart finds it: one small file each."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trainshed.core.lifecycle.replica_events import Loss
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import Slot, SlotRequest
from trainshed.engines.remote.cluster import THE_SERVICE, HoldName, NodeNeed, Owner
from trainshed.replica.system import durable


class Seat(msgspec.Struct, frozen=True):
    """Where a replica of the attempt is."""

    replica: ReplicaId
    request: SlotRequest
    #: Which of the attempt's holds it is in.
    part: int
    #: As its agent gave it, but for the node, which is called as the cluster calls it; None = none yet.
    slot: Slot | None = None
    #: The service chose the slot itself (`first_start`), and no agent has said yet that it is so.
    is_chosen: bool = False
    #: The incarnation that was launched last; 0 = none was.
    launched: int = 0
    #: No incarnation up to this one may start any more.
    forbidden: int = 0
    #: How its program is introduced to the service (`launch.documents.identity`); "" = none was launched.
    identity: str = ""
    #: Its agent is gone, and with it this incarnation.
    lost: int = 0
    #: Why.
    cause: str = ""
    #: Who took it.
    loss: Loss = Loss.UNKNOWN
    #: The port of the slot that it had last, where the others look for it; 0 = it had none.
    port: int = 0
    #: The node that was asked for, of one whose node the cluster has chosen; "" = it has not.
    wish: str = ""
    #: The replica has left it, and has no other place yet: no agent has to be there.
    is_vacant: bool = False


class GangRecord(msgspec.Struct, frozen=True):
    """An attempt that has slots, or waits for them."""

    job_uid: JobUid
    attempt: int
    seats: tuple[Seat, ...]
    #: What each hold is for, by its part.
    parts: dict[int, tuple[NodeNeed, ...]]
    #: What tells the agent that was started last on each node of each hold from those before it, by `place`.
    agents: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: Holds that were kept of attempts before it, by part; the others are called by the attempt.
    holds: dict[int, HoldName] = msgspec.field(default_factory=dict[int, HoldName])
    #: ns that its programs had when it was stopped; None = it was not.
    stopped: int | None = None
    #: HOST:PORT of the reducers that it has lost.
    dropped: tuple[str, ...] = ()
    #: All of it is over, and it is being given back.
    released: bool = False

    @property
    def owner(self) -> Owner:
        """In whose name all of it is held."""
        return next((need.owner for some in self.parts.values() for need in some), THE_SERVICE)

    def seat(self, replica: ReplicaId) -> Seat | None:
        return next((seat for seat in self.seats if seat.replica == replica), None)

    def with_seat(self, seat: Seat) -> "GangRecord":
        """In the place of the one that the replica has."""
        seats = tuple(seat if one.replica == seat.replica else one for one in self.seats)
        return msgspec.structs.replace(self, seats=seats)


def place(part: int, node: str) -> str:
    """Where an agent is: one node of one hold."""
    return f"{part}/{node}"


class Records:
    """`directory`: made if it is not there. All methods block for a small file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> Iterator[GangRecord]:
        """Every one there is. Raises OSError, ValueError: one cannot be read."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield msgspec.json.decode(path.read_bytes(), type=GangRecord)
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{path} cannot be read ({error}); move it away to go on without the job's replicas"
                ) from error

    def write(self, record: GangRecord) -> None:
        """Durably. Raises OSError."""
        durable.write(
            str(self._path(record.job_uid, record.attempt)), msgspec.json.encode(record).decode()
        )

    def delete(self, job_uid: JobUid, attempt: int) -> None:
        """Nothing if there is none."""
        self._path(job_uid, attempt).unlink(missing_ok=True)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _path(self, job_uid: JobUid, attempt: int) -> Path:
        return self._directory / f"{job_uid}-{attempt}.json"
