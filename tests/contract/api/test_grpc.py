"""The gRPC transport: unserved methods, errors, limits, both API versions."""

import asyncio
import importlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import force_setattr

from tests.contract.api.grpc_service import GrpcApiService, status_of, violations_of
from tests.unit.specs_requests import custom_job, package, pool
from trainshed.api.calls import registry
from trainshed.core.errors import PermissionDenied
from trainshed.core.lifecycle.events import CancelCause, CancelRequested
from trainshed.store.port import NewWork
from trainshed.wire import json as wire_json
from trainshed.wire import pool as wire_pool

grpc: Any = importlib.import_module("grpc")

PARENT = "projects/p1/locations/us-central1"
JOBS = "google.cloud.aiplatform.v1.JobService"
OPERATIONS = "google.longrunning.Operations"
LIST = f"/{JOBS}/ListCustomJobs"
CREATE = f"/{JOBS}/CreateCustomJob"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[GrpcApiService]:
    async with GrpcApiService(tmp_path).open() as opened:
        yield opened


def create_body(job: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"parent": PARENT, "customJob": job or custom_job()}


def create_request(job: dict[str, Any] | None = None) -> Any:
    """Return the request message that creates a job."""
    return wire_json.from_public("google.cloud.aiplatform.v1.CreateCustomJobRequest", create_body(job))


async def failure_status(service: GrpcApiService, path: str, request: bytes = b"", **more: Any) -> Any:
    """Return the google.rpc.Status of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await service.send(path, request, **more)
    return status_of(failure.value)


def code(name: str) -> int:
    return getattr(grpc.StatusCode, name).value[0]


async def test_undecodable_grpc_message_is_rejected(service: GrpcApiService) -> None:
    status = await failure_status(service, LIST, b"\xff\xff\xff")
    assert status.code == code("INVALID_ARGUMENT")
    assert "google.cloud.aiplatform.v1.ListCustomJobsRequest" in status.message


async def test_permission_error_contains_a_reason(
    service: GrpcApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object) -> None:
        raise PermissionDenied("you may not")

    monkeypatch.setattr(registry, "authorize", deny)
    status = await failure_status(service, LIST)
    assert (status.code, status.message) == (code("PERMISSION_DENIED"), "you may not")
    info: Any = wire_pool.message_class("google.rpc.ErrorInfo")()
    assert status.details[0].Unpack(info)
    assert info.reason == "IAM_PERMISSION_DENIED"


async def test_unknown_enum_number_is_rejected(service: GrpcApiService) -> None:
    """spec/submit#refusals. On the wire an enum is a number, and the decoder accepts every number."""
    request = create_request()
    machine = request.custom_job.job_spec.worker_pool_specs[0].machine_spec
    machine.accelerator_type = 999
    machine.accelerator_count = 1
    status = await failure_status(service, CREATE, request.SerializeToString())
    assert status.code == code("INVALID_ARGUMENT")
    (violation,) = violations_of(status)
    assert violation.field.endswith("worker_pool_specs[0].machine_spec.accelerator_type")


async def test_long_error_is_shortened_to_fit_into_a_trailer(service: GrpcApiService) -> None:
    """spec/submit#refusals. A client drops trailers above 8 KiB and would report that instead of
    the wrong fields."""
    uris = [f"gs://missing-bucket-{n}/{'x' * 100}.tar.gz" for n in range(90)]
    job = custom_job(pool(), package(packageUris=uris))
    status = await failure_status(service, CREATE, create_request(job).SerializeToString())
    assert status.code == code("INVALID_ARGUMENT")
    assert status.message.startswith("List of found errors:\t1.Field: ")
    assert "REST responses" in status.message
    listed = violations_of(status)
    assert listed[0].field.endswith("package_uris[0]")
    assert len(listed) > 30
    assert listed[-1].description.startswith(f"... and {90 - (len(listed) - 1)} more")


async def test_call_completes_even_if_its_client_cancels(service: GrpcApiService) -> None:
    """If the controller were not notified of a stored job, the job would wait for the next start of the
    service."""
    reached, go_on, woken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    create = service.services.create

    async def slow(*made: NewWork) -> None:
        reached.set()
        await go_on.wait()
        await create(*made)
        woken.set()

    force_setattr(service.services, "create", slow)
    metadata = (("authorization", f"Bearer {service.token}"),)
    call = service.channel.unary_unary(CREATE)(create_request().SerializeToString(), metadata=metadata)
    await asyncio.wait_for(reached.wait(), 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
    await asyncio.wait_for(woken.wait(), 60)
    listed = await service.ask(f"{JOBS}.ListCustomJobs", {"parent": PARENT})
    assert [job.name for job in listed.custom_jobs] == [f"{PARENT}/customJobs/1000"]


async def test_message_over_the_size_limit_is_rejected(service: GrpcApiService) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await service.send(CREATE, b"x" * (10 * 1024 * 1024 + 1))
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_operation_types_match_the_api_version_of_the_call(service: GrpcApiService) -> None:
    """One service handles both versions, and a client of v1beta1 cannot read the metadata of v1."""
    types: list[str] = []
    for beta in (True, False):
        name = (await service.ask(f"{JOBS}.CreateCustomJob", create_body(), beta=beta)).name
        await service.apply_events(name, CancelRequested(CancelCause.USER, 0))
        made = await service.ask(f"{JOBS}.DeleteCustomJob", {"name": name}, beta=beta)
        operation = await service.ask(f"{OPERATIONS}.GetOperation", {"name": made.name})
        assert operation == made
        types.append(made.metadata.type_url)
    versions = [url.split(".aiplatform.")[1] for url in types]
    assert versions == ["v1beta1.DeleteOperationMetadata", "v1.DeleteOperationMetadata"]
    page = await service.ask(f"{OPERATIONS}.ListOperations", {"name": PARENT})
    assert sorted(listed.metadata.type_url for listed in page.operations) == sorted(types)
