"""Reads and writes the journal of a slot: a file of JSON lines about its incarnations, whose lock is the
fence.

At most one incarnation of a replica lives: `claim`, called in the slot's directory, takes the lock and then
checks that this incarnation may start; `expel` ends one whose shim does not answer.

Only the holder of the lock appends; any process may read. All entries share one small file, because creating
a file costs a start more time than its content. An entry is one of

    {"starting": N, "shim": PID, "shim_since": START, "file": INODE}
                                                   incarnation N ends with this process; what a copy of
                                                   the file says of processes is another service's
    {"groups": [..]}                               its control groups, which a successor has to clear away
    {"noted": N, "note": {..}}                     a note of N (`notes`)
    {"over": N, "record": {..}}                    the attempt record of N, of which nothing lives any more
"""

import fcntl
import json
import os
import signal
import time
from typing import Any, NamedTuple

from trainshed.replica import protocol
from trainshed.replica.protocol import Message
from trainshed.replica.system import cgroups, processes


def try_lock(slot: str) -> int:
    """Take the exclusive lock of a slot without waiting; return the open handle of the lock, -1 if another
    process has it. Creates the journal if it does not exist. Raises OSError."""
    path = os.path.join(slot, protocol.JOURNAL)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


def release(lock: int) -> None:
    """Release the slot's lock, for all processes that inherited it."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def append(lock: int, entry: dict[str, Any]) -> None:
    """Append an entry. It survives this process immediately, and a power failure after `os.fsync(lock)`.
    Raises OSError.

    Syncing the file is enough: the supported file systems (ext4, XFS, Btrfs) also make a new file's name
    durable.
    """
    # Starts with a newline as well, so that an incomplete line from a full disk or a power failure is
    # separate.
    view = memoryview(b"\n" + protocol.encode(entry))
    while view:
        view = view[os.write(lock, view) :]


class Entries:
    """The content of a slot's journal at one moment."""

    def __init__(self, slot: str) -> None:
        """Read the journal. A slot without one has never been used."""
        #: The highest started incarnation; 0 if none.
        self.latest = 0
        #: The control groups of the latest incarnation that recorded them.
        self.groups: list[str] = []
        #: Process ID and start (`protocol.process_start`) of the latest incarnation's shim; 0 = none.
        self.shim = (0, 0)
        #: Whether that incarnation began in another slot, whose copy this is; its processes are left alone.
        self.is_copied = False
        self._records: dict[int, protocol.Message] = {}
        self._notes: dict[int, list[protocol.Message]] = {}
        inode, entries = _read(os.path.join(slot, protocol.JOURNAL))
        for entry in entries:
            if "starting" in entry:
                self.latest = max(self.latest, entry["starting"])
                self.is_copied = entry.get("file", inode) != inode
                self.shim = (0, 0) if self.is_copied else (entry["shim"], entry["shim_since"])
            elif "over" in entry:
                self._records[entry["over"]] = entry["record"]
            elif "noted" in entry:
                self._notes.setdefault(entry["noted"], []).append(entry["note"])
            else:
                self.groups = [] if self.is_copied else entry["groups"]

    def record(self, incarnation: int) -> protocol.Message | None:
        """Return the attempt record of an incarnation; None while there is none."""
        return self._records.get(incarnation)

    def notes(self, incarnation: int) -> list[protocol.Message]:
        """Return the notes of an incarnation, in their order."""
        return self._notes.get(incarnation, [])


def _read(path: str) -> tuple[int, list[dict[str, Any]]]:
    try:
        with open(path, "rb", buffering=0) as file:
            inode, data = os.fstat(file.fileno()).st_ino, file.readall()
    except FileNotFoundError:
        return 0, []
    entries: list[dict[str, Any]] = []
    for line in data[: data.rfind(b"\n") + 1].split(b"\n"):
        if line:
            try:
                entries.append(json.loads(line.decode("utf-8")))
            except ValueError:
                continue  # Never completely written, so nothing depends on it.
    return inode, entries


_LOCK_TIMEOUT = 2.0
_POLL_INTERVAL = 0.002
"""Seconds between two checks of states without notifications."""


