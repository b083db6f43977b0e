"""The Kubernetes engine beside plain Pods, on a real cluster of two nodes on this machine
(`tests.kubernetes.lab`).

`python -m bench.kubernetes` starts the cluster and a service on it, and makes Pods by hand in turn with it:
one, and as many as a gang has, which run the same statement by the Python of the image. Needs what the lab
needs; says so otherwise.
"""

import argparse
import http.client
import itertools
import json
import os
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.running import CACHE, Service
from tests.kubernetes.lab import ADMIN, IMAGE, KubernetesLab, why_not
from tests.kubernetes.whole import MEMORY_MIB, configure, service_on
from tests.slurm.nodes import HUB, until

from bench import measures, report, restarts
from bench.measures import Connection, Row
from bench.slurm import above, bounded

FORGIVEN = 1
"""Rounds at the start whose times do not count."""
GANG = 16
FIRST, GANG_RATIO, IN_PLACE = 60.0, 1.3, 100.0
"""What is promised: ms above the floor, ratio, ms (issue 20, point 6)."""
_HOLD = 3.0
"""Seconds for which a gang's replicas stay up until all have started."""
_PODS = "/api/v1/namespaces/default/pods"


@dataclass
class ByHand:
    """Plain Pods, by one connection to the API."""

    lab: KubernetesLab
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        address = self.lab.address(HUB)
        self._api = http.client.HTTPSConnection(address, 6443, context=context, timeout=60)

    def start(self, count: int, hold: float = 0.0) -> float:
        """Milliseconds until the last of them has run its first statement."""
        names = [f"bare-{next(self._numbers)}" for _ in range(count)]
        begun = time.time_ns()
        for name in names:
            self._call("POST", _PODS, _bare(name, hold))
        stamps = [self._stamp(name) for name in names]
        for name in names:
            self._call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
        return (max(stamps) - begun) / 1e6

    def _stamp(self, name: str) -> int:
        for _ in until(f"the line of Pod {name}", 120):
            status, said = self._call("GET", f"{_PODS}/{name}/log")
            if status == 200 and said.strip().isdigit():
                return int(said)
        raise AssertionError

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        self._api.request(method, path, content, headers)
        answer = self._api.getresponse()
        return answer.status, answer.read()


def _bare(name: str, hold: float) -> dict[str, Any]:
    script = f"{measures.STAMP}\ntime.sleep({hold})" if hold else measures.STAMP
    container = {
        "name": "bare",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", script],
        "resources": {"requests": {"cpu": "40m", "memory": f"{MEMORY_MIB + 256}Mi"}},
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def measure(rounds: int) -> list[Row]:
    """None, with a note, where there can be no such cluster."""
    if reason := why_not():
        print(f"bench: kubernetes is SKIPPED: {reason}", file=sys.stderr, flush=True)
        return []
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as name:
        directory = Path(name)
        with KubernetesLab(directory / "lab") as lab:
            config = configure(lab, directory / "service", overcommit=100.0)
            with service_on(lab, config) as service:
                return [*_starts(lab, service, rounds), *_again(lab, service, rounds)]


def _settled(lab: KubernetesLab, one: Callable[[], float]) -> float:
    """Once nothing is left of what was before it."""
    for _ in until("the end of all Pods", 120):
        if not lab.get("pods")["items"]:
            break
    return one()


def _starts(lab: KubernetesLab, service: Service, rounds: int) -> list[Row]:
    connection, by_hand = Connection(service), ByHand(lab)
    bare, ours, bare_gang, gang = (
        values[FORGIVEN:]
        for values in measures.interleaved(
            rounds + FORGIVEN,
            lambda: _settled(lab, lambda: by_hand.start(1)),
            lambda: _settled(lab, lambda: measures.first_line(connection)[0]),
            lambda: _settled(lab, lambda: by_hand.start(GANG, _HOLD)),
            lambda: _settled(lab, lambda: measures.together(connection, GANG, 3 * _HOLD)),
        )
    )
    many = f"{GANG} replicas on 2 nodes all started, p50, against {GANG} bare Pods"
    return [
        above("submit → first line, p50, against a bare Pod", ours, bare, FIRST),
        restarts.row(many, gang, bare_gang, GANG_RATIO),
    ]


def _again(lab: KubernetesLab, service: Service, rounds: int) -> list[Row]:
    by_hand = ByHand(lab)
    bare, in_place = (
        values[FORGIVEN:]
        for values in measures.interleaved(
            rounds + FORGIVEN,
            lambda: _settled(lab, lambda: by_hand.start(1)),
            lambda: _settled(lab, lambda: restarts.restart(service)),
        )
    )
    name = "worker killed → first line of its next incarnation, p50, against a new Pod"
    return [bounded(name, in_place, bare, IN_PLACE)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each start")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(options.rounds)
    print(f"load {load:.1f} before the run, {os.getloadavg()[0]:.1f} after it")
    return report.tell(found)


if __name__ == "__main__":
    sys.exit(main())
