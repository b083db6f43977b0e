"""Blobs of TensorBoards in the form of the SDK's uploader: content in a bucket, blob IDs as points
(facts/experiments#tensorboards)."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.fake_advisor import service_over
from tests.contract.api.grpc_service import GrpcApiService
from tests.contract.api.violations import fields
from trainshed_tracking.tensorboards import points


@pytest.fixture(params=["REST", "gRPC"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[ApiService]:
    async with service_over(request.param, tmp_path) as opened:
        yield opened


async def series_of(service: ApiService, value_type: str = "BLOB_SEQUENCE") -> str:
    made = await service.result("POST", f"{LOCATION}/tensorboards", {"displayName": "x"})
    board = made["response"]["name"]
    below = "experiments?tensorboardExperimentId=e"
    experiment = (await service.result("POST", f"/v1/{board}/{below}", {}))["name"]
    path = f"/v1/{experiment}/runs?tensorboardRunId=r"
    run = (await service.result("POST", path, {"displayName": "r"}))["name"]
    path = f"/v1/{run}/timeSeries?tensorboardTimeSeriesId=s"
    body = {"displayName": "g", "valueType": value_type, "pluginName": "graphs"}
    return (await service.result("POST", path, body))["name"]


async def write(service: ApiService, series: str, *ids: str) -> None:
    run, _, own = series.rpartition("/timeSeries/")
    blobs = {"values": [{"id": id_} for id_ in ids]}
    values = [{"step": "1", "wallTime": "2026-01-01T00:00:00Z", "blobs": blobs}]
    data = [{"tensorboardTimeSeriesId": own, "valueType": "BLOB_SEQUENCE", "values": values}]
    await service.result("POST", f"/v1/{run}:write", {"timeSeriesData": data})


async def blob(service: ApiService, series: str, id_: str) -> Any:
    answer = await service.result("GET", f"/v1/{series}:readBlobData?blobIds={id_}")
    return answer if isinstance(service, GrpcApiService) else answer[0]


async def test_blob_ids_are_stored_as_points_and_blob_contents_are_read_from_the_bucket(
    service: ApiService,
) -> None:
    series = await series_of(service)
    await write(service, series, "graph0", "graph1")
    data = (await service.result("GET", f"/v1/{series}:read"))["timeSeriesData"]
    assert data["values"][0]["blobs"] == {"values": [{"id": "graph0"}, {"id": "graph1"}]}

    board, _, _ = series.partition("/experiments/")
    prefix = (await service.result("GET", f"/v1/{board}"))["blobStoragePathPrefix"]
    path = f"tensorboard-{board.rpartition('/')[2]}/e/r/s"
    # The SDK's uploader writes two slashes here.
    service.buckets.contents[f"gs://{prefix}//{path}/graph0"] = "of the uploader"
    service.buckets.contents[f"gs://{prefix}/{path}/graph1"] = "of another client"
    assert await blob(service, series, "graph0") == {
        "blobs": [{"id": "graph0", "data": "b2YgdGhlIHVwbG9hZGVy"}]
    }
    assert (await blob(service, series, "graph1"))["blobs"][0]["data"] == "b2YgYW5vdGhlciBjbGllbnQ="


async def test_several_blobs_are_returned_as_a_stream(tmp_path: Path) -> None:
    service = ApiService(tmp_path)
    series = await series_of(service)
    project, board = series.split("/")[1], series.split("/")[5]
    bucket = next(name for name, owner in service.buckets.projects.items() if owner == project)
    for id_ in ("a", "b"):
        uri = f"gs://{bucket}/tensorboards/{project}//tensorboard-{board}/e/r/s/{id_}"
        service.buckets.contents[uri] = id_
    answer = await service.result("GET", f"/v1/{series}:readBlobData?blobIds=a&blobIds=b")
    assert [part["blobs"][0]["id"] for part in answer] == ["a", "b"]
    service.close()


async def test_missing_or_too_large_blob_is_rejected(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = await series_of(service)
    answer = await service.call("GET", f"/v1/{series}:readBlobData?blobIds=missing")
    assert answer.error["status"] == "NOT_FOUND"
    assert "gs://trainshed-p1/tensorboards/p1/tensorboard-" in answer.error["message"]
    monkeypatch.setattr(points, "MAX_BLOB_BYTES", 3)
    project, board = series.split("/")[1], series.split("/")[5]
    path = f"tensorboards/{project}/tensorboard-{board}/e/r/s/large"
    service.buckets.contents[f"gs://trainshed-p1/{path}"] = "1234"
    answer = await service.call("GET", f"/v1/{series}:readBlobData?blobIds=large")
    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert "gcloud storage cp" in answer.error["message"]
    answer = await service.call("GET", f"/v1/{series}:readBlobData?blobIds=a&blobIds=../b")
    assert fields(answer) == {"blob_ids[1]"}
    assert fields(await service.call("GET", f"/v1/{series}:readBlobData")) == {"blob_ids"}


async def test_request_for_blobs_of_a_scalar_time_series_is_rejected(service: ApiService) -> None:
    series = await series_of(service, "SCALAR")
    answer = await service.call("GET", f"/v1/{series}:readBlobData?blobIds=a")
    assert fields(answer) == {"time_series"}
