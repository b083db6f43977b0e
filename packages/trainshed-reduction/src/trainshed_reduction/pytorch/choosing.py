"""Chooses between reducers and the native backend for one group: measures both, and exchanges measurements.

The ranks exchange them by an operation of the reducers, in its place among the others: so a reducer that is
lost meanwhile, or a rank that is slow or gone, is dealt with as in any operation, and all ranks choose alike
at the same one.
"""

from __future__ import annotations

import array
import threading
import time
from typing import Callable, Optional

import torch
import torch.distributed as dist

from trainshed_reduction import process
from trainshed_reduction.client.choice import GAIN, NATIVE, Choice, Measured, Outcome, Stopwatch
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.pytorch.work import issue
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import DType, Reduction

Natively = Callable[[], dist.Work]
"""Hands an operation to the native backend, as the program without reducers would have."""


def may_choose(settings: Settings, device: str) -> bool:
    """Whether this rank would measure: not where the program or the job says how sums are to be made, and not
    for GPUs, since only a GPU knows when its native operations begin and end. The ranks have to agree on
    it."""
    is_free = settings.mode == "auto" and device == "cpu"
    return is_free and not torch.are_deterministic_algorithms_enabled()


class Chooser:
    """Sends each operation the way that was chosen. Operations come in the same order on all ranks."""

    def __init__(self, communicator: Communicator, rank: int, world: int, is_aloud: bool) -> None:
        """`is_aloud`: this rank reports what is chosen, or logs it where the service reads no report."""
        self._communicator = communicator
        self._rank = rank
        self._world = world
        self._is_aloud = is_aloud
        self._told = 0
        self._lock = threading.Lock()
        self._choice = Choice()
        self._watch = Stopwatch()

    def allreduce(
        self, tensor: torch.Tensor, reduction: Reduction, ordinal: int, natively: Natively
    ) -> Optional[dist.Work]:
        """Begin an all-reduce in place. None: no reducer is left. Raises ReductionFailed, and whatever
        `natively` does."""
        nbytes = tensor.numel() * tensor.element_size()
        with self._lock:
            if self._choice.next(nbytes) and not self._compare(ordinal):
                return None
            way = self._choice.current
            self._watch.began(self._choice.period, way, nbytes, time.monotonic())
            work: Optional[dist.Work] = None
            try:
                if way.is_native:
                    work = natively()
                    work.get_future().add_done_callback(self._ended)
                else:
                    begun = issue(self._communicator, tensor, reduction, ordinal, way.rate)
                    if begun is not None:
                        begun.operation.add_done_callback(self._ended)
                    work = begun
            finally:
                if work is None:
                    self._ended()
        return work

    def _ended(self, _: object = None) -> None:
        self._watch.ended(time.monotonic())

    def _compare(self, ordinal: int) -> bool:
        """Exchange measurements, and choose by them; False: no reducer is left. Raises ReductionFailed."""
        ways = self._choice.ways
        numbers = array.array("q", bytes(8 * 2 * len(ways) * self._world))
        own = self._watch.measured(ways)
        for at, measured in enumerate(own, self._rank * len(ways)):
            numbers[2 * at], numbers[2 * at + 1] = measured
        operation = self._communicator.issue(
            memoryview(numbers).cast("B"), DType.INT64, Reduction.SUM, ordinal
        )
        if operation is None:
            return False
        operation.wait()
        pairs = [Measured(*numbers[at : at + 2]) for at in range(0, len(numbers), 2)]
        reports = [pairs[at : at + len(ways)] for at in range(0, len(pairs), len(ways))]
        outcome = self._choice.compare(reports)
        if self._is_aloud and outcome is not None and (outcome.is_new or not self._told):
            self._told += 1
            name, severity = (
                ("native", "WARNING") if outcome.way.is_native else ("reducers", "INFO")
            )
            process.tell("chosen {} {}".format(name, self._told), said(outcome), severity)
        return True


def said(outcome: Outcome) -> str:
    """Describe the outcome in a line, for people."""
    way, native = outcome.way, outcome.costs[NATIVE]
    reducers = min(cost for known, cost in outcome.costs.items() if not known.is_native)
    text = "measured: {} by the reducers".format(_speed(reducers))
    text += ", {} by the native all-reduce".format(_speed(native))
    if not way.is_native:
        return text + ": {:.2f} times as fast".format(native / outcome.costs[way])
    why = "{:.2f} times as fast".format(reducers / native)
    if reducers < native:
        why = "reducers are less than {:.0%} faster".format(GAIN)
    return text + (
        ", which is used from here on ({}); reducers are tried again now and then".format(why)
    )


def _speed(cost: int) -> str:
    """`cost`: picoseconds a byte."""
    return "{:.3g} MB/s".format(1e6 / cost)
