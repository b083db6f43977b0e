"""What became of a slot's incarnations: one file of JSON lines, whose lock is the fence. Runs on Python 3.6.

Only the holder of the lock appends; anybody reads. One small file, because making a file costs a start more than
anything that is written into one. An entry is one of

    {"starting": N, "shim": PID, "shim_since": START}  incarnation N is over if nobody holds the lock
    {"guardian": PID, "since": START, "groups": [..]}  what a successor has to clear away
    {"noted": N, "note": {..}}                         a note of N (`reduction`)
    {"over": N, "record": {..}}                        the attempt record of N
"""

import fcntl
import json
import os
import signal

from trainshed.replica import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def try_lock(slot: str) -> int:
    """Take the exclusive lock of a slot; the open handle holds it. -1: somebody else has it."""
    path = os.path.join(slot, protocol.JOURNAL)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


class _TooLong(Exception):
    """A lock was not to be had in time."""


def wait_for_lock(slot: str, seconds: float) -> int:
    """The same as soon as its holder lets go, or is gone. -1: not within `seconds`. Only for the main thread."""
    path = os.path.join(slot, protocol.JOURNAL)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    before = signal.signal(signal.SIGALRM, _give_up)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            fcntl.flock(handle, fcntl.LOCK_EX)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TooLong:
        os.close(handle)
        return -1
    finally:
        signal.signal(signal.SIGALRM, before)
    return handle


def _give_up(number: int, frame: object) -> None:
    raise _TooLong


def release(lock: int) -> None:
    """Give the slot free, for all processes that inherited the lock."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def append(lock: int, entry: "dict[str, Any]") -> None:
    """Add an entry; it outlives this process at once, and a power cut after `os.fsync(lock)`.

    Syncing the file is enough: the file systems in use (ext4, XFS, Btrfs) make a new file's name durable with it.
    """
    # Begun by a line's end as well: what a full disk or a power cut left unfinished then stands alone.
    view = memoryview(b"\n" + protocol.encode(entry))
    while view:
        view = view[os.write(lock, view) :]


class Entries:
    """What a slot's journal says at one moment."""

    __slots__ = ("_notes", "_records", "latest", "left", "shim")

    def __init__(self, slot: str) -> None:
        """A slot without a journal has never been used."""
        self.latest = 0
        """The highest incarnation that was ever started; 0 if none was."""
        self.left: "dict[str, Any] | None" = None
        """Guardian and control groups of the latest incarnation, as far as it came."""
        self.shim = (0, 0)
        """Process id and start of the shim of the latest incarnation; start 0: an earlier version did not write it."""
        self._records: "dict[int, protocol.Message]" = {}
        self._notes: "dict[int, list[protocol.Message]]" = {}
        for entry in _read(os.path.join(slot, protocol.JOURNAL)):
            if "starting" in entry:
                self.latest = max(self.latest, entry["starting"])
                self.shim = (entry.get("shim", 0), entry.get("shim_since", 0))
            elif "over" in entry:
                self._records[entry["over"]] = entry["record"]
            elif "noted" in entry:
                self._notes.setdefault(entry["noted"], []).append(entry["note"])
            else:
                self.left = entry

    def record(self, incarnation: int) -> "protocol.Message | None":
        """The attempt record of an incarnation; None while there is none."""
        return self._records.get(incarnation)

    def notes(self, incarnation: int) -> "list[protocol.Message]":
        """The notes of an incarnation, in their order."""
        return self._notes.get(incarnation, [])


def _read(path: str) -> "list[dict[str, Any]]":
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return []
    try:
        data = b""
        while True:
            chunk = os.read(handle, 65536)
            if not chunk:
                break
            data += chunk
    finally:
        os.close(handle)
    entries: "list[dict[str, Any]]" = []
    for line in data[: data.rfind(b"\n") + 1].split(b"\n"):
        if line:
            try:
                entries.append(json.loads(line.decode("utf-8")))
            except ValueError:
                continue  # Never completely written, so nothing was done because of it.
    return entries
