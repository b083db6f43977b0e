"""Gives gangs their slots: it records them, moves them to other nodes and takes them back."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import machine, places
from trainshed.engines.local.host_probe import HostProbe
from trainshed.engines.local.layout import Layout, written_down
from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.port import EngineEvent, EngineUnavailable, LaunchRejected, Slot, SlotRequest
from trainshed.eventloop.background import in_turns
from trainshed.replica import protocol

Gang = Mapping[ReplicaId, SlotHandle]

_MADE_IN_A_TURN: Final = 8
"""Slots whose directories are made before others have their turn on the loop: where many were deleted a short
while ago, ext4 takes a third of a millisecond for one."""


class Gangs:
    """The slot handles of all slots of an engine."""

    def __init__(
        self,
        layout: Layout,
        host_probe: HostProbe,
        identity: str,
        emit: Callable[[EngineEvent], None],
        unclear: Callable[[SlotHandle], None],
        *,
        address: str | None = None,
    ) -> None:
        """`address`: the machine's, if other machines are to reach replicas; None = each replica has its own
        loopback address."""
        self._layout = layout
        self._probe = host_probe
        self._address = address
        #: Tells this service from others on the machine.
        self._identity = identity
        #: Passed to each `SlotHandle`, as is `unclear`.
        self._emit = emit
        self._unclear = unclear
        self._gangs: dict[tuple[JobUid, int], dict[ReplicaId, SlotHandle]] = {}
        #: Held until the slots that were given out are written down, so that the next gang gets others.
        self._giving = asyncio.Lock()

    def slot_handles(self) -> Iterator[SlotHandle]:
        return (slot_handle for gang in self._gangs.values() for slot_handle in gang.values())

    def names(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self._gangs)

    def of(self, job_uid: JobUid, attempt: int) -> Gang:
        """Return the slot handles of an attempt; empty if it has none."""
        return self._gangs.get((job_uid, attempt), {})

    def slot_handle(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> SlotHandle:
        """Return the slot handle of a replica. Raises LaunchRejected if it has no slot."""
        if slot_handle := self.of(job_uid, attempt).get(replica):
            return slot_handle
        raise LaunchRejected(
            f"{replica} of job {job_uid}, attempt {attempt}, has no slot; allocate first"
        )

    def add(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> Gang:
        """Make slot handles for slots that are written down already."""
        directory = self._layout.attempt(job_uid, attempt)
        gang = self._gangs[job_uid, attempt] = {
            slot.replica: SlotHandle(
                job_uid=job_uid,
                attempt=attempt,
                slot=slot,
                directory=directory / str(slot.replica),
                emit=self._emit,
                unclear=self._unclear,
            )
            for slot in slots
        }
        return gang

    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """See the port. Other tasks get their turn on the loop while a large gang is written down."""
        for request in requests:
            if not machine.is_node(request.node):
                raise LaunchRejected(
                    f"there is no node {request.node!r}; this engine's are called local, or local-0 and so on"
                )
        async with self._giving:
            if gang := self.of(job_uid, attempt):
                self._move(gang, [request for request in requests if request.replica in gang])
            else:
                gang = await self._make(job_uid, attempt, requests)
        return tuple(slot_handle.slot for slot_handle in gang.values())

    async def _make(self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]) -> Gang:
        taken = (slot_handle.slot for slot_handle in self.slot_handles())
        slots = places.new_slots(
            self._identity,
            job_uid,
            requests,
            taken,
            self._probe.shares,
            resolves=self._probe.is_named,
            own_users=self._probe.host.level == protocol.LEVEL_OWN,
            shared=self._address,
            is_free=partial(_is_free, self._address) if self._address else None,
        )
        with written_down(f"the slots of job {job_uid}"):
            async for some in in_turns(slots, _MADE_IN_A_TURN):
                self._layout.make_slots(job_uid, attempt, some)
            self._layout.write(job_uid, attempt, slots)
        return self.add(job_uid, attempt, slots)

    def _move(self, gang: Gang, requests: Sequence[SlotRequest]) -> None:
        """Move the replicas that are requested on another node there, without their programs' files."""
        moving = {
            gang[request.replica]: request
            for request in requests
            if gang[request.replica].slot.node != request.node
        }
        if not moving:
            return
        if live := [
            str(request.replica) for slot_handle, request in moving.items() if slot_handle.is_live
        ]:
            raise EngineUnavailable(
                f"{', '.join(live)} still run where they are; stop them and wait for their end"
            )
        stay = [
            slot_handle.slot for slot_handle in self.slot_handles() if slot_handle not in moving
        ]
        slots = {replica: slot_handle.slot for replica, slot_handle in gang.items()}
        for slot_handle, request in moving.items():
            moved = places.moved(slot_handle.slot, request, stay, self._probe.shares)
            slots[request.replica] = moved
            stay.append(moved)
        job_uid, attempt = next(
            (slot_handle.job_uid, slot_handle.attempt) for slot_handle in moving
        )
        try:
            # Files are removed first, so that the new slot never has the old files.
            for slot_handle in moving:
                self._layout.discard_files(slot_handle.directory)
        except OSError as error:
            raise EngineUnavailable(
                f"the files of job {job_uid} cannot be thrown away ({error}); try again"
            ) from error
        with written_down(f"the slots of job {job_uid}"):
            self._layout.write(job_uid, attempt, tuple(slots.values()))
        for slot_handle, request in moving.items():
            slot_handle.slot = slots[request.replica]

    def release(self, job_uid: JobUid, attempt: int) -> None:
        """See the port."""
        gang = self.of(job_uid, attempt)
        if live := [str(replica) for replica, slot_handle in gang.items() if slot_handle.is_live]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {job_uid} still run; stop the attempt and wait for their end"
            )
        self._gangs.pop((job_uid, attempt), None)
        self._layout.discard(job_uid, attempt)


def _is_free(address: str, port: int, *, again: bool) -> bool:
    """See `places.PortProbe`. Other agents, and other users of a node, may hold the port."""
    with socket.socket() as probe:
        if again:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
