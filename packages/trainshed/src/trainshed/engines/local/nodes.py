"""Tracks which virtual nodes answer: one whose every shim is silent counts as gone until none of its replicas
lives.

A single node is never gone: it is the machine that the service itself runs on.
"""

import os
import signal
from collections.abc import Callable, Iterable, Sequence

from trainshed.engines.local.slot_handle import SlotHandle
from trainshed.engines.port import EngineUnavailable, NodeChanged, NodeState
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal


class Nodes:
    """The states of the virtual nodes. `emit`: called with every change."""

    def __init__(self, emit: Callable[[NodeChanged], None]) -> None:
        self._emit = emit
        self._names: frozenset[str] = frozenset()
        self._left: dict[str, set[SlotHandle]] = {}
        self._cut_off: dict[str, list[tuple[int, int]]] = {}

    def begin(self, names: Iterable[str]) -> None:
        """Called at the start with the nodes' names; all of them are up."""
        self._names = frozenset(names)

    def require(self, names: Iterable[str]) -> None:
        """Raise EngineUnavailable if one of these nodes is gone or cut off, so that nothing can be started
        there."""
        for name in names:
            if name in self._left or name in self._cut_off:
                raise EngineUnavailable(
                    f"node {name} does not answer; name another one, or wait until it is back"
                )

    def silent(
        self, late: Sequence[SlotHandle], quiet: Sequence[SlotHandle], live: Sequence[SlotHandle]
    ) -> set[SlotHandle]:
        """Note silent shims: of the `live` slots, the leases of `late` are over and those of `quiet` nearly.
        Returns the slots whose shims are given up: `late`, and all of a node's whose every shim is silent."""
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
        """Called once nothing of an evicted replica lives any more."""
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
        """Continue those shims that `cut_off` stopped and that still live."""
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
    """Signal a process by id and start time; return False if it no longer exists."""
    pid, since = process
    if not since or not protocol.is_process(pid, since):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
