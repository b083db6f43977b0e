"""Vertex CustomJobs and helpers that parse them, for tests of specifications."""

from typing import Any

from tests.unit.specs_requests import FakeRuntimes, Request, custom_job, pool, rejected_fields
from trainshed.core.job import JobDraft, JobSpec
from trainshed.core.specs.vertex import parse_custom_job

POOLS = "job_spec.worker_pool_specs"
FIRST = f"{POOLS}[0]"


def parse(request: Request) -> JobDraft[JobSpec]:
    return parse_custom_job(request, region="us-central1", runtimes=FakeRuntimes())


def violations(request: Request) -> dict[str, str]:
    return rejected_fields(lambda: parse(request))


def machine(**spec: Any) -> Request:
    return custom_job(pool(machineSpec=spec))


def with_gpus(kind: str, count: int, machine_type: str = "n1-standard-4") -> Request:
    return machine(machineType=machine_type, acceleratorType=kind, acceleratorCount=count)


def labelled_job(**labels: str) -> Request:
    return {**custom_job(), "labels": labels}


def variables(values: dict[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
