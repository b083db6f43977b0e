"""At a process's exit, reports why the process has not used its reducers."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
from typing import Optional, Set

from trainshed_reduction import process
from trainshed_reduction.variables import REPORT_FILE

_OUTERMOST = "TRAINSHED_REDUCTION_OUTERMOST"
"""Variable with the process id of the outermost process that imported torch, such as torchrun or a script
that starts processes."""


class UsageRecord:
    """Records whether the groups of this process use reducers, and why not."""

    def __init__(self) -> None:
        #: Whether at least one group may use reducers.
        self.is_served = False
        #: Short descriptions of the groups that cannot use reducers, such as "1 rank".
        self.unserved: Set[str] = set()
        #: Whether the ranks of a group agreed to use the native backend, because a rank could not use
        #: reducers. The session reported the reason when the ranks agreed.
        self.is_refused = False
        #: Bytes of the largest all-reduce of a kind that reducers support, even if it was too small for them;
        #: -1 = there was none.
        self.largest = -1

    def add_group(self, backend: str, world: int, served: bool) -> None:
        """Record that the process has created a group. `served`: whether the group may use reducers."""
        if served:
            self.is_served = True
        else:
            self.unserved.add("1 rank" if world == 1 else "backend {}".format(backend))

    def verdict(self, smallest: int) -> Optional[str]:
        """Return why the reducers were not used; None if they were used, or if the reason was already
        reported. `smallest`: minimum bytes of an all-reduce that reducers execute."""
        if self.is_refused:
            return None
        if not self.is_served and not self.unserved:
            if _has_child_report():
                return None
            if "horovod" in sys.modules:
                return "Horovod has its own all-reduce, which does not support reducers. Use PyTorch's DDP"
            return "the program created no process group of PyTorch (torch.distributed)"
        if not self.is_served:
            return (
                "they support groups of several ranks with backend gloo or nccl; "
                "this program created: {}".format(", ".join(sorted(self.unserved)))
            )
        if self.largest < 0:
            return (
                "the program called no all-reduce. Reduce-scatter and all-gather (FSDP, ZeRO) use the native "
                "backend, because reducers would not speed them up"
            )
        if self.largest < smallest:
            return (
                "its largest all-reduce has {} bytes, and the native backend is faster below {} bytes. Use "
                "larger buckets, such as DistributedDataParallel(bucket_cap_mb=64), or set "
                "TRAINSHED_REDUCTION_MIN_BYTES".format(self.largest, smallest)
            )
        return None


record = UsageRecord()


def report_at_exit(smallest: int) -> None:
    """Register a report of the verdict for the exit of this process. Only rank 0 reports, and only if
    torchrun started this process or if this process is the outermost process that imports torch. Other
    processes may be helpers that need no reducers."""
    own = str(os.getpid())
    outermost = os.environ.setdefault(_OUTERMOST, own) == own
    if os.environ.get("RANK", "0") != "0" or not (outermost or "TORCHELASTIC_RUN_ID" in os.environ):
        return

    def report() -> None:
        if own != str(os.getpid()) or multiprocessing.parent_process() is not None:
            return
        text = record.verdict(smallest)
        if text:
            process.report("idle", "the reducers were not used: " + text, "WARNING")

    atexit.register(report)


def _has_child_report() -> bool:
    """Return whether child processes have written to the replica's report file, or may have done so
    (torchrun)."""
    if "torch.distributed.run" in sys.modules:
        return True
    try:
        with open(os.environ.get(REPORT_FILE, ""), encoding="utf-8") as file:
            return bool(json.load(file)["notes"])
    except (OSError, ValueError, KeyError):
        return False
