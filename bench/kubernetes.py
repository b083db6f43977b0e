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
from collections import Counter
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
CALLS = 3.0
"""What is promised: ms above the floor, ratio, ms, calls of a Pod (issue 20, point 6)."""
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

    def start(self, count: int, hold: float = 0.0, *, shm: bool = False) -> float:
        """Milliseconds until the last of them has run its first statement. `shm`: with more than 64 MiB of
        shared memory, which is a volume."""
        names = [f"bare-{next(self._numbers)}" for _ in range(count)]
        begun = time.time_ns()
        for name in names:
            self._call("POST", _PODS, _bare(name, hold, shm=shm))
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


def _bare(name: str, hold: float, *, shm: bool) -> dict[str, Any]:
    script = f"{measures.STAMP}\ntime.sleep({hold})" if hold else measures.STAMP
    container: dict[str, Any] = {
        "name": "bare",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", script],
        "resources": {"requests": {"cpu": "40m", "memory": f"{MEMORY_MIB + 256}Mi"}},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if shm:
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
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
                rows = [*_starts(lab, service, rounds), *_again(lab, service, rounds)]
                return [*rows, _calls(lab)]


def _settled(lab: KubernetesLab, one: Callable[[], float]) -> float:
    """Once nothing is left of what was before it."""
    for _ in until("the end of all Pods", 120):
        if not lab.get("pods")["items"]:
            break
    return one()


def _starts(lab: KubernetesLab, service: Service, rounds: int) -> list[Row]:
    by_hand = ByHand(lab)
    bare, with_volume, ours, bare_gang, gang = (
        values[FORGIVEN:]
        for values in measures.interleaved(
            rounds + FORGIVEN,
            lambda: _settled(lab, lambda: by_hand.start(1)),
            lambda: _settled(lab, lambda: by_hand.start(1, shm=True)),
            # The service ends connections that were idle while old kubelets cleared their Pods away.
            lambda: _settled(lab, lambda: measures.first_line(Connection(service))[0]),
            lambda: _settled(lab, lambda: by_hand.start(GANG, _HOLD)),
            lambda: _settled(lab, lambda: measures.together(Connection(service), GANG, 3 * _HOLD)),
        )
    )
    many = f"{GANG} replicas on 2 nodes all started, p50, against {GANG} bare Pods"
    return [
        above("submit → first line, p50, against a bare Pod", ours, bare, FIRST),
        above("the same, against a bare Pod with a volume at /dev/shm", ours, with_volume, FIRST),
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


def _calls(lab: KubernetesLab) -> Row:
    """As the API server has counted those of the service."""
    asked = Counter(lab.asked("httpx"))
    own = sum(count for what, count in asked.items() if what.split()[0] not in ("watch", "list"))
    each = own / asked["create pods"]
    name = "calls of the API for each Pod over its life, besides watches and lists"
    return Row(name, f"{each:.2f}", "", target=f"≤ {CALLS:g}", held=each <= CALLS)


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
