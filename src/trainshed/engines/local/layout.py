"""Where slots lie on disk, and which address each has. Everything here can be found again after a restart.

`<data>/slots/<job_uid>/<attempt>/slots.json` lists the gang's slots; beside it one directory per replica
(`trainshed.replica.protocol`). Logs are in `<data>/logs/<job_uid>/<attempt>/<replica>/`.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Container, Iterator, Sequence
from pathlib import Path

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import Slot, SlotRequest
from trainshed.replica import durable, protocol, system

PROGRAM_PORT = 2222
"""The port that every replica may bind on its own address (facts §3.2)."""

_FIRST_ADDRESS = 127 << 24 | 64 << 16
_ADDRESSES = 1 << 22
"""127.64.0.0/10: loopback addresses that nothing else on a machine uses."""

_FIRST_PORT = 20000
_PORT_PAIRS = 10000


class Layout:
    """The engine's directories under the service's data directory."""

    def __init__(self, data: Path) -> None:
        self.slots = data / "slots"
        self.logs = data / "logs"
        self.trash = self.slots / ".trash"
        self.probe = self.slots / ".probe"

    def make(self) -> None:
        for directory in (self.slots, self.logs, self.trash, self.probe):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def attempt(self, job_uid: JobUid, attempt: int) -> Path:
        return self.slots / str(job_uid) / str(attempt)

    def attempts(self) -> Iterator[tuple[JobUid, int]]:
        """Every attempt that has a directory, in no order."""
        for job in os.scandir(self.slots):
            if job.name.isdigit():
                for attempt in os.scandir(job.path):
                    if attempt.name.isdigit():
                        yield JobUid(int(job.name)), int(attempt.name)

    def read(self, job_uid: JobUid, attempt: int) -> tuple[Slot, ...]:
        """The gang's slots as they were given out; () if none were."""
        document = protocol.read_document(str(self.attempt(job_uid, attempt) / "slots.json"))
        return tuple(
            Slot(ReplicaId.parse(replica), **fields) for replica, fields in (document or {}).items()
        )

    def write(self, job_uid: JobUid, attempt: int, slots: tuple[Slot, ...]) -> None:
        """Make the slots' directories and record them, in one step. Not synced: a power cut that takes the
        record takes the processes as well."""
        directory = self.attempt(job_uid, attempt)
        for slot in slots:
            (directory / str(slot.replica)).mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {
            str(slot.replica): {
                "node": slot.node,
                "hostname": slot.hostname,
                "host": slot.host,
                "address": slot.address,
                "port": slot.port,
            }
            for slot in slots
        }
        durable.write(str(directory / "slots.json"), json.dumps(document), sync=False)

    def write_hosts(self, job_uid: JobUid, attempt: int, text: str) -> Path:
        """Bring the gang's hosts file up to date; returns it. Changed in place, so that running programs see it.
        Raises OSError."""
        path = self.attempt(job_uid, attempt) / protocol.HOSTS
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            path.chmod(0o644)
        return path

    def is_stopped(self, job_uid: JobUid, attempt: int) -> bool:
        return (self.attempt(job_uid, attempt) / protocol.STOPPED).exists()

    def mark_stopped(self, job_uid: JobUid, attempt: int) -> None:
        """Record durably that nothing of the attempt may start any more. Blocks for a disk write."""
        directory = self.attempt(job_uid, attempt)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.write(str(directory / protocol.STOPPED), "")

    def discard(self, job_uid: JobUid, attempt: int) -> None:
        """Take an attempt's directory out of sight at once; what is in `trash` is deleted later."""
        directory = self.attempt(job_uid, attempt)
        try:
            directory.rename(self.trash / uuid.uuid4().hex)
            directory.parent.rmdir()
        except OSError:
            return  # Gone already, or another attempt of the job is still there.


def choose_slot(
    identity: str, job_uid: JobUid, request: SlotRequest, taken: Sequence[Slot], *, named: bool
) -> Slot:
    """A slot beside those that are taken. `named`: its hostname can be resolved by its peers."""
    if system.LINUX:
        used = {slot.address for slot in taken}
        address, port = choose_address(identity, job_uid, request.replica, used), PROGRAM_PORT
    else:
        ports = {slot.port for slot in taken}
        address, port = "127.0.0.1", choose_port(identity, job_uid, request.replica, ports)
    host = request.hostname if named else address
    return Slot(request.replica, request.node, request.hostname, host, address, port)


def choose_address(identity: str, job_uid: JobUid, replica: ReplicaId, used: Container[str]) -> str:
    """A replica's own loopback address: the same for the same replica as long as it is free.

    `identity`: what tells this service from another on the machine. `used`: addresses of live slots.
    """
    start = _digest(identity, job_uid, replica) % _ADDRESSES
    for step in range(_ADDRESSES):
        number = _FIRST_ADDRESS + (start + step) % _ADDRESSES
        address = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
        # Addresses that end in 0 or 255 look like networks to some programs.
        if number & 255 not in (0, 255) and address not in used:
            return address
    raise RuntimeError("all of 127.64.0.0/10 is in use; release slots")


def choose_port(identity: str, job_uid: JobUid, replica: ReplicaId, used: Container[int]) -> int:
    """Where all replicas share one address: a port of its own, the next one being its storage endpoint's."""
    start = _digest(identity, job_uid, replica) % _PORT_PAIRS
    for step in range(_PORT_PAIRS):
        port = _FIRST_PORT + 2 * ((start + step) % _PORT_PAIRS)
        if port not in used:
            return port
    raise RuntimeError("all ports from 20000 to 39999 are in use; release slots")


def _digest(identity: str, job_uid: JobUid, replica: ReplicaId) -> int:
    text = f"{identity}|{job_uid}|{replica}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
