"""Tracks how far sending content to nodes has come, and describes it."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Set

from trainshed.core.capacity import Delay, WaitReason
from trainshed_cluster.remote.content.manifest import Unit

_MB = 10**6
_NAMED = 3
"""So many nodes are named."""


class Sending:
    """The units that one agent may fetch, and how much of them was sent."""

    def __init__(self) -> None:
        #: Bytes of each unit that it may fetch, by path.
        self._sizes: dict[str, int] = {}
        #: Bytes that were sent of each requested unit.
        self._sent: dict[str, int] = {}

    @property
    def granted(self) -> Set[str]:
        """Paths of the units that it may fetch."""
        return self._sizes.keys()

    @property
    def bytes(self) -> tuple[int, int]:
        """Return (bytes sent, bytes in all) of the units that it has requested. It does not request units
        that it has already."""
        sent = sum(min(count, self._sizes[path]) for path, count in self._sent.items())
        return sent, sum(self._sizes[path] for path in self._sent)

    def grant(self, units: Iterable[Unit]) -> None:
        """Let it fetch these units from now on."""
        self._sizes |= {unit.path: unit.bytes for unit in units}

    @contextlib.contextmanager
    def underway(self, path: str) -> Generator[Callable[[int], None]]:
        """Context in which a unit is being sent; yields a function that counts sent bytes."""
        if path in self._sizes:
            self._sent[path] = 0

        def more(count: int) -> None:
            if path in self._sent:
                self._sent[path] += count

        yield more


def delay_of_sending(nodes: Mapping[str, Sending]) -> Delay:
    """Return the delay to report while these nodes, by name, are sent content."""
    underway = {
        node: sending.bytes
        for node, sending in nodes.items()
        if sending.bytes[0] < sending.bytes[1]
    }
    if not underway:
        return Delay(
            WaitReason.CONTENT,
            f"What the programs need is being made ready on {_in_words(list(nodes))}",
        )
    sent = sum(so_far for so_far, _ in underway.values())
    whole = sum(size for _, size in underway.values())
    return Delay(
        WaitReason.CONTENT,
        f"The environment is being sent to {_in_words(list(underway))}: {_megabytes(sent)} of "
        f"{_megabytes(whole)} MB",
    )


def _in_words(nodes: list[str]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f"{len(nodes)} nodes ({', '.join(nodes[:_NAMED])}{more})"


def _megabytes(count: int) -> str:
    return f"{count // _MB:,}"
