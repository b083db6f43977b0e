"""The slots of the simulated world: which replicas of which attempts were given one, and where."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import Slot, SlotRequest
from trainshed.engines.sim.seats import Seat

Gang = tuple[JobUid, int]
"""A job's attempt."""


class Gangs:
    """All that were given out and not given back."""

    def __init__(self) -> None:
        self._seats: dict[Gang, dict[ReplicaId, Seat]] = {}

    def names(self) -> tuple[Gang, ...]:
        return tuple(self._seats)

    def of(self, job_uid: JobUid, attempt: int) -> Mapping[ReplicaId, Seat]:
        return self._seats.get((job_uid, attempt), {})

    def seats(self) -> Iterator[Seat]:
        for gang in self._seats.values():
            yield from gang.values()

    def of_replica(self, job_uid: JobUid, replica: ReplicaId) -> Iterator[Seat]:
        """Its slots in all attempts of the job."""
        for (uid, _), gang in self._seats.items():
            if uid == job_uid and replica in gang:
                yield gang[replica]

    def take(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """Give out slots; a replica that has one keeps it, and may move with it."""
        gang = self._seats.setdefault((job_uid, attempt), {})
        for request in requests:
            seat = gang.get(request.replica)
            if seat is None:
                slot = _slot(job_uid, len(gang), request)
                gang[request.replica] = Seat(job_uid, attempt, slot, request.accelerators)
            elif seat.slot.node != request.node:
                seat.slot = replace(seat.slot, node=request.node)
        return tuple(gang[request.replica].slot for request in requests)

    def release(self, job_uid: JobUid, attempt: int) -> None:
        self._seats.pop((job_uid, attempt), None)


def _slot(job_uid: JobUid, number: int, request: SlotRequest) -> Slot:
    """`number`: of those that the gang has already."""
    devices = None
    if request.accelerator or request.accelerators:
        devices = ",".join(map(str, range(request.accelerators)))
    return Slot(
        request.replica,
        request.node,
        request.hostname,
        request.hostname,
        f"127.{64 + job_uid % 64}.{number // 250}.{number % 250 + 1}",
        2222,
        devices,
    )
