"""Allocates the slots of gangs. A slot is a replica's directory, address, port, GPUs and users. Chooses,
records, moves and releases slots."""

import asyncio
import hashlib
import socket
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.launch.devices import choose
from trainshed.engines.launch.documents import PROGRAM_PORT
from trainshed.engines.local.layout import Layout, writing
from trainshed.engines.local.machine import HostProbe, Shares, is_node
from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.port import EngineEvent, EngineUnavailable, LaunchRejected, Slot, SlotRequest
from trainshed.eventloop.background import in_turns
from trainshed.replica import protocol
from trainshed.replica.sandbox import users

Gang = Mapping[ReplicaId, SlotHandle]

_BATCH: Final = 8
"""Number of replicas' directories to create before other tasks get a turn on the event loop. After many
deletions, ext4 takes a third of a millisecond for each."""

_FIRST_ADDRESS = 127 << 24 | 64 << 16
_ADDRESSES = 1 << 22
"""Number of addresses in 127.64.0.0/10, loopback addresses that no other software uses."""

_FIRST_SHARED_PORT, _SHARED_PORTS = 20000, 12000
"""First port and number of ports for replicas that share the machine's address. The kernel's range of
ephemeral ports starts above these ports."""

_FIRST_USER = 0x70000000
_USER_RANGES = 4000
"""Number of ranges of `users.COUNT` user IDs each. No distribution assigns these IDs."""


class Gangs:
    """Contains the handles of all slots of an engine, and allocates and releases the slots. A slot is a
    replica's directory, address and devices."""

    def __init__(
        self,
        layout: Layout,
        host_probe: HostProbe,
        identity: str,
        emit: Callable[[EngineEvent], None],
        unclear: Callable[[SlotHandle], None],
        *,
        address: str | None = None,
        kept: Collection[int] = (),
    ) -> None:
        """`address`: the machine's address, if other machines reach replicas; None = each replica has its own
        loopback address. `kept`: first user IDs of the current autopsies (kept files of failed replicas)."""
        self._layout = layout
        self._probe = host_probe
        self._address = address
        self._kept = kept
        #: Identifier that distinguishes this service from other services on the machine.
        self._identity = identity
        #: Functions that are passed to each new `SlotHandle`, which calls them with its events or when its
        #: state must be determined.
        self._emit = emit
        self._unclear = unclear
        self._gangs: dict[tuple[JobUid, int], dict[ReplicaId, SlotHandle]] = {}
        #: Locked until the new slots (addresses, ports, GPUs, users) are recorded, so that the next gang gets
        #: different ones.
        self._allocation_lock = asyncio.Lock()

    def slot_handles(self) -> Iterator[SlotHandle]:
        return (slot_handle for gang in self._gangs.values() for slot_handle in gang.values())

    def names(self) -> tuple[tuple[JobUid, int], ...]:
        return tuple(self._gangs)

    def of(self, job_uid: JobUid, attempt: int) -> Gang:
        """Return the handles of the replicas' slots of an attempt. The result is empty if the attempt has no
        slots."""
        return self._gangs.get((job_uid, attempt), {})

    def slot_handle(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> SlotHandle:
        """Return the handle of a replica's slot. Raises LaunchRejected if it has no slot."""
        if slot_handle := self.of(job_uid, attempt).get(replica):
            return slot_handle
        raise LaunchRejected(f"{replica} of job {job_uid}, attempt {attempt}, has no slot; allocate first")

    def add(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> Gang:
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
        """Allocate slots (addresses, ports, GPUs, users) for replicas (see the port). Other tasks get a turn
        while a large gang is recorded."""
        for request in requests:
            if not is_node(request.node):
                raise LaunchRejected(
                    f"the node {request.node!r} does not exist; this engine's nodes are local, or local-0, "
                    "local-1 and so on"
                )
        async with self._allocation_lock:
            if gang := self.of(job_uid, attempt):
                self._move(job_uid, attempt, requests)
            else:
                gang = await self._create(job_uid, attempt, requests)
        return tuple(slot_handle.slot for slot_handle in gang.values())

    async def _create(self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]) -> Gang:
        taken = (slot_handle.slot for slot_handle in self.slot_handles())
        slots = new_slots(
            self._identity,
            job_uid,
            requests,
            taken,
            self._probe.shares,
            resolves=self._probe.can_resolve_peers,
            kept=self._kept if self._probe.host.level == protocol.LEVEL_OWN else None,
            shared=self._address,
        )
        with writing(f"the slots of job {job_uid}"):
            async for some in in_turns(slots, _BATCH):
                self._layout.create_slots(job_uid, attempt, some)
            self._layout.write(job_uid, attempt, slots)
        return self.add(job_uid, attempt, slots)

    def _move(self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]) -> None:
        """Move replicas to the node that their request specifies, if it differs from their current node.
        Their programs' files are deleted."""
        gang = self.of(job_uid, attempt)
        moving = {
            gang[request.replica]: request
            for request in requests
            if request.replica in gang and gang[request.replica].slot.node != request.node
        }
        if not moving:
            return
        if live := [str(request.replica) for slot_handle, request in moving.items() if slot_handle.is_live]:
            raise EngineUnavailable(
                f"{', '.join(live)} still run on their current node; stop them and wait until they end"
            )
        stay = [slot_handle.slot for slot_handle in self.slot_handles() if slot_handle not in moving]
        slots = {replica: slot_handle.slot for replica, slot_handle in gang.items()}
        for slot_handle, request in moving.items():
            slot = move_slot(slot_handle.slot, request, stay, self._probe.shares)
            slots[request.replica] = slot
            stay.append(slot)
        try:
            # Delete the files first. Otherwise a crash could leave a moved replica with the old files.
            for slot_handle in moving:
                self._layout.discard_files(slot_handle.directory)
        except OSError as error:
            raise EngineUnavailable(
                f"the files of job {job_uid} cannot be deleted ({error}); try again"
            ) from error
        with writing(f"the slots of job {job_uid}"):
            self._layout.write(job_uid, attempt, tuple(slots.values()))
        for slot_handle, request in moving.items():
            slot_handle.slot = slots[request.replica]

    def release(self, job_uid: JobUid, attempt: int) -> None:
        """Release the slots (directories and addresses) of an attempt's replicas (see `Engine.release`)."""
        gang = self.of(job_uid, attempt)
        if live := [str(replica) for replica, slot_handle in gang.items() if slot_handle.is_live]:
            raise EngineUnavailable(
                f"{', '.join(live)} of job {job_uid} still run; stop the attempt and wait until they end"
            )
        self._gangs.pop((job_uid, attempt), None)
        self._layout.discard(job_uid, attempt)


