"""Slots that were copied with their data directory: the processes that they name are the original's, which
may live on.

An original is known by the device and inode of its directory of slots; two directories that are there at once
never share them. Where those have changed, every incarnation without an end is lost, and no process is
touched for it.
"""

import json
import logging
import os
from pathlib import Path

from trainshed.engines.local.layout import Layout
from trainshed.replica.supervisor import journal
from trainshed.replica.system import durable

log = logging.getLogger(__name__)

_FILE = ".place"
_CAUSE = (
    "the data directory was copied, or put back from a backup: the replica's processes, if they "
    "are still there, are another service's"
)


def disown_copies(layout: Layout) -> None:
    """Let go of all that a copied directory of slots says of processes; nothing if it was not copied. Blocks;
    a crash in between is made up for by the next call. Raises OSError."""
    path = layout.slots / _FILE
    status = layout.slots.stat()
    here = {"device": status.st_dev, "inode": status.st_ino}
    before = durable.read_document(str(path))
    if before == here:
        return
    if before is not None:
        log.warning(
            "%s was copied or moved to another file system: what ran in it counts as lost",
            layout.slots,
        )
        for job_uid, attempt in layout.attempts():
            for slot in layout.read(job_uid, attempt):
                _disown(layout.attempt(job_uid, attempt) / str(slot.replica))
    durable.write(str(path), json.dumps(here))


def _disown(slot: Path) -> None:
    if not slot.is_dir():
        return
    lock = journal.try_lock(str(slot))
    if lock < 0:
        return  # A shim holds it that serves this very slot.
    try:
        entries = journal.Entries(str(slot))
        if entries.left is not None:
            journal.append(lock, {"guardian": 0, "since": 0, "groups": []})
        if entries.latest and entries.record(entries.latest) is None:
            journal.append(lock, {"over": entries.latest, "record": journal.lost_record(_CAUSE)})
        os.fsync(lock)
    finally:
        journal.release(lock)
