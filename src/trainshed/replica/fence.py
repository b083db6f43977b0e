"""At most one incarnation of a replica lives: the slot's lock and what is checked under it.

Called in the slot's directory. Runs on Python 3.6.
"""

import os
import signal
import time

from trainshed.replica import cgroups, journal, protocol

_PATIENCE = 2.0


class Refused(Exception):
    """This incarnation must not start. `cause`: `protocol.REFUSED_HELD` (another shim serves the slot),
    `REFUSED_KNOWN` (it, or a later one, was started before), `REFUSED_STOPPED` (the attempt was stopped)."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Claim:
    """The right to run one incarnation, held until `release` or the death of all who hold the lock."""

    __slots__ = ("_incarnation", "lock")

    def __init__(self, incarnation: int, lock: int) -> None:
        self._incarnation = incarnation
        self.lock = lock

    def describe(self, guardian: int, groups: "list[str]") -> None:
        """Leave word for a successor that has to clear away what we left."""
        since = protocol.process_start(guardian)
        journal.append(self.lock, {"guardian": guardian, "since": since, "groups": groups})

    def sync(self) -> None:
        """Make durable that this incarnation starts; before this nothing of the program may run."""
        os.fsync(self.lock)

    def finish(self, record: "protocol.Message") -> None:
        """Make the attempt record durable."""
        journal.append(self.lock, {"over": self._incarnation, "record": record})
        os.fsync(self.lock)

    def release(self) -> None:
        """Give the slot free, for all processes that inherited the lock."""
        journal.release(self.lock)


def claim(incarnation: int) -> Claim:
    """Take the slot for an incarnation that never ran. Raises Refused.

    The order matters: a service that stops an attempt first writes its mark and then looks for a holder of
    the lock, a shim first takes the lock and then looks for the mark, so one of them sees the other.
    """
    deadline = time.monotonic() + _PATIENCE
    lock = journal.try_lock(".")
    while lock < 0:
        if journal.Entries(".").latest >= incarnation or time.monotonic() > deadline:
            raise Refused(protocol.REFUSED_HELD)
        # The predecessor has reported its end or been killed, and is about to be gone.
        time.sleep(0.002)
        lock = journal.try_lock(".")
    try:
        entries = journal.Entries(".")
        if entries.latest >= incarnation:
            raise Refused(protocol.REFUSED_KNOWN)
        if os.path.exists(os.path.join("..", protocol.STOPPED)):
            raise Refused(protocol.REFUSED_STOPPED)
        if not clear(entries):
            raise Refused(protocol.REFUSED_HELD)
        journal.append(lock, {"starting": incarnation, "shim": os.getpid()})
    except (OSError, Refused):
        journal.release(lock)
        raise
    return Claim(incarnation, lock)


def clear(entries: journal.Entries) -> bool:
    """End what a killed shim may have left dying: its guardian, hence the program, and its control groups.

    For holders of the lock. True: all of it is gone; false: the guardian cannot die (it waits for a device).
    """
    if entries.left is None:
        return True
    guardian, start = entries.left["guardian"], entries.left["since"]
    deadline = time.monotonic() + _PATIENCE
    while start and protocol.process_start(guardian) == start:
        try:
            os.kill(guardian, signal.SIGKILL)
        except ProcessLookupError:
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    cgroups.remove(entries.left["groups"])
    return True
