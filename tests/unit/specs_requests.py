"""Valid requests for tests of job specifications and launches, and a runtime catalog for these requests."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.jobs import PRIMARY, job
from trainshed.controller.launch_plans import LaunchDefaults, launch_plans
from trainshed.core.catalog.images import parse_prebuilt
from trainshed.core.errors import InvalidRequest
from trainshed.core.job import JobSpec
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import Job, Replica
from trainshed.core.runtime import CONTAINER, REDUCERS, RuntimeChoice, RuntimeRefusal
from trainshed.core.specs.ml import parse_job
from trainshed.core.specs.vertex import parse_custom_job
from trainshed.engines.port import Slot
from trainshed.runtimes.port import PreparedRuntime

Request = dict[str, Any]
SKLEARN = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6.py310:latest"
TENSORFLOW = "europe-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest"
REDUCER = "us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest"
CUSTOM_IMAGE = "gcr.io/p1/mine:v1"
REFUSED_IMAGE = "gcr.io/p1/refused:v1"
MAPPED_IMAGE = "python:3.11"

GUIDE: Request = {
    "scaleTier": "CUSTOM",
    "masterType": "complex_model_m",
    "workerType": "complex_model_m",
    "parameterServerType": "large_model",
    "workerCount": "9",
    "parameterServerCount": "3",
}
"""Machines of the 13 replicas in the public guide's example."""
NO_PACKAGE: Request = dict.fromkeys(("packageUris", "pythonModule", "runtimeVersion", "pythonVersion"))
"""Removes the fields of an `ml` job that a container does not need."""


class FakeRuntimes:
    """A runtime catalog that derives a runtime from the image name.

    It rejects one custom image, the reduction server, and misspelled prebuilt images. One custom image is
    mapped to a runtime.
    """

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        image = parse_prebuilt(image_uri)
        if image is not None:
            return RuntimeChoice(image.framework, image.version, image.python)
        if image_uri in (REFUSED_IMAGE, REDUCER) or "/vertex-ai/training/" in image_uri:
            return RuntimeRefusal(f"{image_uri} cannot be had here")
        if image_uri == MAPPED_IMAGE:
            return RuntimeChoice("python", "", "3.11", (f"{image_uri} is mapped",))
        return RuntimeChoice(CONTAINER, "", "", image=image_uri)

    def for_family(
        self, family: str, version: str | None = None, python: str | None = None
    ) -> RuntimeChoice | RuntimeRefusal:
        return RuntimeChoice(family, version or "", python or "3.11")

    def is_mapped(self, image_uri: str) -> bool:
        return image_uri == MAPPED_IMAGE

    def for_runtime_version(
        self, runtime_version: str, python_version: str
    ) -> RuntimeChoice | RuntimeRefusal:
        if runtime_version == "1.0":
            return RuntimeRefusal("runtime version 1.0 cannot be had here")
        notice = f"asked for {runtime_version!r} on {python_version!r}"
        return RuntimeChoice("tensorflow", runtime_version, python_version, (notice,))


class ReducingRuntimes(FakeRuntimes):
    """The fake runtime catalog of a service that supports reduction servers."""

    def for_image(self, image_uri: str) -> RuntimeChoice | RuntimeRefusal:
        if image_uri == REDUCER:
            return RuntimeChoice(REDUCERS, "", "3.11")
        return super().for_image(image_uri)


def vertex(request: Request) -> JobSpec:
    """Return the specification of a custom job on a service that supports reduction servers."""
    return parse_custom_job(request, region="us-central1", runtimes=ReducingRuntimes()).spec


def ml(**training: Any) -> JobSpec:
    """Return the specification of an `ml` job. `training` has the arguments of `ml_job`."""
    spec = parse_job(ml_job(**training), runtimes=ReducingRuntimes()).spec
    assert isinstance(spec, JobSpec)
    return spec


def placed_job(spec: JobSpec, label: str = "", value: str = "") -> Job:
    """Return a job with one placed replica. If `value` is set, the job has the label `label`."""
    placed = (Replica(PRIMARY, node="node", incarnation=1),)
    labels = ((label, value),) if value else ()
    return replace(job(1), spec=spec, replicas=placed, attempt=1, labels=labels)


def launch_plan(subject: Job, runtime: PreparedRuntime, defaults: LaunchDefaults | None = None) -> LaunchPlan:
    """Return the launch plan of the primary replica."""
    program = subject.spec.pool(0).program
    slots = [Slot(PRIMARY, "node", "host-0", "127.64.0.1", "host-0", 2222)]
    prepared = {(program.runtime, program.packages): runtime}
    return launch_plans(subject, slots, prepared, defaults or LaunchDefaults(), {PRIMARY: 1})[0]


def rejected_fields(reading: Callable[[], object]) -> dict[str, str]:
    """Return the violation description of each invalid field, in order."""
    with pytest.raises(InvalidRequest) as refusal:
        reading()
    faults = refusal.value.violations
    assert all(fault.description.strip() for fault in faults)
    return {fault.field: fault.description for fault in faults}


def pool(**changes: Any) -> Request:
    """Return a Vertex worker pool of one n1-standard-4 that runs a package. None removes a field."""
    return _change(
        {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": "1",
            "pythonPackageSpec": {
                "executorImageUri": SKLEARN,
                "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
                "pythonModule": "trainer.task",
            },
        },
        changes,
    )


def package(**changes: Any) -> Request:
    return pool(pythonPackageSpec=_change(pool()["pythonPackageSpec"], changes))


def container(**changes: Any) -> Request:
    spec = _change({"imageUri": CUSTOM_IMAGE}, changes)
    return pool(pythonPackageSpec=None, containerSpec=spec)


def custom_job(*pools: Request, **job_spec: Any) -> Request:
    spec: Request = {"workerPoolSpecs": list(pools) or [pool()], **job_spec}
    return {"displayName": "job", "jobSpec": spec}


def ml_job(*, job_id: str = "job_1", labels: Mapping[str, str] | None = None, **training: Any) -> Request:
    """Return an `ml` job on scale tier BASIC. None removes a field of trainingInput."""
    job: Request = {
        "jobId": job_id,
        "trainingInput": _change(
            {
                "scaleTier": "BASIC",
                "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
                "pythonModule": "trainer.task",
                "region": "us-central1",
                "runtimeVersion": "2.6",
                "pythonVersion": "3.7",
            },
            training,
        ),
    }
    return job if labels is None else {**job, "labels": dict(labels)}


def _change(values: Request, changes: Mapping[str, Any]) -> Request:
    merged = {**copy.deepcopy(values), **changes}
    return {name: value for name, value in merged.items() if value is not None}
