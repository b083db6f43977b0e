"""Which of the virtual nodes answer: one whose every shim is silent counts as gone until nothing of it is
left.

The machine that the service itself runs on answers by that; so a single node is never gone.
"""

import os
import signal
from collections.abc import Callable, Iterable, Sequence

from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.port import EngineUnavailable, NodeChanged, NodeState
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal


class Nodes:
    """`emit` is told of every change of a node."""

    def __init__(self, emit: Callable[[NodeChanged], None]) -> None:
        self._emit = emit
        self._names: frozenset[str] = frozenset()
        self._left: dict[str, set[SlotHandle]] = {}
        self._cut_off: dict[str, list[tuple[int, int]]] = {}

    def begin(self, names: Iterable[str]) -> None:
        """These are the nodes; all of them are up."""
        self._names = frozenset(names)

    def require(self, names: Iterable[str]) -> None:
        """Raises EngineUnavailable: one of these is gone or cut off, so nothing can be started there."""
        for name in names:
            if name in self._left or name in self._cut_off:
                raise EngineUnavailable(
                    f"node {name} does not answer; name another one, or wait until it is back"
                )

    def silent(
        self, late: Sequence[SlotHandle], quiet: Sequence[SlotHandle], live: Sequence[SlotHandle]
    ) -> set[SlotHandle]:
        """The leases of `late` are over, those of `quiet` about to be, of all that are `live`; returns those
        whose shims are given up: with the last of a node's, all of them."""
        given_up = set(late)
        if len(self._names) > 1:
            answering = {slot_handle.slot.node for slot_handle in set(live).difference(quiet)}
            for node in {slot_handle.slot.node for slot_handle in late} & self._names - answering:
                given_up.update(
                    slot_handle for slot_handle in live if slot_handle.slot.node == node
                )
                self._go(
                    node, [slot_handle for slot_handle in live if slot_handle.slot.node == node]
                )
        return given_up

    def cleared(self, slot_handle: SlotHandle) -> None:
        """Nothing of a replica lives any more."""
        for node, left in self._left.items():
            left.discard(slot_handle)
            if not left and self._come_back(node):
                return

    def cut_off(self, node: str, slot_handles: Sequence[SlotHandle]) -> None:
        """Stop the shims of a node, so that their leases run out; the programs go on as behind a cut cable.
        For tests and demonstrations. Blocks."""
        stopped = self._cut_off.setdefault(node, [])
        for slot_handle in slot_handles:
            shim = journal.Entries(str(slot_handle.directory)).shim
            if _signal(shim, signal.SIGSTOP):
                stopped.append(shim)
        if not slot_handles and len(self._names) > 1:
            self._go(node, [])

    def rejoin(self, node: str) -> None:
        """Let go on what is left of the shims that `cut_off` stopped."""
        for shim in self._cut_off.pop(node, []):
            _signal(shim, signal.SIGCONT)
        if node in self._left:
            self._come_back(node)

    def _go(self, node: str, slot_handles: Iterable[SlotHandle]) -> None:
        if node in self._left:
            self._left[node].update(slot_handles)
            return
        self._left[node] = set(slot_handles)
        cause = "none of its replicas' shims answers"
        self._emit(NodeChanged(node, NodeState.GONE, cause))

    def _come_back(self, node: str) -> bool:
        if self._left[node] or node in self._cut_off:
            return False
        del self._left[node]
        self._emit(NodeChanged(node, NodeState.UP, ""))
        return True


def _signal(process: tuple[int, int], number: int) -> bool:
    """Signal a process by id and start time; false if there is none any more."""
    pid, since = process
    if not since or not protocol.is_process(pid, since):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
