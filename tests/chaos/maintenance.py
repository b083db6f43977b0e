"""Random maintenance of nodes during a chaos run."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.chaos.victim import Refused, Span, Unreachable, Victim

_NODES: Final = "/trainshed/v1/nodes"
_LEAVES: Final = 60.0
"""Seconds within which a drained node must be empty, including kills of the service."""


class Maintenance:
    """Drains one of the nodes `local-0`, `local-1`, … at a time, rarely all, until `close`. Records each with
    `tell`.
    """

    def __init__(self, victim: Victim, nodes: int, seed: int, tell: Callable[..., None]) -> None:
        self.drains: list[Span] = []
        self.trouble: list[str] = []
        self._victim = victim
        self._nodes = [f"local-{number}" for number in range(nodes)]
        self._chance = random.Random(seed + 2)
        self._tell = tell
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Does nothing with a single node."""
        if len(self._nodes) > 1:
            self._thread.start()

    def close(self) -> None:
        """Enable all nodes again before returning."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check_empty(self) -> None:
        """Check that no allocation remains after the end of all jobs."""
        for node in self._look():
            if node["replicas"] or node["usedVcpus"]:
                self.trouble.append(f"all is over, and {node['name']} has {node['replicas']}")

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._chance.uniform(0.5, 3)):
                if self._chance.random() < 0.1:
                    self._drain(self._nodes, until_left=False)
                else:
                    node = self._chance.choice(self._nodes)
                    self._drain([node], until_left=self._chance.random() < 0.3)
        except (Refused, Unreachable, OSError) as failure:
            self.trouble.append(f"maintenance: {failure!r}")

    def _drain(self, nodes: Sequence[str], *, until_left: bool) -> None:
        began = time.time_ns()
        with self._drained(nodes):
            if until_left:
                self._wait_until_left(nodes[0])
            else:
                self._closing.wait(self._chance.uniform(0.1, 2))
            self._look(drained=nodes)
        ended = time.time_ns()
        self.drains += [Span(began, ended)]
        self._tell("drained", nodes=nodes, began=began, until_left=until_left)

    @contextmanager
    def _drained(self, nodes: Sequence[str]) -> Any:
        for node in nodes:
            self._victim.insist("POST", f"{_NODES}/{node}:drain", {"reason": "chaos"})
        try:
            yield
        finally:
            for node in nodes:
                self._victim.insist("POST", f"{_NODES}/{node}:undrain", {})

    def _wait_until_left(self, name: str) -> None:
        until = time.monotonic() + _LEAVES
        left: Any = None
        while time.monotonic() < until:
            left = next(node["replicas"] for node in self._look([name]) if node["name"] == name)
            if not left:
                return
            time.sleep(0.2)
        self.trouble.append(f"{name} is drained for {_LEAVES:g} s and still has {left}")

    def _look(self, drained: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Check all nodes: a drain survives a restart of the service, and no node exceeds its capacity."""
        answer, _ = self._victim.insist("GET", _NODES)
        for node in answer["nodes"]:
            if (node["condition"] == "DRAINED") is not (node["name"] in drained):
                self.trouble.append(f"{node['name']} is {node['condition']}; drained: {drained}")
        return answer["nodes"]