def new_slots(
    identity: str,
    job_uid: JobUid,
    requests: Sequence[SlotRequest],
    taken: Iterable[Slot],
    shares: Shares,
    *,
    resolves: bool,
    kept: Iterable[int] | None = None,
    shared: str | None = None,
) -> tuple[Slot, ...]:
    """Choose the slots (addresses, ports, GPUs and users) of a gang's replicas.

    - `identity`: distinguishes this service from other services on the machine.
    - `taken`: slots in use.
    - `resolves`: whether replicas can resolve their peers' hostnames.
    - `kept`: further first user IDs in use; None = replicas do not get their own users.
    - `shared`: the machine's address, which all slots share on different ports; None = one address per slot.
    """
    others = list(taken)
    addresses = {slot.endpoint or slot.address for slot in others}
    ports = {slot.port for slot in others}
    ranges = {*(kept or ()), *(slot.users for slot in others)}
    made: list[Slot] = []
    for request in requests:
        endpoint = None
        address = choose_address(identity, job_uid, request.replica, addresses)
        port = PROGRAM_PORT
        addresses.add(address)
        if shared:
            address, endpoint = shared, address
            port = choose_shared_port(job_uid, request, shared, ports)
        ports.add(port)
        host = request.hostname if resolves else address
        devices = _devices(request, [*others, *made], shares)
        first = None if kept is None else choose_users(identity, job_uid, request.replica, ranges)
        ranges.add(first)
        made.append(
            Slot(
                replica=request.replica,
                node=request.node,
                hostname=request.hostname,
                host=host,
                address=address,
                port=port,
                devices=devices,
                users=first,
                endpoint=endpoint,
            )
        )
    return tuple(made)


def move_slot(slot: Slot, request: SlotRequest, others: Iterable[Slot], shares: Shares) -> Slot:
    """Return a replica's slot after a move to another node. It keeps the replica's hostname, address and port
    (spec/failures), and gets GPUs of the new node."""
    return replace(slot, node=request.node, devices=_devices(request, others, shares))


def _devices(request: SlotRequest, others: Iterable[Slot], shares: Shares) -> str | None:
    """Return the devices of a replica, or None if it requests none."""
    if not request.accelerators:
        return None
    taken = (slot.devices for slot in others if slot.node == request.node)
    kind = request.machine.accelerator
    return choose(shares.get(request.node, ()), request.accelerators, kind, taken)


def choose_address(identity: str, job_uid: JobUid, replica: ReplicaId, used: Container[str]) -> str:
    """Choose a replica's own loopback address. A replica always gets the same address, unless that is in use.
    `identity`: distinguishes this service from others on the machine. `used`: addresses of live slots."""
    for step in _steps(identity, job_uid, replica, _ADDRESSES):
        number = _FIRST_ADDRESS + step
        address = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
        # Skip addresses that end in 0 or 255, because some programs treat them as networks.
        if number & 255 not in (0, 255) and address not in used:
            return address
    raise RuntimeError("All addresses of 127.64.0.0/10 are in use. Stop some jobs.")


def choose_shared_port(job_uid: JobUid, request: SlotRequest, address: str, used: Container[int]) -> int:
    """Choose a replica's port on an address that other machines reach and all replicas share. If peers
    already have a port for the replica, it is that port, unless it is in use. Otherwise the search always
    starts at the same port for a replica, on every machine."""
    if request.port and request.port not in used and is_free(address, request.port, again=True):
        return request.port
    for step in _steps("", job_uid, request.replica, _SHARED_PORTS):
        port = _FIRST_SHARED_PORT + step
        if port not in used and is_free(address, port, again=False):
            return port
    raise RuntimeError("All ports from 20000 to 31999 are in use. Stop some jobs.")


def choose_users(identity: str, job_uid: JobUid, replica: ReplicaId, used: Container[int | None]) -> int:
    for step in _steps(identity, job_uid, replica, _USER_RANGES):
        if (first := _FIRST_USER + step * users.COUNT) not in used:
            return first
    raise RuntimeError(f"All {_USER_RANGES} ranges of user IDs are in use. Stop some jobs.")


def _steps(identity: str, job_uid: JobUid, replica: ReplicaId, count: int) -> Iterator[int]:
    """Yield all numbers below `count`, from a start that is always the same for a replica."""
    text = f"{identity}|{job_uid}|{replica}"
    start = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return ((start + step) % count for step in range(count))


def is_free(address: str, port: int, *, again: bool) -> bool:
    """Whether a port is free. Other agents, and other users of a node, may use it. `again`: whether the
    replica had this port before. If so, its old connections may still be closing, and do not count as a use.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        if again:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
