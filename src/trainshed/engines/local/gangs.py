"""Which gang has which slots: given out, written down, moved to other nodes, given back."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local import machine, places
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.nodes import Nodes
from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.port import EngineEvent, EngineUnavailable, LaunchRejected, Slot, SlotRequest

Gang = Mapping[ReplicaId, SlotHandle]


class Gangs:
    """A slot handle for every slot there is."""

    def __init__(
        self,
        layout: Layout,
        nodes: Nodes,
        identity: str,
        emit: Callable[[EngineEvent], None],
        unclear: Callable[[SlotHandle], None],
    ) -> None:
        self._layout = layout
        self._nodes = nodes
        #: Tells this service from others on the machine.
        self._identity = identity
        #: For the slot handles (`SlotHandle`), as is `unclear`.
        self._emit = emit
        self._unclear = unclear
        self._shares: places.Shares = {}
        self._named = self._own_users = False
        self._gangs: dict[tuple[JobUid, int], dict[ReplicaId, SlotHandle]] = {}

    def begin(self, shares: places.Shares, *, named: bool, own_users: bool) -> None:
        """`shares`: the GPUs of each node. `named`: a replica's hostname can be resolved by its peers.
        `own_users`: each replica gets users of its own."""
        self._shares = shares
        self._named = named
        self._own_users = own_users

    def slot_handles(self) -> Iterator[SlotHandle]:
        return (slot_handle for gang in self._gangs.values() for slot_handle in gang.values())

    def names(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self._gangs)

    def of(self, job_uid: JobUid, attempt: int) -> Gang:
        """The slot handles of an attempt; empty if it has none."""
        return self._gangs.get((job_uid, attempt), {})

    def slot_handle(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> SlotHandle:
        """Raises LaunchRejected: it has none."""
        if slot_handle := self.of(job_uid, attempt).get(replica):
            return slot_handle
        raise LaunchRejected(
            f"{replica} of job {job_uid}, attempt {attempt}, has no slot; allocate first"
        )

    def add(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> Gang:
        """Slot handles for slots that are written down already."""
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

    def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        """As the port says."""
        for request in requests:
            if not machine.is_node(request.node):
                raise LaunchRejected(
                    f"there is no node {request.node!r}; this engine's are called local, or local-0 and so on"
                )
        if gang := self.of(job_uid, attempt):
            self._move(gang, [request for request in requests if request.replica in gang])
        else:
            self._nodes.require(request.node for request in requests)
            taken = (slot_handle.slot for slot_handle in self.slot_handles())
            slots = places.new_slots(
                self._identity,
                job_uid,
                requests,
                taken,
                self._shares,
                named=self._named,
                own_users=self._own_users,
            )
            self._write(job_uid, attempt, slots)
            gang = self.add(job_uid, attempt, slots)
        return tuple(slot_handle.slot for slot_handle in gang.values())

    def _move(self, gang: Gang, requests: Sequence[SlotRequest]) -> None:
        """Give those that are asked for on another node their slots there, without what their programs
        left."""
        moving = {
            gang[request.replica]: request
            for request in requests
            if gang[request.replica].slot.node != request.node
        }
        if not moving:
            return
        self._nodes.require(request.node for request in moving.values())
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
            moved = places.moved(slot_handle.slot, request, stay, self._shares)
            slots[request.replica] = moved
            stay.append(moved)
        job_uid, attempt = next(
            (slot_handle.job_uid, slot_handle.attempt) for slot_handle in moving
        )
        try:
            # First, so that nobody ever finds the new place with the old files.
            for slot_handle in moving:
                self._layout.discard_files(slot_handle.directory)
        except OSError as error:
            raise EngineUnavailable(
                f"the files of job {job_uid} cannot be thrown away ({error}); try again"
            ) from error
        self._write(job_uid, attempt, tuple(slots.values()))
        for slot_handle, request in moving.items():
            slot_handle.slot = slots[request.replica]

    def _write(self, job_uid: JobUid, attempt: int, slots: tuple[Slot, ...]) -> None:
        try:
            self._layout.write(job_uid, attempt, slots)
        except OSError as error:
            raise EngineUnavailable(
                f"the slots of job {job_uid} cannot be written down ({error}); make room and try again"
            ) from error

    def release(self, job_uid: JobUid, attempt: int) -> None:
        """As the port says."""
        gang = self.of(job_uid, attempt)
        if live := [str(replica) for replica, slot_handle in gang.items() if slot_handle.is_live]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {job_uid} still run; stop the attempt and wait for their end"
            )
        self._gangs.pop((job_uid, attempt), None)
        self._layout.discard(job_uid, attempt)
