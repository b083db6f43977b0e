"""Reads and writes the journal of a slot: a file of JSON lines about the runs (incarnations) of the slot's
replica.

The lock of this file is the fence: at most one run of a replica is alive. `claim` takes the lock and checks
whether a run may start. `expel` ends a run whose shim does not respond.

Only the process with the lock appends entries; any process may read them. All entries share one file, because
creating a file takes longer than writing its content. An entry is one of

    {"starting": N, "shim": PID, "shim_since": START, "file": INODE}
                                                   start of incarnation N; it ends with its shim. INODE is
                                                   that of the journal: if it differs, the file is a copy,
                                                   and PID is meaningless
    {"groups": [..]}                               the incarnation's control groups, for their removal
    {"noted": N, "note": {..}}                     a note of incarnation N (`notes`)
    {"over": N, "record": {..}}                    the attempt record of incarnation N; all of its
                                                   processes are dead
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
    """Take the exclusive lock of a replica's directory without waiting. Return the lock's file descriptor, or
    -1 if another process has the lock. Creates the journal, the locked file, if it does not exist. Raises
    OSError."""
    path = os.path.join(slot, protocol.JOURNAL)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


def release(lock: int) -> None:
    """Release the lock of a replica's directory, for all processes that inherited it."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def append(lock: int, entry: dict[str, Any]) -> None:
    """Append an entry. It survives this process immediately, and a power failure after `os.fsync(lock)`.
    Raises OSError.

    Syncing the file is enough: the supported file systems (ext4, XFS, Btrfs) also make a new file's name
    durable.
    """
    # The entry also starts with a newline. A full disk or a power failure may have left an incomplete line,
    # which must stay separate.
    view = memoryview(b"\n" + protocol.encode(entry))
    while view:
        view = view[os.write(lock, view) :]


class Entries:
    """The entries of a replica's journal at one moment: starts of runs, control groups, notes and attempt
    records."""

    def __init__(self, slot: str) -> None:
        """Read the journal in a replica's directory. A directory without a journal has never been used."""
        #: Number of the last run (incarnation) that was started; 0 if none.
        self.latest = 0
        #: The control groups of the replica's latest run (incarnation) that recorded them.
        self.groups: list[str] = []
        #: Process ID and start (`protocol.process_start`) of the shim of the replica's latest run
        #: (incarnation); 0 = none.
        self.shim = (0, 0)
        #: Whether the replica's directory is a copy of the directory in which the latest run (incarnation)
        #: was started. The processes in the journal then belong to the original, and are not killed.
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
        """Return the attempt record (the stored end) of a run of the replica, or None if it is not written
        yet."""
        return self._records.get(incarnation)

    def notes(self, incarnation: int) -> list[protocol.Message]:
        """Return the notes to users about one run (incarnation) of the replica, in the order of their
        numbers."""
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
                continue  # The entry was never completely written, so nothing depends on it.
    return inode, entries


_LOCK_TIMEOUT = 2.0
_POLL_INTERVAL = 0.002
"""Seconds between two checks of a state that the kernel does not report."""


class StartRejected(Exception):
    """Raised if a run (incarnation) of the replica must not start. `cause` is one of:

    - `protocol.REFUSED_HELD`: another shim has locked the replica's directory
    - `protocol.REFUSED_KNOWN`: this or a later run was started before
    - `protocol.REFUSED_STOPPED`: the run or its attempt was stopped
    """

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Claim:
    """The right to carry out one run (incarnation) of a replica, through the lock of its journal file. It
    ends with `release`, or when all processes that inherited the lock have exited."""

    def __init__(self, incarnation: int, lock: int) -> None:
        self._incarnation = incarnation
        self.lock = lock

    def describe(self, groups: list[str]) -> None:
        """Record the control groups of this run (incarnation) of the replica, so that the next run can remove
        them."""
        append(self.lock, {"groups": groups})

    def sync(self) -> None:
        """Make all entries durable, in particular the start of this run (incarnation) of the replica. Call
        this before the program runs. Blocks. Raises OSError."""
        os.fsync(self.lock)

    def note(self, note: protocol.Message) -> None:
        """Append a note to users about this run (incarnation) of the replica. The note survives this process.
        Raises OSError."""
        append(self.lock, {"noted": self._incarnation, "note": note})

    def finish(self, record: protocol.Message) -> None:
        """Append the attempt record and make it durable. Raises OSError."""
        append(self.lock, {"over": self._incarnation, "record": record})
        self.sync()


