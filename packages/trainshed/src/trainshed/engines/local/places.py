"""Chooses a replica's slot: its node, its address, its GPUs. Pure."""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.launch.devices import Device, choose
from trainshed.engines.launch.where import PROGRAM_PORT
from trainshed.engines.port import Slot, SlotRequest
from trainshed.replica.sandbox import users

_FIRST_ADDRESS = 127 << 24 | 64 << 16
_ADDRESSES = 1 << 22
"""127.64.0.0/10: loopback addresses that nothing else on a machine uses."""


_FIRST_SHARED_PORT, _SHARED_PORTS = 20000, 12000
"""Below those that the kernel gives out by itself."""

_FIRST_USER = 0x70000000
_USER_RANGES = 4000
"""User numbers that no distribution gives out, in ranges of `users.COUNT`."""


class PortProbe(Protocol):
    """Tells whether a port of a node is free. `again`: the replica had the port before, so that its old
    connections, which may still be closing, do not count."""

    def __call__(self, port: int, *, again: bool) -> bool: ...


Shares = Mapping[str, Sequence[Device]]
"""The GPUs of each node."""


def new_slots(
    identity: str,
    job_uid: JobUid,
    requests: Sequence[SlotRequest],
    taken: Iterable[Slot],
    shares: Shares,
    *,
    resolves: bool,
    own_users: bool = False,
    shared: str | None = None,
    is_free: PortProbe | None = None,
) -> tuple[Slot, ...]:
    """Choose the slots of a gang beside those that are taken. `identity`: tells this service from others on
    the machine. `resolves`: replicas can resolve their peers' hostnames. `own_users`: each gets its own user
    ids. `shared`: the machine's address, which all have, each with a port that `is_free` there; None = each
    has its own address."""
    others = list(taken)
    addresses = {slot.endpoint or slot.address for slot in others}
    ports = {slot.port for slot in others}
    ranges = {slot.users for slot in others}
    made: list[Slot] = []
    for request in requests:
        endpoint = None
        address = choose_address(identity, job_uid, request.replica, addresses)
        port = PROGRAM_PORT
        addresses.add(address)
        if shared and is_free is not None:
            address, endpoint = shared, address
            port = choose_shared_port(job_uid, request, ports, is_free)
        ports.add(port)
        host = request.hostname if resolves else address
        devices = _devices(request, [*others, *made] if request.accelerators else [], shares)
        first = choose_users(identity, job_uid, request.replica, ranges) if own_users else None
        ranges.add(first)
        made.append(
            Slot(
                request.replica,
                request.node,
                request.hostname,
                host,
                address,
                port,
                devices,
                first,
                endpoint,
            )
        )
    return tuple(made)


def moved(slot: Slot, request: SlotRequest, others: Iterable[Slot], shares: Shares) -> Slot:
    """Return the same replica's slot on another node: its names stay (spec/failures), its GPUs are that
    node's."""
    return replace(slot, node=request.node, devices=_devices(request, others, shares))


def _devices(request: SlotRequest, others: Iterable[Slot], shares: Shares) -> str | None:
    taken = (slot.devices for slot in others if slot.node == request.node)
    return choose(shares.get(request.node, ()), request.accelerators, request.accelerator, taken)


def choose_address(identity: str, job_uid: JobUid, replica: ReplicaId, used: Container[str]) -> str:
    """Choose a replica's own loopback address: always the same one for a replica as long as that is free.

    `identity`: tells this service from others on the machine. `used`: addresses of live slots.
    """
    for step in _steps(identity, job_uid, replica, _ADDRESSES):
        number = _FIRST_ADDRESS + step
        address = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
        # Addresses that end in 0 or 255 look like networks to some programs.
        if number & 255 not in (0, 255) and address not in used:
            return address
    raise RuntimeError("all of 127.64.0.0/10 is in use; release slots")


def choose_shared_port(
    job_uid: JobUid, request: SlotRequest, used: Container[int], is_free: PortProbe
) -> int:
    """Choose a replica's port where all share an address that other machines reach: the one that peers were
    told before, if that is free. Otherwise the search begins at the same port on every machine."""
    if request.port and request.port not in used and is_free(request.port, again=True):
        return request.port
    for step in _steps("", job_uid, request.replica, _SHARED_PORTS):
        port = _FIRST_SHARED_PORT + step
        if port not in used and is_free(port, again=False):
            return port
    raise RuntimeError("all ports from 20000 to 31999 are in use; release slots")


def choose_users(
    identity: str, job_uid: JobUid, replica: ReplicaId, used: Container[int | None]
) -> int:
    """Choose the first user id of a replica's own range."""
    for step in _steps(identity, job_uid, replica, _USER_RANGES):
        if (first := _FIRST_USER + step * users.COUNT) not in used:
            return first
    raise RuntimeError(f"all {_USER_RANGES} ranges of user numbers are in use; release slots")


def _steps(identity: str, job_uid: JobUid, replica: ReplicaId, count: int) -> Iterator[int]:
    """Yield the numbers below `count`, from one on that is always the same for a replica."""
    text = f"{identity}|{job_uid}|{replica}"
    start = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    return ((start + step) % count for step in range(count))
