"""The Kubernetes engine compared with manually created Pods, on a real cluster of two nodes on this machine
(`tests.kubernetes.lab`).

`python -m bench.kubernetes` starts the cluster and a service on it. In turn with the service, it creates
single Pods and whole gangs of Pods, which run the same statement with the Python of the image. It prints each
result immediately after the measurement. It requires the same tools as the lab, and reports missing ones.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import ssl
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.running import CACHE, Service, container_job
from tests.kubernetes.lab import ADMIN, IMAGE, KubernetesLab, unavailable_reason
from tests.kubernetes.services import MEMORY_MIB, configure, service_on
from tests.slurm.nodes import HUB, until

from bench import measures, report, restarts
from bench.measures import Connection, Row, median, medians, within
from bench.slurm import above

WARM_UP_ROUNDS = 1
"""Warm-up rounds whose times do not count."""
GANG = 16
IN_PLACE = 100.0
CALLS = 3.0
"""Budgets: milliseconds of a start, and API calls per Pod."""
_PODS = "/api/v1/namespaces/default/pods"
_HEADERS = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
_BEGUN = ("running", "terminated")
"""API states of a container whose program may have written its line."""
_STAYING = f"{measures.STAMP}; import signal; signal.pause()"
"""The program of a gang's replicas. The replicas run until all have started, and are then stopped."""


@dataclass
class ByHand:
    """Creates Pods over one API connection, and follows them with a watch, as `kubectl get --watch` does."""

    lab: KubernetesLab
    _numbers: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self._api = self._connect()

    def start(self, count: int, **shape: bool) -> float:
        """Return the milliseconds until the last Pod has run its first statement. `shape`: the arguments of
        `_manifest`."""
        mark = f"bare-{next(self._numbers)}"
        names = [f"{mark}-{n}" for n in range(count)]
        program = measures.STAMP if count == 1 else _STAYING
        begun = time.time_ns()
        for name in names:
            self._call("POST", _PODS, _manifest(name, mark, program, **shape))
        stamps = [self._stamp(name) for name in self._started_pods(mark, count)]
        for name in names:
            self._call("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0})
        return (max(stamps) - begun) / 1e6

    def _started_pods(self, mark: str, count: int) -> Iterator[str]:
        """Yield the names of Pods as soon as their containers run, or have run."""
        yielded: set[str] = set()
        with contextlib.closing(self._connect()) as api:
            api.request("GET", f"{_PODS}?watch=true&labelSelector=bench%3D{mark}", None, _HEADERS)
            answer = api.getresponse()
            while len(yielded) < count:
                pod = json.loads(answer.readline())["object"]
                name, states = pod["metadata"]["name"], pod["status"].get("containerStatuses", ())
                if name not in yielded and any(kind in state["state"] for state in states for kind in _BEGUN):
                    yielded.add(name)
                    yield name

    def _stamp(self, name: str) -> int:
        for _ in until(f"the line of Pod {name}", 120):
            status, log = self._call("GET", f"{_PODS}/{name}/log")
            if status == 200 and log.strip().isdigit():
                return int(log)
        raise AssertionError

    def _connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(self.lab.address(HUB), 6443, context=context, timeout=120)

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body)
        self._api.request(method, path, content, _HEADERS)
        answer = self._api.getresponse()
        return answer.status, answer.read()


