"""Cuts a node of the local engine off, as if its cable were cut: its shims stop, and programs run on."""

import os
import signal
from pathlib import Path

from trainshed.engines.local.layout import Layout
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal

Shims = list[tuple[int, int]]
"""(process, when it started) of each."""


def cut_off(data: Path, node: str) -> Shims:
    """Stop the shims of a node, and return them."""
    layout = Layout(data)
    stopped: Shims = []
    for attempt in layout.attempts():
        for slot in layout.read(*attempt):
            shim = journal.Entries(str(layout.attempt(*attempt) / str(slot.replica))).shim
            if slot.node == node and _signal(shim, signal.SIGSTOP):
                stopped.append(shim)
    return stopped


def rejoin(shims: Shims) -> None:
    """Continue those that still live."""
    for shim in shims:
        _signal(shim, signal.SIGCONT)


def _signal(shim: tuple[int, int], number: int) -> bool:
    is_there = bool(shim[1]) and protocol.is_process(*shim)
    if is_there:
        os.kill(shim[0], number)
    return is_there
