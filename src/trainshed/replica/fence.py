"""At most one incarnation of a replica lives: the slot's lock and what is checked under it.

Called in the slot's directory. Runs on Python 3.6.
"""

import fcntl
import json
import os
import signal
import time

from trainshed.replica import cgroups, durable, protocol

_PATIENCE = 2.0


class Refused(Exception):
    """This incarnation must not start. `cause`: `protocol.REFUSED_HELD` (another shim serves the slot),
    `REFUSED_KNOWN` (it, or a later one, was started before), `REFUSED_STOPPED` (the attempt was stopped)."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Claim:
    """The right to run one incarnation, held until `release` or the death of all who hold the lock."""

    __slots__ = ("_incarnation", "_starting", "lock")

    def __init__(self, incarnation: int, lock: int, starting: int) -> None:
        self._incarnation = incarnation
        self.lock = lock
        self._starting = starting

    def describe(self, guardian: int, groups: "list[str]") -> None:
        """Leave word of who serves the slot, for a successor that has to clear away what we left."""
        document = {
            "incarnation": self._incarnation,
            "shim": os.getpid(),
            "guardian": guardian,
            "guardian_start": protocol.process_start(guardian),
            "groups": groups,
        }
        durable.write(protocol.SHIM, json.dumps(document), sync=False)

    def sync(self) -> None:
        """Make the `starting` record durable; before this nothing of the program may run.

        The file systems in use make a new file's name durable together with the file (ext4, XFS and Btrfs do);
        a second wait for the directory would only make every start later.
        """
        os.fsync(self._starting)
        os.close(self._starting)

    def release(self) -> None:
        """Give the slot free, for all processes that inherited the lock."""
        fcntl.flock(self.lock, fcntl.LOCK_UN)


def claim(incarnation: int) -> Claim:
    """Take the slot for an incarnation that never ran. Raises Refused.

    The order matters: a service that stops an attempt first writes its mark and then looks for a holder of
    the lock, a shim first takes the lock and then looks for the mark, so one of them sees the other.
    """
    deadline = time.monotonic() + _PATIENCE
    lock = durable.try_lock(protocol.LOCK)
    while lock < 0:
        if os.path.exists(protocol.starting_file(incarnation)) or time.monotonic() > deadline:
            raise Refused(protocol.REFUSED_HELD)
        # The predecessor has reported its end or been killed, and is about to be gone.
        time.sleep(0.002)
        lock = durable.try_lock(protocol.LOCK)
    if latest_incarnation(".") >= incarnation:
        raise Refused(protocol.REFUSED_KNOWN)
    if os.path.exists(os.path.join("..", protocol.STOPPED)):
        raise Refused(protocol.REFUSED_STOPPED)
    if not clear("."):
        raise Refused(protocol.REFUSED_HELD)
    try:
        starting = durable.create(protocol.starting_file(incarnation), "%d\n" % os.getpid())
    except FileExistsError:
        raise Refused(protocol.REFUSED_KNOWN) from None
    return Claim(incarnation, lock, starting)


def latest_incarnation(slot: str) -> int:
    """The highest incarnation that was ever started in a slot; 0 if none was."""
    prefix = protocol.starting_file(0)[:-1]
    names = [name for name in os.listdir(slot) if name.startswith(prefix)]
    return max((int(name[len(prefix) :]) for name in names), default=0)


def clear(slot: str) -> bool:
    """End what a killed shim may have left dying: its guardian, hence the program, and its control groups.

    For holders of the lock. True: all of it is gone; false: the guardian cannot die (it waits for a device).
    """
    document = protocol.read_document(os.path.join(slot, protocol.SHIM))
    if document is None:
        return True
    guardian, start = document["guardian"], document["guardian_start"]
    deadline = time.monotonic() + _PATIENCE
    while start and protocol.process_start(guardian) == start:
        try:
            os.kill(guardian, signal.SIGKILL)
        except ProcessLookupError:
            break
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    cgroups.remove(document["groups"])
    return True