def _manifest(name: str, mark: str, program: str, *, token: bool = True, shm: bool = False) -> dict[str, Any]:
    """Return a Pod manifest as `kubectl run` creates it, with a mounted account token.

    `token`: whether to mount the token and its volume. `shm`: whether to provide more than 64 MiB of shared
    memory, which training with loader processes requires.
    """
    container: dict[str, Any] = {
        "name": "bare",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", program],
        "resources": {"requests": {"cpu": "40m", "memory": f"{MEMORY_MIB + 256}Mi"}},
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": token,
        "containers": [container],
    }
    if shm:
        container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
        spec["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    metadata = {"name": name, "labels": {"bench": mark}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def measure(rounds: int, gangs: int) -> list[Row]:
    """Measure `rounds` single starts and `gangs` starts of gangs; 0 = none. Without a cluster, print a note
    and return no rows."""
    if reason := unavailable_reason():
        print(f"bench: kubernetes is SKIPPED: {reason}", file=sys.stderr, flush=True)
        return []
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as name:
        directory = Path(name)
        _log("starting the cluster")
        with KubernetesLab(directory / "lab") as lab:
            config = configure(lab, directory / "service", overcommit=100.0)
            with service_on(lab, config) as service:
                # This start comes first, because it sends the environments of programs to all nodes.
                rows = [
                    *([_gangs(lab, service, gangs)] if gangs else []),
                    *_starts(lab, service, rounds),
                    _again(lab, service, rounds),
                    _calls(lab),
                ]
                _log("stopping the cluster")
        return rows


def _log(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} load {os.getloadavg()[0]:4.1f}: {what}", flush=True)


def _one(lab: KubernetesLab, what: str, start: Callable[[], float]) -> Callable[[], float]:
    """Wait until everything that ran before is cleaned up. Then measure a start and print it."""

    def settled() -> float:
        lab.clear()
        took = start()
        _log(f"{what}: {took:.0f} ms")
        return took

    return settled


def _measure_in_turn(rounds: int, *starts: Callable[[], float]) -> Iterator[list[float]]:
    """Measure each start in turn. Return the times without the warm-up rounds."""
    spans = measures.measure_interleaved(rounds + WARM_UP_ROUNDS, *starts)
    return (values[WARM_UP_ROUNDS:] for values in spans)


def _starts(lab: KubernetesLab, service: Service, rounds: int) -> list[Row]:
    by_hand = ByHand(lab)
    plain, with_shm, without, ours = _measure_in_turn(
        rounds,
        _one(lab, "a Pod of kubectl run", lambda: by_hand.start(1)),
        _one(lab, "a Pod with a volume at /dev/shm", lambda: by_hand.start(1, shm=True, token=False)),
        _one(lab, "a Pod without any volume", lambda: by_hand.start(1, token=False)),
        # A new connection, because the service closed connections that were idle while old kubelets removed
        # their Pods.
        _one(lab, "a job", lambda: measures.first_line(Connection(service))[0]),
    )
    return [
        above("submit → first line, p50, against a Pod of `kubectl run`", ours, plain),
        above("the same, against a Pod with only a volume at /dev/shm", ours, with_shm),
        above("the same, against a Pod without any volume", ours, without),
    ]


def _gangs(lab: KubernetesLab, service: Service, rounds: int) -> Row:
    by_hand = ByHand(lab)
    bare, gang = _measure_in_turn(
        rounds,
        _one(lab, f"{GANG} Pods of kubectl run", lambda: by_hand.start(GANG)),
        _one(lab, f"a gang of {GANG}", lambda: _gang(service)),
    )
    name = f"{GANG} replicas on 2 nodes all started, p50, against {GANG} Pods of kubectl run"
    return medians(name, gang, bare)


def _gang(service: Service) -> float:
    """Return the milliseconds until the last replica has run its first statement."""
    connection = Connection(service)
    begun = time.time_ns()
    job = connection.submit(container_job(_STAYING, pools=(1, GANG - 1)))
    stamps: list[int] = []
    for message in connection.messages(job):
        if message.isdigit():
            stamps.append(int(message))
        if len(stamps) == GANG:
            Connection(service).call("POST", f"/trainshed/v1/jobs/{job}:cancel")
            break
    if len(stamps) != GANG:
        why = Connection(service).call("GET", f"/trainshed/v1/jobs/{job}/timeline")
        raise RuntimeError(f"{len(stamps)} of {GANG} replicas wrote their line: {why}")
    return (max(stamps) - begun) / 1e6


def _again(lab: KubernetesLab, service: Service, rounds: int) -> Row:
    by_hand = ByHand(lab)
    plain, in_place = _measure_in_turn(
        rounds,
        _one(lab, "a Pod of kubectl run", lambda: by_hand.start(1)),
        _one(lab, "a worker in place", lambda: restarts.restart(service)),
    )
    name = "worker killed → first line of its next incarnation, p50, against a new Pod"
    return within(name, median(in_place), median(plain), IN_PLACE)


def _calls(lab: KubernetesLab) -> Row:
    """Return the number of the service's requests that the API server has counted."""
    counts = Counter(lab.api_calls("httpx"))
    own = sum(count for what, count in counts.items() if what.partition(" ")[2].startswith("pods"))
    per_pod = (own - counts["list pods"] - counts["watch pods"]) / counts["create pods"]
    name = "calls of the API for each Pod over its life, besides watches and lists"
    return Row(name, f"{per_pod:.2f}", "", target=f"≤ {CALLS:g}", held=per_pod <= CALLS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of single starts")
    parser.add_argument("--gangs", type=int, default=2, help="rounds of gangs; 0 = none")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = measure(options.rounds, options.gangs)
    print(f"load {load:.1f} before the run, {os.getloadavg()[0]:.1f} after it")
    return report.tell(rows)


if __name__ == "__main__":
    sys.exit(main())
