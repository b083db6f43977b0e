"""The same job file, byte for byte, on one machine and on a Kubernetes cluster: the same result, the same
shape of CLUSTER_SPEC, the same lines and words on the timeline. Through both APIs; on Slurm: tests.slurm."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Service, container_job, running, submit
from tests.kubernetes.lab import KubernetesLab
from tests.kubernetes.whole import configure, service_on
from tests.slurm.test_same_job import FILES, SUMS, Seen, seen

pytestmark = pytest.mark.kubernetes

_BY_PATH = """model = pathlib.Path(place.replace("gs://", "/gcs/"))
model.mkdir(parents=True, exist_ok=True)
(model / "sum.txt").write_text(str(total))
"""
_BY_CLIENT = """from google.cloud import storage
bucket, _, name = place.removeprefix("gs://").partition("/")
bucket = storage.Client().bucket(bucket)
bucket.blob(name + "sum.txt").upload_from_string(str(total))
"""
"""Pods are not shown /gcs."""
_SEEN_BY_PATH = '(model / "seen-running").exists()'
_SEEN_BY_CLIENT = 'bucket.blob(name + "seen-running").exists()'
_ITS_OWN = ("delayed:", "replica_placed:")
"""Of the timeline: Pods are waited for, and sent what programs need."""


def shown(job: Seen) -> dict[str, Any]:
    """What both have in common: peers are told by name here, by address there."""
    specs = [re.sub(r'"[^" ]+:(PORT|\d+)"', '"PLACE"', json.dumps(spec)) for spec in job.specs]
    return {
        "resource": job.resource,
        "result": job.result,
        "specs": sorted(specs),
        "lines": job.lines,
        "story": [line for line in job.story if not line.startswith(_ITS_OWN)],
    }


@pytest.fixture(scope="module")
def services(
    kubernetes_lab: KubernetesLab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service]]:
    place = tmp_path_factory.mktemp("same")
    config = configure(kubernetes_lab, place / "there")
    with running(place / "here") as here, service_on(kubernetes_lab, config) as there:
        for service in (here, there):
            # Whoever comes first is told of the runtime's being built, which is not of the job.
            service.finish(submit(service, container_job("pass")), 600)
        yield here, there
    kubernetes_lab.clear()


@FILES
def test_the_same_file_is_the_same_job(
    services: tuple[Service, Service], tmp_path: Path, path: str, job: dict[str, Any], result: str
) -> None:
    text = json.dumps(job, indent=1)
    for by_path, by_client in ((_BY_PATH, _BY_CLIENT), (_SEEN_BY_PATH, _SEEN_BY_CLIENT)):
        assert SUMS.count(by_path) == 1
        text = text.replace(json.dumps(by_path)[1:-1], json.dumps(by_client)[1:-1])
    file = tmp_path / "job.json"
    file.write_text(text)
    here, there = (seen(service, path, file, result) for service in services)
    assert here.resource["state"] in ('"JOB_STATE_SUCCEEDED"', '"SUCCEEDED"')
    assert shown(here) == shown(there)
    assert there.result == b"21" and len(there.specs) == 3
