"""Where slots lie on disk. Everything here can be found again after a restart.

`<data>/slots/<job_uid>/<attempt>/slots.json` lists the gang's slots; beside it one directory per replica
(`trainshed.replica.protocol`). Logs are in `<data>/logs/<job_uid>/<attempt>/<replica>/`.
"""

import array
import contextlib
import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.hosts_file import rewrite
from trainshed.engines.port import Slot
from trainshed.replica import protocol
from trainshed.replica.supervisor import survey
from trainshed.replica.system import durable

_LEAST_BYTES, _LEAST_FILES = 1 << 20, 100
"""What has to be free for a program to be started: a shim that finds no room at its start can only give
up."""

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
"""Of ioctl_iflags(2), where a long has 64 bits."""
_TOP_OF_TREES = 0x20000
"""What `chattr +T` sets."""


class Layout:
    """The engine's directories under the service's data directory."""

    def __init__(self, data: Path) -> None:
        self.slots = data / "slots"
        self.logs = data / "logs"
        self.autopsies = data / "autopsies"
        self.trash = self.slots / ".trash"
        self.probe = self.slots / ".probe"
        #: Sockets of preloaders.
        self.preloaders = self.slots / ".preloaders"

    def directories(self) -> tuple[Path, ...]:
        """All of them, each after those that it lies in."""
        return self.slots, self.logs, self.autopsies, self.trash, self.probe

    def make(self) -> None:
        for directory in self.directories():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in (self.slots, self.logs):
            _keep_apart(directory)

    def require_room(self) -> None:
        """Raises OSError: the disk is so full that nothing more should be started."""
        found = os.statvfs(self.slots)
        blocks = found.f_bavail if os.geteuid() else found.f_bfree
        few_files = found.f_files and found.f_ffree < _LEAST_FILES
        if few_files or blocks * found.f_frsize < _LEAST_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def attempt(self, job_uid: JobUid, attempt: int) -> Path:
        return self.slots / f"{job_uid}/{attempt}"

    def attempts(self) -> Iterator[tuple[JobUid, int]]:
        """Every attempt that has a directory, in no order. Jobs that have none any more lose theirs."""
        return ((JobUid(job), attempt) for job, attempt in survey.attempts(str(self.slots)))

    def record(self, job_uid: JobUid, attempt: int) -> Path:
        """The file that lists an attempt's slots."""
        return self.attempt(job_uid, attempt) / survey.SLOTS

    def read(self, job_uid: JobUid, attempt: int) -> tuple[Slot, ...]:
        """The gang's slots as they were given out; () if none were."""
        return slots_of(self.documents(job_uid, attempt))

    def documents(self, job_uid: JobUid, attempt: int) -> dict[str, Any]:
        """The same by replica, as it is written down (`slots_text`)."""
        return durable.read_document(str(self.record(job_uid, attempt))) or {}

    def make_slots(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> None:
        """The directories of these: before `write`, whose record says that they are there."""
        directory = self.attempt(job_uid, attempt)
        for slot in slots:
            (directory / str(slot.replica)).mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> None:
        """Record the attempt's slots, in one step. Not synced: a power cut that takes the record takes the
        processes as well."""
        self.attempt(job_uid, attempt).mkdir(parents=True, exist_ok=True)
        durable.write(str(self.record(job_uid, attempt)), slots_text(slots), sync=False)

    def write_hosts(self, job_uid: JobUid, attempt: int, text: str) -> Path:
        """Bring the gang's hosts file up to date; returns it. Changed in place, so that running programs see
        it. Raises OSError."""
        path = self.attempt(job_uid, attempt) / protocol.HOSTS
        if not path.exists() or path.read_text("utf-8") != text:
            rewrite(path, text)
            path.chmod(0o644)
        return path

    def lost_reducers(self, job_uid: JobUid, attempt: int) -> Path:
        """The file that names the reducers which the attempt has lost; made if it is not there. Raises
        OSError."""
        path = self.attempt(job_uid, attempt) / protocol.LOST_REDUCERS
        if not path.exists():
            path.touch()
            path.chmod(0o644)
        return path

    def write_lost_reducers(self, job_uid: JobUid, attempt: int, places: Sequence[str]) -> None:
        """In place, so that running programs see it; a reader finds what was there, or that and more: to what
        is listed, which stays, the others are added. Raises OSError."""
        path = self.lost_reducers(job_uid, attempt)
        listed = path.read_text("utf-8").splitlines()
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{place}\n" for place in places if place not in listed))

    def is_stopped(self, job_uid: JobUid, attempt: int) -> bool:
        return (self.attempt(job_uid, attempt) / protocol.STOPPED).exists()

    def mark_stopped(self, job_uid: JobUid, attempt: int) -> None:
        """Record durably that nothing of the attempt may start any more; nothing if it has been given back.
        Blocks for a disk write."""
        with contextlib.suppress(FileNotFoundError):
            durable.write(str(self.attempt(job_uid, attempt) / protocol.STOPPED), "")

    def is_forbidden(self, slot: Path, incarnation: int) -> bool:
        return (slot / protocol.stopped_mark(incarnation)).exists()

    def forbid(self, slot: Path, incarnation: int) -> None:
        """Record durably that one incarnation of the replica in `slot` may not start any more; nothing
        changes for it if it has. Blocks for a disk write. Raises OSError."""
        durable.write(str(slot / protocol.stopped_mark(incarnation)), "")

    def discard_files(self, slot: Path) -> None:
        """Take away what the programs of a replica left; its journal and its logs stay. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            (slot / protocol.FILES).rename(self.trash / uuid.uuid4().hex)

    def discard(self, job_uid: JobUid, attempt: int) -> None:
        """Take an attempt's directory out of sight at once, and the job's with its last attempt; what is in
        `trash` is deleted later."""
        directory = self.attempt(job_uid, attempt)
        with contextlib.suppress(OSError):  # Gone already.
            # In one piece: to remove a directory takes many times as long as to rename it, and all wait for
            # it.
            is_last = [each.name for each in directory.parent.iterdir()] == [directory.name]
            gone = directory.parent if is_last else directory
            gone.rename(self.trash / uuid.uuid4().hex)


def slots_text(slots: Sequence[Slot]) -> str:
    """What `record` holds."""
    return json.dumps(
        {
            str(slot.replica): {
                "node": slot.node,
                "hostname": slot.hostname,
                "host": slot.host,
                "address": slot.address,
                "port": slot.port,
                "devices": slot.devices,
                "users": slot.users,
                "endpoint": slot.endpoint,
            }
            for slot in slots
        }
    )


def _keep_apart(directory: Path) -> None:
    """Have ext4 keep what is in each directory of this one in another part of the disk; other file systems
    know no such thing.

    Without a journal it looks, for each file that it makes, past all that was deleted near it in the last
    minute or more: beside many short jobs that took longer than all else on the disk.
    """
    flags = array.array("l", [0])
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, _GET_FLAGS, flags)
            if not flags[0] & _TOP_OF_TREES:
                flags[0] |= _TOP_OF_TREES
                fcntl.ioctl(handle, _SET_FLAGS, flags)
        finally:
            os.close(handle)


def slots_of(documents: Mapping[str, Any]) -> tuple[Slot, ...]:
    """What `slots_text` was made of."""
    return tuple(Slot(ReplicaId.parse(replica), **fields) for replica, fields in documents.items())
