"""A whole service on the lab: `trainshed up` on the real machine, replicas in Pods."""

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.e2e.processes import new_mark
from tests.e2e.running import Service, container_job, running, submit
from tests.e2e.stories import PRIMARY, Story, story_of, timeline, until
from tests.kubernetes.conformance_lab import lab_settings
from tests.kubernetes.lab import KubernetesLab
from tests.slurm.nodes import until as asked_until

LEASE = 12.0
"""Seconds of silence after which an agent gives up."""
MEMORY_MIB = 400
"""Of a replica, whatever its machine type has."""
_CACHE = "/tmp/trainshed-cache"
"""On nodes: what Pods are sent, once for all."""
_STAYS = """
import time
from google.cloud import storage
gate = storage.Client().bucket('trainshed').blob({gate!r})
print('runs', flush=True)
while not gate.exists():
    time.sleep(0.1)
"""
"""A program that runs until the gate is open."""


def configure(lab: KubernetesLab, directory: Path, lines: str = "", **settings: Any) -> Path:
    """The file of its settings, in a directory that is made. `lines`: of the top. `settings`: of
    `[engines.kubernetes]`, besides what the lab asks for."""
    directory.mkdir(parents=True)
    own = {**lab_settings(lab), "lease": LEASE, "run_as": 0, "cache": _CACHE, **settings}
    config = directory / "config.toml"
    # Numbers, texts and truths of JSON are those of TOML.
    table = "\n".join(f"{name} = {json.dumps(value)}" for name, value in own.items())
    config.write_text(
        f'engine = "kubernetes"\nmemory_per_replica = {MEMORY_MIB}\n{lines}\n'
        f"[engines.kubernetes]\n{table}\n"
    )
    return config


@contextlib.contextmanager
def service_on(lab: KubernetesLab, config: Path) -> Generator[Service]:
    """One of those settings. In the end nothing of it is left in the cluster."""
    with running(config.parent / "data", "--config", str(config)) as started:
        yield started
    for _ in asked_until("the end of its Pods", 60):
        if not lab.get("pods", "-l", "app.kubernetes.io/managed-by=trainshed")["items"]:
            return


class Site:
    """The service, and the cluster that its Pods are in."""

    def __init__(self, lab: KubernetesLab, service: Service) -> None:
        self.lab = lab
        self.service = service
        #: Of the last job that waits for it: an object of the bucket.
        self.gate = ""

    def staying(self) -> str:
        """A job that runs until it is to end; its id."""
        self.gate = new_mark()
        job_id = submit(self.service, container_job(_STAYS.format(gate=self.gate)))
        until(self.service.follow(job_id, PRIMARY), "runs")
        return job_id

    def finished(self, job_id: str) -> Story:
        """After it was let go on."""
        self.service.put("trainshed", self.gate, b"open")
        story = story_of(self.service, job_id)
        assert story.state == "SUCCEEDED", story.public
        return story

    def told(self, job_id: str, words: str) -> str:
        """What the timeline says, once it says something with these words."""
        for _ in asked_until(f"{words!r} on the timeline", 90):
            for entry in timeline(self.service, job_id):
                if words in entry["message"]:
                    return entry["message"]
        raise AssertionError


def await_condition(service: Service, node: str, condition: str) -> None:
    """Of a node, as the service tells it."""
    for _ in asked_until(f"{node}: {condition}", 60):
        views = service.call("GET", "/trainshed/v1/nodes")["nodes"]
        if next(view for view in views if view["name"] == node)["condition"] == condition:
            return


def settle(lab: KubernetesLab, service: Service) -> None:
    """After a test: nothing is left in the cluster, and the service takes all of its nodes for ready."""
    lab.await_ready()
    lab.clear()
    for node in lab.nodes:
        await_condition(service, node, "READY")
