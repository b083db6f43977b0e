"""Reports at a process's exit why it has not used its reducers."""

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
"""Id of the outermost process that imported torch, such as torchrun or a script that starts others."""


class UsageRecord:
    """The use of reducers by the process's groups."""

    def __init__(self) -> None:
        #: Whether some group may use reducers, and what the others were made with.
        self.is_served = False
        self.unserved: Set[str] = set()
        #: All ranks of a group have agreed to do without reducers, and have said why.
        self.is_refused = False
        #: Bytes of the largest all-reduce that the reducers could do, but for its size; -1: there was none.
        self.largest = -1

    def made(self, backend: str, world: int, served: bool) -> None:
        """Record a group by its arguments."""
        if served:
            self.is_served = True
        else:
            self.unserved.add("1 rank" if world == 1 else "backend {}".format(backend))

    def verdict(self, smallest: int) -> Optional[str]:
        """Return why the reducers are idle, or None if they are not or a report exists."""
        if self.is_refused:
            return None
        if not self.is_served and not self.unserved:
            if _others_have_used():
                return None
            if "horovod" in sys.modules:
                return "Horovod brings its own all-reduce, which does not know reducers; use PyTorch's DDP"
            return "the program made no process group of PyTorch's (torch.distributed)"
        if not self.is_served:
            return (
                "they serve groups of several ranks with backend gloo or nccl; "
                "this program made: {}".format(", ".join(sorted(self.unserved)))
            )
        if self.largest < 0:
            return (
                "the program summed nothing with all-reduce; reduce-scatter and all-gather (FSDP, ZeRO) gain "
                "nothing from reducers and are native"
            )
        if self.largest < smallest:
            return (
                "its largest all-reduce has {} bytes, and below {} the native way is faster "
                "(TRAINSHED_REDUCTION_MIN_BYTES; larger buckets: "
                "DistributedDataParallel(bucket_cap_mb=64))".format(self.largest, smallest)
            )
        return None


record = UsageRecord()


def report_at_exit(smallest: int) -> None:
    """Report the verdict at exit. Only rank 0 reports, in the outermost process that imports torch or in
    those of torchrun, because other processes may be helpers without reducers."""
    own = str(os.getpid())
    outermost = os.environ.setdefault(_OUTERMOST, own) == own
    if os.environ.get("RANK", "0") != "0" or not (outermost or "TORCHELASTIC_RUN_ID" in os.environ):
        return

    def report() -> None:
        if own != str(os.getpid()) or multiprocessing.parent_process() is not None:
            return
        text = record.verdict(smallest)
        if text:
            process.tell("idle", "the reducers were not used: " + text, "WARNING")

    atexit.register(report)


def _others_have_used() -> bool:
    """Whether processes started from here have reported in the replica's file, or may have (torchrun)."""
    if "torch.distributed.run" in sys.modules:
        return True
    try:
        with open(os.environ.get(REPORT_FILE, ""), encoding="utf-8") as file:
            return bool(json.load(file)["notes"])
    except (OSError, ValueError, KeyError):
        return False