class Shim(NamedTuple):
    """A shim as the service sees it: its process ID and start (`protocol.process_start`) in the service's
    /proc, `proc`."""

    process: int
    since: int
    proc: str = "/proc"


def claim(incarnation: int, shim: Shim) -> Claim:
    """Take the lock of the current directory, which is a replica's slot, for a new run (incarnation). Waits
    up to `_LOCK_TIMEOUT` for the end of the previous run. Raises StartRejected, or OSError if the start
    cannot be recorded.

    A service that stops an attempt first writes a mark and then checks whether the lock is taken. A shim
    first takes the lock and then checks for the mark. In this order, at least one of them detects the other.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT
    lock = try_lock(".")
    while lock < 0:
        # If the previous shim was killed, the kernel is about to release its lock: wait a moment.
        if Entries(".").latest >= incarnation or time.monotonic() > deadline:
            raise StartRejected(protocol.REFUSED_HELD)
        time.sleep(_POLL_INTERVAL)
        lock = try_lock(".")
    try:
        entries = Entries(".")
        if entries.latest >= incarnation:
            raise StartRejected(protocol.REFUSED_KNOWN)
        marks = (os.path.join("..", protocol.STOPPED), protocol.stopped_mark(incarnation))
        if any(os.path.exists(mark) for mark in marks):
            raise StartRejected(protocol.REFUSED_STOPPED)
        if not clear(entries, shim.proc):
            raise StartRejected(protocol.REFUSED_HELD)
        _write_start(lock, incarnation, shim.process, shim.since)
    except (OSError, StartRejected):
        release(lock)
        raise
    return Claim(incarnation, lock)


def _write_start(lock: int, incarnation: int, shim: int, since: int) -> None:
    inode = os.fstat(lock).st_ino
    append(lock, {"starting": incarnation, "shim": shim, "shim_since": since, "file": inode})


def clear(entries: Entries, proc: str = "/proc") -> bool:
    """Wait until the processes of the replica's latest run (incarnation) have exited, and remove its control
    groups. Returns False if a process cannot exit, for example because it waits for a device.

    This wait is necessary if the shim of that run was killed: the kernel releases the shim's lock before all
    processes of its namespace have exited. `proc`: the service's /proc. The caller must have the lock.
    """
    if not entries.latest or entries.record(entries.latest) is not None:
        # The replica was never started, or all processes of its latest run had exited before the record was
        # written.
        return True
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
    """End a run (incarnation) whose shim does not respond, and all earlier runs of the replica: kill the
    processes, remove the control groups, and record the run as lost because of `cause`.

    The run can never start after that, even if a request for its start is pending. A later run is not
    affected. Idempotent; blocks for a few seconds at most.

    Returns False if a process cannot exit, for example because it waits for a device; then call it again
    later. Raises OSError if the loss cannot be recorded.
    """
    begin = time.monotonic()
    lock = try_lock(slot)
    while lock < 0:
        entries = Entries(slot)
        if entries.latest > incarnation:
            return True  # A later run of the replica has the lock, so this run had ended before.
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
    """Return the attempt record of a run (incarnation) that ended without an exit of its program.
    `by_service`: whether the service caused the end, for example by a failed sandbox. Otherwise the cause is
    external."""
    return {"lost": cause, "by_service": by_service}
