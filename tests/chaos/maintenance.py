"""Random maintenance of nodes during a chaos run."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tests.chaos.victim import RequestRejected, Span, Unreachable, Victim

_NODES: Final = "/trainshed/v1/nodes"
_LEAVES: Final = 60.0
"""Seconds within which a drained node must be empty, including kills of the service."""


class Maintenance:
    """Drains one of the nodes `local-0`, `local-1`, … at a time, rarely all of them, until `close`.

    It records each drain by calling `tell`.
    """

    def __init__(self, victim: Victim, nodes: int, seed: int, tell: Callable[..., None]) -> None:
        self.drains: list[Span] = []
        self.faults_found: list[str] = []
        self._victim = victim
        self._nodes = [f"local-{number}" for number in range(nodes)]
        self._chance = random.Random(seed + 2)
        self._tell = tell
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        """Start to drain nodes, if the service has several."""
        if len(self._nodes) > 1:
            self._thread.start()

    def close(self) -> None:
        """Enable all nodes again before returning."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def check_empty(self) -> None:
        """Check that no allocation remains after the end of all jobs."""
        for node in self._check_nodes():
            if node["replicas"] or node["usedVcpus"]:
                self.faults_found.append(f"all is over, and {node['name']} has {node['replicas']}")

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._chance.uniform(0.5, 3)):
                if self._chance.random() < 0.1:
                    self._drain(self._nodes, until_left=False)
                else:
                    node = self._chance.choice(self._nodes)
                    self._drain([node], until_left=self._chance.random() < 0.3)
        except (RequestRejected, Unreachable, OSError) as failure:
            self.faults_found.append(f"maintenance: {failure!r}")

    def _drain(self, nodes: Sequence[str], *, until_left: bool) -> None:
        began = time.time_ns()
        with self._keep_drained(nodes):
            if until_left:
                self._wait_until_left(nodes[0])
            else:
                self._closing.wait(self._chance.uniform(0.1, 2))
            self._check_nodes(drained=nodes)
        ended = time.time_ns()
        self.drains += [Span(began, ended)]
        self._tell("drained", nodes=nodes, began=began, until_left=until_left)

    @contextmanager
    def _keep_drained(self, nodes: Sequence[str]) -> Any:
        for node in nodes:
            self._victim.call_with_retries("POST", f"{_NODES}/{node}:drain", {"reason": "chaos"})
        try:
            yield
        finally:
            for node in nodes:
                self._victim.call_with_retries("POST", f"{_NODES}/{node}:undrain", {})

    def _wait_until_left(self, name: str) -> None:
        until = time.monotonic() + _LEAVES
        left: Any = None
        while time.monotonic() < until:
            left = next(node["replicas"] for node in self._check_nodes([name]) if node["name"] == name)
            if not left:
                return
            time.sleep(0.2)
        self.faults_found.append(f"{name} is drained for {_LEAVES:g} s and still has {left}")

    def _check_nodes(self, drained: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Check all nodes: a drain survives a restart of the service, and no node exceeds its capacity."""
        answer, _ = self._victim.call_with_retries("GET", _NODES)
        for node in answer["nodes"]:
            if (node["condition"] == "DRAINED") is not (node["name"] in drained):
                self.faults_found.append(f"{node['name']} is {node['condition']}; drained: {drained}")
        return answer["nodes"]
