"""Maps replicas' slots to files, so that a restarted service finds its slots.

`<data>/slots/<job_uid>/<attempt>/slots.json` lists the gang's slots (addresses, ports, devices and users).
The same directory contains one directory per replica (`trainshed.replica.protocol`). Logs are in
`<data>/logs/<job_uid>/<attempt>/<replica>/`.
"""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from msgspec.structs import asdict

from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import EngineUnavailable, Slot
from trainshed.replica import protocol
from trainshed.replica.system import durable

SLOTS = "slots.json"
"""Name of the file in an attempt's directory that lists the slots of its replicas (addresses, ports, devices,
users)."""
_MIN_FREE_BYTES, _MIN_FREE_FILES = 1 << 20, 100
"""Free space needed to start a program. A shim on a full disk fails, which costs its job a retry."""


class Layout:
    """The engine's directories under the service's data directory."""

    def __init__(self, data: Path) -> None:
        self.slots = data / "slots"
        self.logs = data / "logs"
        self.autopsies = data / "autopsies"
        self.trash = self.slots / ".trash"
        self.probe = self.slots / ".probe"
        #: Directory of the preloaders' sockets.
        self.preloaders = self.slots / ".preloaders"

    def make(self) -> None:
        for directory in (self.slots, self.logs, self.autopsies, self.trash, self.probe):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def require_room(self) -> None:
        """Raise OSError if the disk is read-only or too full to start programs."""
        system = os.statvfs(self.slots)
        blocks = system.f_bavail if os.geteuid() else system.f_bfree
        few_files = system.f_files and system.f_ffree < _MIN_FREE_FILES
        if system.f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if few_files or blocks * system.f_frsize < _MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def attempt(self, job_uid: JobUid, attempt: int) -> Path:
        return self.slots / f"{job_uid}/{attempt}"

    def gangs(self) -> Iterator[tuple[tuple[JobUid, int], tuple[Slot, ...]]]:
        """Yield every attempt that has a directory, in any order, with the recorded slots of its replicas
        (addresses, ports, devices). The slots are empty if none are recorded. Removes the directories of jobs
        without attempts."""
        for job in self.slots.iterdir():
            if job.name.isdigit():
                attempts = [entry.name for entry in job.iterdir() if entry.name.isdigit()]
                if not attempts:
                    with contextlib.suppress(OSError):
                        job.rmdir()
                for attempt in attempts:
                    key = JobUid(int(job.name)), int(attempt)
                    slots = durable.read_document(str(job / attempt / SLOTS)) or {}
                    yield key, tuple(Slot(ReplicaId.parse(name), **slots[name]) for name in slots)

    def create_slots(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> None:
        """Create the directories of these replicas. Call this before `write` records their slots."""
        directory = self.attempt(job_uid, attempt)
        directory.mkdir(parents=True, exist_ok=True)
        for slot in slots:
            (directory / str(slot.replica)).mkdir(mode=0o700, exist_ok=True)

    def write(self, job_uid: JobUid, attempt: int, slots: Sequence[Slot]) -> None:
        """Record the slots of the attempt's replicas (addresses, ports, devices) atomically. The file is not
        synced, because a power failure that loses it also ends the processes."""
        directory = self.attempt(job_uid, attempt)
        fields = {str(slot.replica): asdict(slot) for slot in slots}
        for own in fields.values():
            del own["replica"]
        durable.write(str(directory / SLOTS), json.dumps(fields), sync=False)

    def write_hosts(self, job_uid: JobUid, attempt: int, text: str) -> Path:
        """Update the gang's hosts file in place, so that running programs see the change; return its path.
        Raises OSError."""
        path = self.attempt(job_uid, attempt) / protocol.HOSTS
        rewrite(path, text)
        path.chmod(0o644)
        return path

    def is_stopped(self, job_uid: JobUid, attempt: int) -> bool:
        return (self.attempt(job_uid, attempt) / protocol.STOPPED).exists()

    def mark_stopped(self, job_uid: JobUid, attempt: int) -> None:
        """Record durably that no program of the attempt may start any more. Does nothing if the attempt's
        directory was deleted. Blocks for a disk write."""
        with contextlib.suppress(FileNotFoundError):
            durable.write(str(self.attempt(job_uid, attempt) / protocol.STOPPED), "")

    def is_forbidden(self, slot: Path, incarnation: int) -> bool:
        return (slot / protocol.stopped_mark(incarnation)).exists()

    def forbid(self, slot: Path, incarnation: int) -> None:
        """Record durably that one run (incarnation) of the replica in `slot` may not start. Has no effect on
        a run that has started. Blocks for a disk write. Raises OSError."""
        durable.write(str(slot / protocol.stopped_mark(incarnation)), "")

    def discard_files(self, slot: Path) -> None:
        """Move the files of a replica's programs to the trash; its journal and its logs remain. Raises
        OSError."""
        with contextlib.suppress(FileNotFoundError):
            (slot / protocol.FILES).rename(self.trash / uuid.uuid4().hex)

    def discard(self, job_uid: JobUid, attempt: int) -> None:
        """Move an attempt's directory to the trash, which is emptied later. If it is the job's last attempt,
        move the job's directory instead."""
        directory = self.attempt(job_uid, attempt)
        # Ignore a directory that does not exist any more.
        with contextlib.suppress(OSError):
            # Move the job's directory as a whole: removing a directory takes many times as long as a rename,
            # and blocks the event loop.
            is_last = [entry.name for entry in directory.parent.iterdir()] == [directory.name]
            gone = directory.parent if is_last else directory
            gone.rename(self.trash / uuid.uuid4().hex)


@contextlib.contextmanager
def writing(what: str) -> Generator[None]:
    """Raise EngineUnavailable if writing `what` to the disk fails."""
    try:
        yield
    except OSError as error:
        raise EngineUnavailable(f"writing {what} failed ({error}); free disk space and try again") from error


_MARKER = "# Replicas of the job, kept up to date by its agent."
"""Marker line. The engine replaces everything below it."""


class MachineHosts:
    """The machine's hosts file, which may contain lines from other software."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_ours(self) -> bool:
        try:
            with self.path.open("r+b"):
                return True
        except OSError:
            return False

    def write(self, hosts: Sequence[tuple[str, str]]) -> None:
        """Write these (name, address) pairs into the file, in place of those from an earlier call. Raises
        OSError."""
        begun, _, _ = self.path.read_text("utf-8").partition(f"{_MARKER}\n")
        if begun and not begun.endswith("\n"):
            begun += "\n"
        words = [line.split() for line in begun.splitlines()]
        known = {(name, address) for address, *names in filter(None, words) for name in names}
        lines = [f"{address}\t{name}\n" for name, address in hosts if (name, address) not in known]
        rewrite(self.path, f"{begun}{_MARKER}\n{''.join(lines)}")


def rewrite(path: Path, text: str) -> None:
    """Change a file in place. So processes that have mounted the file see the change, and never an empty
    file. Creates the file if it does not exist. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        content = text.encode()
        os.pwrite(handle, content, 0)
        os.ftruncate(handle, len(content))
    finally:
        os.close(handle)