class Refused(Exception):
    """This incarnation must not start. `cause`: `protocol.REFUSED_HELD` (another shim serves the slot),
    `REFUSED_KNOWN` (it, or a later one, was started before), `REFUSED_STOPPED` (it, or the attempt, was
    stopped)."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Claim:
    """The right to run one incarnation, until `release` or the end of every process with the lock."""

    def __init__(self, incarnation: int, lock: int) -> None:
        self._incarnation = incarnation
        self.lock = lock

    def describe(self, groups: list[str]) -> None:
        """Record the control groups that a successor has to remove after this incarnation."""
        append(self.lock, {"groups": groups})

    def sync(self) -> None:
        """Make all entries durable, above all the start of this incarnation; no process of the program may
        run before. Blocks. Raises OSError."""
        os.fsync(self.lock)

    def note(self, note: protocol.Message) -> None:
        """Append a note of this incarnation; it outlives this process. Raises OSError."""
        append(self.lock, {"noted": self._incarnation, "note": note})

    def finish(self, record: protocol.Message) -> None:
        """Append the attempt record and make it durable. Raises OSError."""
        append(self.lock, {"over": self._incarnation, "record": record})
        self.sync()


class Shim(NamedTuple):
    """The service's view of a shim: process ID and start (`protocol.process_start`) in `proc`, the service's
    /proc."""

    process: int
    since: int
    proc: str = "/proc"


def claim(incarnation: int, shim: Shim) -> Claim:
    """Claim the slot, the current directory, for this process and an incarnation that never ran. Waits up to
    `_LOCK_TIMEOUT` for the end of a predecessor. Raises Refused, OSError (its start is not recorded).

    The order matters: a service that stops an attempt first writes its mark and then checks for a holder of
    the lock; a shim first takes the lock and then checks for the mark. So one of them detects the other.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT
    lock = try_lock(".")
    while lock < 0:
        # The predecessor was killed, and the kernel is about to release its lock.
        if Entries(".").latest >= incarnation or time.monotonic() > deadline:
            raise Refused(protocol.REFUSED_HELD)
        time.sleep(_POLL_INTERVAL)
        lock = try_lock(".")
    try:
        entries = Entries(".")
        if entries.latest >= incarnation:
            raise Refused(protocol.REFUSED_KNOWN)
        marks = (os.path.join("..", protocol.STOPPED), protocol.stopped_mark(incarnation))
        if any(os.path.exists(mark) for mark in marks):
            raise Refused(protocol.REFUSED_STOPPED)
        if not clear(entries, shim.proc):
            raise Refused(protocol.REFUSED_HELD)
        _write_start(lock, incarnation, shim.process, shim.since)
    except (OSError, Refused):
        release(lock)
        raise
    return Claim(incarnation, lock)


def _write_start(lock: int, incarnation: int, shim: int, since: int) -> None:
    inode = os.fstat(lock).st_ino
    append(lock, {"starting": incarnation, "shim": shim, "shim_since": since, "file": inode})


def clear(entries: Entries, proc: str = "/proc") -> bool:
    """Remove the remains of the latest incarnation, whose shim may have been killed. The kernel releases the
    lock of a process, and then ends the namespace of that first process, before the process is gone. `proc`:
    the service's /proc.

    Only for holders of the lock. Returns True if everything is gone, False if a process cannot die (it waits
    for a device).
    """
    if not entries.latest or entries.record(entries.latest) is not None:
        return True  # Nothing was started, or all processes had ended before that record.
    shim, since = entries.shim
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while protocol.is_process(shim, since, proc):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    cgroups.kill(entries.groups)
    cgroups.remove(entries.groups)
    return True


def expel(slot: str, incarnation: int, cause: str) -> bool:
    """End an incarnation whose shim does not answer, and all before it: kill it, remove its remains, record
    it as lost because of `cause`. It can never start after that, even if a request for it is pending. A later
    incarnation is left alone. Blocks for some seconds at most; idempotent.

    Returns True if all its processes are dead, False if a process cannot die (it waits for a device): try
    again later. Raises OSError if the loss cannot be recorded.
    """
    begin = time.monotonic()
    lock = try_lock(slot)
    while lock < 0:
        entries = Entries(slot)
        if entries.latest > incarnation:
            return True  # Its successor has the lock, so it had ended before.
        if time.monotonic() - begin > _LOCK_TIMEOUT:
            return False
        shim, since = entries.shim
        if protocol.is_process(shim, since):
            processes.send(shim, signal.SIGKILL)
        time.sleep(_POLL_INTERVAL)
        lock = try_lock(slot)
    try:
        entries = Entries(slot)
        if entries.latest > incarnation:
            return True
        if not clear(entries):
            return False
        if entries.latest < incarnation:
            _write_start(lock, incarnation, 0, 0)
        if entries.record(incarnation) is None:
            Claim(incarnation, lock).finish(lost_record(cause))
        return True
    finally:
        release(lock)


def lost_record(cause: str, *, by_service: bool = False) -> Message:
    """Return the attempt record of an incarnation that ended through no fault of its program.

    `by_service`: the service failed to do its part (a sandbox, a template); otherwise the cause was external.
    """
    return {"lost": cause, "by_service": by_service}
