"""What a reducer has done and what it waited for: of one process, and of all of them together."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Union

Numbers = Dict[str, Union[int, List[float]]]
_WAIT = "wait_seconds"
_SAME_EVERYWHERE = ("operations", "connections")
"""Every process takes part in every operation of every worker."""


class Counters:
    """Of one process, since its start; the last three are as of now."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0
        self.operations = 0
        self.chunks = 0
        self.resets = 0
        """How often a group began again because a connection broke."""
        self.refused = 0
        self.connections = 0
        self.chunks_in_flight = 0
        self.pending_bytes = 0
        self._wait: List[float] = []

    def waited(self, rank: int, seconds: float) -> None:
        """Of a group's time, when that rank alone was missing."""
        if rank >= len(self._wait):
            self._wait.extend([0.0] * (rank + 1 - len(self._wait)))
        self._wait[rank] += seconds

    def snapshot(self) -> Numbers:
        numbers: Numbers = {name: value for name, value in vars(self).items() if name[0] != "_"}
        numbers[_WAIT] = [round(each, 3) for each in self._wait]
        return numbers


def total(snapshots: "Iterable[Mapping[str, Union[int, List[float]]]]") -> Numbers:
    """Of all processes: counts add up; what each sees of the same thing is counted once."""
    numbers: Numbers = {}
    wait: List[float] = []
    for snapshot in snapshots:
        for name, value in snapshot.items():
            if isinstance(value, list):
                wait += [0.0] * (len(value) - len(wait))
                for rank, seconds in enumerate(value):
                    wait[rank] = round(wait[rank] + seconds, 3)
                continue
            known = numbers.get(name, 0)
            assert isinstance(known, int)
            numbers[name] = max(known, value) if name in _SAME_EVERYWHERE else known + value
    numbers[_WAIT] = wait
    return numbers
