"""A complete service on the lab: `trainshed up` on the real machine, replicas in Pods."""

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.e2e.job_history import PRIMARY, JobHistory, history_of, timeline, until
from tests.e2e.processes import new_mark
from tests.e2e.running import Service, container_job, running, submit
from tests.kubernetes.conformance_lab import lab_settings
from tests.kubernetes.lab import KubernetesLab
from tests.slurm.nodes import until as asked_until

LEASE = 12.0
"""Seconds without contact after which an agent ends its programs."""
MEMORY_MIB = 400
"""Memory of a replica in MiB, for each machine type."""
_CACHE = "/tmp/trainshed-cache"
"""Directory on nodes for content, shared by Pods."""
_WAITING_PROGRAM = """
import time
from google.cloud import storage
gate = storage.Client().bucket('trainshed').blob({gate!r})
print('runs', flush=True)
while not gate.exists():
    time.sleep(0.1)
"""
"""A program that runs until the gate is open."""


def configure(lab: KubernetesLab, directory: Path, lines: str = "", **settings: Any) -> Path:
    """Create a directory with the service's configuration file, and return the file. `lines`: top-level
    settings. `settings`: of `[engines.kubernetes]`, in addition to the lab's."""
    directory.mkdir(parents=True)
    own = {**lab_settings(lab), "lease": LEASE, "run_as": 0, "cache": _CACHE, **settings}
    config = directory / "config.toml"
    # Numbers, strings and booleans have the same syntax in JSON and TOML.
    table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in own.items())
    config.write_text(
        f'engine = "kubernetes"\nmemory_per_replica = {MEMORY_MIB}\n{lines}\n[engines.kubernetes]\n{table}\n'
    )
    return config


@contextlib.contextmanager
def service_on(lab: KubernetesLab, config: Path) -> Generator[Service]:
    """Run a service with such a configuration. Check that it leaves nothing in the cluster."""
    with running(config.parent / "data", "--config", str(config)) as started:
        yield started
    for _ in asked_until("the end of its Pods", 60):
        if not lab.get("pods", "-l", "app.kubernetes.io/managed-by=trainshed")["items"]:
            return


class Site:
    """The service, and the cluster of its Pods."""

    def __init__(self, lab: KubernetesLab, service: Service) -> None:
        self.lab = lab
        self.service = service
        #: Gate of the last waiting job: an object of the bucket.
        self.gate = ""

    def start_waiting_job(self) -> str:
        """Start a job that runs until it is released, and return its id."""
        self.gate = new_mark()
        job_id = submit(self.service, container_job(_WAITING_PROGRAM.format(gate=self.gate)))
        until(self.service.follow(job_id, PRIMARY), "runs")
        return job_id

    def finish_job(self, job_id: str) -> JobHistory:
        """Release the last job and wait for its end."""
        self.service.put("trainshed", self.gate, b"open")
        history = history_of(self.service, job_id)
        assert history.state == "SUCCEEDED", history.public
        return history

    def await_timeline_entry(self, job_id: str, words: str) -> str:
        """Wait for a timeline entry with these words, and return it."""
        for _ in asked_until(f"{words!r} on the timeline", 90):
            for entry in timeline(self.service, job_id):
                if words in entry["message"]:
                    return entry["message"]
        raise AssertionError


def await_condition(service: Service, node: str, condition: str) -> None:
    """Wait for a condition of a node, as reported by the service."""
    for _ in asked_until(f"{node}: {condition}", 60):
        views = service.call("GET", "/trainshed/v1/nodes")["nodes"]
        if next(view for view in views if view["name"] == node)["condition"] == condition:
            return


def clean_up(lab: KubernetesLab, service: Service) -> None:
    """Clean up after a test: the cluster is empty, and the service reports all of its nodes as ready."""
    lab.await_ready()
    lab.clear()
    for node in lab.nodes:
        await_condition(service, node, "READY")
