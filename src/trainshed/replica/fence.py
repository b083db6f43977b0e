"""At most one incarnation of a replica lives: the slot's lock and what is checked under it.

`claim` is called in the slot's directory. Runs on Python 3.6.
"""

import os
import signal
import time

from trainshed.replica import cgroups, journal, processes, protocol, records

_PATIENCE = 2.0
_LOOK_EVERY = 0.05
_GOES_BY_ITSELF = 0.5
"""Seconds for a guardian to clear up after its shim's death."""


class Refused(Exception):
    """This incarnation must not start. `cause`: `protocol.REFUSED_HELD` (another shim serves the slot),
    `REFUSED_KNOWN` (it, or a later one, was started before), `REFUSED_STOPPED` (it, or the attempt, was stopped)."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Claim:
    """The right to run one incarnation, held until `release` or the death of all who hold the lock."""

    __slots__ = ("_before", "_incarnation", "lock")

    def __init__(self, incarnation: int, lock: int, before: int = 0) -> None:
        """`before`: bytes that the journal had before it said that this incarnation starts."""
        self._incarnation = incarnation
        self._before = before
        self.lock = lock

    def describe(self, guardian: int, groups: "list[str]") -> None:
        """Leave word for a successor that has to clear away what we left."""
        since = protocol.process_start(guardian)
        journal.append(self.lock, {"guardian": guardian, "since": since, "groups": groups})

    def sync(self) -> None:
        """Make durable that this incarnation starts; before this nothing of the program may run."""
        os.fsync(self.lock)

    def note(self, note: "protocol.Message") -> None:
        """Write down what is to be told of this incarnation; it outlives this process. Raises OSError."""
        journal.append(self.lock, {"noted": self._incarnation, "note": note})

    def finish(self, record: "protocol.Message") -> None:
        """Make the attempt record durable."""
        journal.append(self.lock, {"over": self._incarnation, "record": record})
        os.fsync(self.lock)

    def undo(self) -> None:
        """Nothing of this incarnation ran, and nobody lives who could have it run: take back that it starts. Takes no
        room on the disk. Raises OSError: it cannot be taken back."""
        os.ftruncate(self.lock, self._before)

    def release(self) -> None:
        """Give the slot free, for all processes that inherited the lock."""
        journal.release(self.lock)


def claim(incarnation: int) -> Claim:
    """Take the slot for an incarnation that never ran. Raises Refused, OSError (nothing says that it starts).

    The order matters: a service that stops an attempt first writes its mark and then looks for a holder of
    the lock, a shim first takes the lock and then looks for the mark, so one of them sees the other.
    """
    deadline = time.monotonic() + _PATIENCE
    lock = journal.try_lock(".")
    while lock < 0:
        left = deadline - time.monotonic()
        if journal.Entries(".").latest >= incarnation or left <= 0:
            raise Refused(protocol.REFUSED_HELD)
        # The predecessor was killed and is about to be gone: the kernel says when.
        lock = journal.wait_for_lock(".", min(left, _LOOK_EVERY))
    try:
        entries = journal.Entries(".")
        if entries.latest >= incarnation:
            raise Refused(protocol.REFUSED_KNOWN)
        marks = (os.path.join("..", protocol.STOPPED), protocol.stopped_mark(incarnation))
        if any(os.path.exists(mark) for mark in marks):
            raise Refused(protocol.REFUSED_STOPPED)
        if not clear(entries):
            raise Refused(protocol.REFUSED_HELD)
        before = os.fstat(lock).st_size
        _write_start(lock, incarnation, os.getpid())
    except (OSError, Refused):
        journal.release(lock)
        raise
    return Claim(incarnation, lock, before)


def _write_start(lock: int, incarnation: int, shim: int) -> None:
    since = protocol.process_start(shim) if shim else 0
    journal.append(lock, {"starting": incarnation, "shim": shim, "shim_since": since})


def clear(entries: journal.Entries) -> bool:
    """End what a killed shim may have left dying: its guardian, hence the program, and its control groups.

    For holders of the lock. True: all of it is gone; false: the guardian cannot die (it waits for a device).
    """
    if entries.left is None:
        return True
    guardian, start = entries.left["guardian"], entries.left["since"]
    deadline = time.monotonic() + _PATIENCE
    while start and protocol.is_process(guardian, start):
        try:
            os.kill(guardian, signal.SIGKILL)
        except ProcessLookupError:
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    cgroups.kill(entries.left["groups"])
    cgroups.remove(entries.left["groups"])
    return True


def expel(slot: str, incarnation: int, cause: str) -> bool:
    """End an incarnation whose shim does not answer, and all before it: kill, clear away, record it as lost through
    `cause`. It can never start after that, even if a request for it is still on its way. A later incarnation is left
    in peace. Blocks for some seconds at most; safe to repeat.

    True: nothing of it lives. False: something of it cannot die (it waits for a device); try again later. Raises
    OSError: that it is lost cannot be written down.
    """
    begin = time.monotonic()
    lock = journal.try_lock(slot)
    while lock < 0:
        entries = journal.Entries(slot)
        if entries.latest > incarnation:
            return True  # Its successor holds the lock, so it was gone before.
        waited = time.monotonic() - begin
        if waited > _PATIENCE:
            return False
        _end_holders(slot, entries, force=waited > _GOES_BY_ITSELF)
        time.sleep(0.002)
        lock = journal.try_lock(slot)
    try:
        entries = journal.Entries(slot)
        if entries.latest > incarnation:
            return True
        if not clear(entries):
            return False
        if entries.latest < incarnation:
            _write_start(lock, incarnation, 0)
        if entries.record(incarnation) is None:
            Claim(incarnation, lock).finish(records.lost(cause))
        return True
    finally:
        journal.release(lock)


def _end_holders(slot: str, entries: journal.Entries, force: bool) -> None:
    """Kill the shim of the latest incarnation; its guardian then ends all else, then itself, or is made to."""
    shim, since = entries.shim
    if shim and (protocol.is_process(shim, since) if since else _has_open(shim, slot)):
        processes.send(shim, signal.SIGKILL)
        return
    if entries.left is None:
        return
    guardian, start = entries.left["guardian"], entries.left["since"]
    if start and protocol.is_process(guardian, start):
        processes.send(guardian, signal.SIGCONT)
        if force:
            for process in [*processes.descendants(guardian), guardian]:
                processes.send(process, signal.SIGKILL)


def _has_open(process: int, slot: str) -> bool:
    """Whether a process has a slot's journal open: what tells a shim from a stranger with the same number."""
    try:
        journal_file = os.stat(os.path.join(slot, protocol.JOURNAL))
        handles = os.listdir("/proc/%d/fd" % process)
    except OSError:
        return False
    for handle in handles:
        try:
            if os.path.samestat(os.stat("/proc/%d/fd/%s" % (process, handle)), journal_file):
                return True
        except OSError:
            continue
    return False
