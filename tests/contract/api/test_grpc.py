"""The gRPC transport: what is not served, faults, limits, both versions."""

import asyncio
import importlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import force_setattr

from tests.contract.api.grpc_house import GrpcHouse, status_of, violations_of
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
async def house(tmp_path: Path) -> AsyncGenerator[GrpcHouse]:
    async with GrpcHouse(tmp_path).open() as opened:
        yield opened


def creation(job: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"parent": PARENT, "customJob": job or custom_job()}


def created(job: dict[str, Any] | None = None) -> Any:
    """The message of a creation."""
    return wire_json.from_public("google.cloud.aiplatform.v1.CreateCustomJobRequest", creation(job))


async def refused(house: GrpcHouse, path: str, request: bytes = b"", **more: Any) -> Any:
    """The google.rpc.Status that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await house.send(path, request, **more)
    return status_of(failure.value)


def code(name: str) -> int:
    return getattr(grpc.StatusCode, name).value[0]


async def test_bytes_that_are_no_message_are_refused(house: GrpcHouse) -> None:
    status = await refused(house, LIST, b"\xff\xff\xff")
    assert status.code == code("INVALID_ARGUMENT")
    assert "google.cloud.aiplatform.v1.ListCustomJobsRequest" in status.message


async def test_a_permission_that_lacks_has_a_reason(
    house: GrpcHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object) -> None:
        raise PermissionDenied("you may not")

    monkeypatch.setattr(registry, "authorize", deny)
    status = await refused(house, LIST)
    assert (status.code, status.message) == (code("PERMISSION_DENIED"), "you may not")
    info: Any = wire_pool.message_class("google.rpc.ErrorInfo")()
    assert status.details[0].Unpack(info)
    assert info.reason == "IAM_PERMISSION_DENIED"


async def test_an_enum_value_that_nobody_knows_is_refused(house: GrpcHouse) -> None:
    """spec/submit#refusals. Over the wire an enum is a number, and any number gets through."""
    request = created()
    machine = request.custom_job.job_spec.worker_pool_specs[0].machine_spec
    machine.accelerator_type = 999
    machine.accelerator_count = 1
    status = await refused(house, CREATE, request.SerializeToString())
    assert status.code == code("INVALID_ARGUMENT")
    (violation,) = violations_of(status)
    assert violation.field.endswith("worker_pool_specs[0].machine_spec.accelerator_type")


async def test_a_refusal_too_long_for_a_trailer_still_arrives(house: GrpcHouse) -> None:
    """spec/submit#refusals. A client drops trailers above 8 KiB, and would tell of those instead of what is
    wrong."""
    uris = [f"gs://missing-bucket-{n}/{'x' * 100}.tar.gz" for n in range(90)]
    job = custom_job(pool(), package(packageUris=uris))
    status = await refused(house, CREATE, created(job).SerializeToString())
    assert status.code == code("INVALID_ARGUMENT")
    assert status.message.startswith("List of found errors:\t1.Field: ")
    assert "over REST" in status.message
    listed = violations_of(status)
    assert listed[0].field.endswith("package_uris[0]")
    assert len(listed) > 30
    assert listed[-1].description.startswith(f"... and {90 - (len(listed) - 1)} more")


async def test_a_call_that_is_given_up_is_carried_out_whole(house: GrpcHouse) -> None:
    """A job that is stored and never woken would wait for the next start of the service."""
    reached, go_on, woken = asyncio.Event(), asyncio.Event(), asyncio.Event()
    create = house.services.create

    async def slow(*made: NewWork) -> None:
        reached.set()
        await go_on.wait()
        await create(*made)
        woken.set()

    force_setattr(house.services, "create", slow)
    metadata = (("authorization", f"Bearer {house.token}"),)
    call = house.channel.unary_unary(CREATE)(created().SerializeToString(), metadata=metadata)
    await asyncio.wait_for(reached.wait(), 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    go_on.set()
    await asyncio.wait_for(woken.wait(), 60)
    listed = await house.ask(f"{JOBS}.ListCustomJobs", {"parent": PARENT})
    assert [job.name for job in listed.custom_jobs] == [f"{PARENT}/customJobs/1000"]


async def test_a_message_that_is_too_large_is_refused(house: GrpcHouse) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await house.send(CREATE, b"x" * (10 * 1024 * 1024 + 1))
    assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_operations_have_the_types_of_the_version_they_were_made_through(
    house: GrpcHouse,
) -> None:
    """A client of v1beta1 does not read the metadata of v1, and asks the same service about both."""
    types: list[str] = []
    for beta in (True, False):
        name = (await house.ask(f"{JOBS}.CreateCustomJob", creation(), beta=beta)).name
        await house.happen(name, CancelRequested(CancelCause.USER, 0))
        made = await house.ask(f"{JOBS}.DeleteCustomJob", {"name": name}, beta=beta)
        operation = await house.ask(f"{OPERATIONS}.GetOperation", {"name": made.name})
        assert operation == made
        types.append(made.metadata.type_url)
    versions = [url.split(".aiplatform.")[1] for url in types]
    assert versions == ["v1beta1.DeleteOperationMetadata", "v1.DeleteOperationMetadata"]
    page = await house.ask(f"{OPERATIONS}.ListOperations", {"name": PARENT})
    assert sorted(listed.metadata.type_url for listed in page.operations) == sorted(types)
