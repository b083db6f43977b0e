"""`aiplatform` v1 TensorboardService over REST against a real store (facts/experiments#tensorboards,
facts/experiments#points)."""

from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SETTINGS, ApiService
from tests.contract.api.violations import fields
from trainshed.core.names import project_number

PLACE = "projects/p1/locations/us-central1"
BOARDS = f"{LOCATION}/tensorboards"


async def create_board(service: ApiService, **board: Any) -> str:
    """Create a TensorBoard, and return its path."""
    done = await service.result("POST", BOARDS, {"displayName": "tb", **board})
    assert done["done"]
    assert done["metadata"]["@type"].endswith("CreateTensorboardOperationMetadata")
    return f"{BOARDS}/{done['response']['name'].rpartition('/')[2]}"


async def create_run(service: ApiService) -> str:
    board = await create_board(service)
    await service.result("POST", f"{board}/experiments?tensorboardExperimentId=e", {"source": "job"})
    runs = f"{board}/experiments/e/runs"
    await service.result("POST", f"{runs}?tensorboardRunId=r", {"displayName": "r"})
    return f"{runs}/r"


async def create_series(service: ApiService, run: str, name: str = "loss") -> str:
    body = {"displayName": name, "valueType": "SCALAR", "pluginName": "scalars"}
    made = await service.result("POST", f"{run}/timeSeries", body)
    return made["name"].rpartition("/")[2]


def scalars(series: str, *points: tuple[int, float]) -> dict[str, Any]:
    values = [
        {"step": str(step), "scalar": {"value": value}, "wallTime": "2026-01-01T00:00:00Z"}
        for step, value in points
    ]
    return {"tensorboardTimeSeriesId": series, "valueType": "SCALAR", "values": values}


async def values(service: ApiService, series: str, **query: Any) -> list[tuple[int, float]]:
    data = (await service.result("GET", f"{series}:read?{urlencode(query)}"))["timeSeriesData"]
    return [
        (int(point.get("step", 0)), point["scalar"].get("value", 0.0)) for point in data.get("values", [])
    ]


async def test_default_tensorboard_is_found_by_a_filter(service: ApiService) -> None:
    assert await service.result("GET", f"{BOARDS}?filter=is_default%3Dtrue") == {}
    first = await create_board(service, isDefault=True)
    await create_board(service)
    (board,) = (await service.result("GET", f"{BOARDS}?filter=is_default%3Dtrue"))["tensorboards"]
    assert board["name"].endswith(first.rpartition("/")[2])
    second = await create_board(service, isDefault=True)
    (board,) = (await service.result("GET", f"{BOARDS}?filter=is_default%3Dtrue"))["tensorboards"]
    assert board["name"].endswith(second.rpartition("/")[2])


@pytest.mark.parametrize("mask", ["displayName,labels", "display_name,labels"])
async def test_update_mask_accepts_camel_case_and_snake_case(service: ApiService, mask: str) -> None:
    board = await create_board(service, description="kept")
    body = {"displayName": "new", "labels": {"a": "b"}, "description": "not taken"}
    done = await service.result("PATCH", f"{board}?updateMask={mask}", body)
    assert done["response"]["@type"].endswith("v1.Tensorboard")
    shown = await service.result("GET", board)
    assert (shown["displayName"], shown["labels"]) == ("new", {"a": "b"})
    assert shown["description"] == "kept"
    assert fields(await service.call("PATCH", f"{board}?updateMask=name", body)) == {"update_mask"}


async def test_tensorboard_update_keeps_other_fields_and_rejects_a_stale_etag(service: ApiService) -> None:
    board = await create_board(service, description="kept", isDefault=True)
    etag = (await service.result("GET", board))["etag"]
    renamed = {"displayName": "new", "etag": etag}
    await service.result("PATCH", board, renamed)
    shown = await service.result("GET", board)
    assert (shown["displayName"], shown["description"], shown["isDefault"]) == ("new", "kept", True)
    assert (await service.call("PATCH", board, renamed)).error["status"] == "ABORTED"
    await service.result("PATCH", f"{board}?updateMask=*", {"displayName": "bare"})
    assert "description" not in await service.result("GET", board)


async def test_tensorboard_with_experiments_and_runs_is_created_and_deleted(service: ApiService) -> None:
    run = await create_run(service)
    board, experiment = run.partition("/experiments")[0], run.partition("/runs")[0]
    assert (await service.result("GET", experiment))["source"] == "job"
    for number in range(3):
        await service.result("POST", f"{experiment}/runs?tensorboardRunId=r{number}", {})
    page = await service.result("GET", f"{experiment}/runs?pageSize=2")
    assert [run["name"].rpartition("/")[2] for run in page["tensorboardRuns"]] == ["r", "r0"]
    rest = await service.result("GET", f"{experiment}/runs?pageSize=2&pageToken={page['nextPageToken']}")
    assert [run["name"].rpartition("/")[2] for run in rest["tensorboardRuns"]] == ["r1", "r2"]
    narrowed = f"{experiment}/runs?{urlencode({'filter': 'display_name=r'})}"
    assert len((await service.result("GET", narrowed))["tensorboardRuns"]) == 1
    await service.result("PATCH", f"{experiment}?updateMask=description", {"description": "d"})
    assert (await service.result("GET", experiment))["description"] == "d"
    done = await service.result("DELETE", board)
    assert done["metadata"]["@type"].endswith("DeleteOperationMetadata")
    entries = (await service.result("GET", "/trainshed/v1/audit?project=-"))["entries"]
    methods = [entry["method"].rpartition(".")[2] for entry in entries]
    assert methods == ["DeleteTensorboard", "CreateTensorboard"]
    assert (await service.call("GET", run)).status == 404
    answer = await service.call("POST", f"{experiment}/runs?tensorboardRunId=x", {})
    assert answer.status == 404


async def test_creating_an_identical_time_series_returns_the_existing_time_series(
    service: ApiService,
) -> None:
    run = await create_run(service)
    first = await create_series(service, run)
    assert await create_series(service, run) == first
    unlike = {"displayName": "loss", "valueType": "TENSOR", "pluginName": "x"}
    answer = await service.call("POST", f"{run}/timeSeries", unlike)
    assert fields(answer) == {"tensorboard_time_series.display_name"}
    assert "already exist" in answer.error["message"]
    other = f"{run}/timeSeries/{await create_series(service, run, 'acc')}"
    renamed = await service.call("PATCH", f"{other}?updateMask=displayName", {"displayName": "loss"})
    assert "already exist" in renamed.error["message"]
    described = await service.result("PATCH", f"{other}?updateMask=description", {"description": "d"})
    assert (described["displayName"], described["description"]) == ("acc", "d")


async def test_time_series_points_are_read_in_step_order(service: ApiService) -> None:
    run = await create_run(service)
    loss, acc = await create_series(service, run), await create_series(service, run, "acc")
    body = {"timeSeriesData": [scalars(loss, (2, 0.25), (0, 0.0)), scalars(acc, (1, 1.0))]}
    await service.result("POST", f"{run}:write", body)
    await service.result("POST", f"{run}:write", body)  # A repeated request adds no duplicates.
    await service.result("POST", f"{run}:write", {"timeSeriesData": [scalars(loss, (1, 0.5))]})
    series = f"{run}/timeSeries/{loss}"
    assert await values(service, series) == [(0, 0.0), (1, 0.5), (2, 0.25)]
    assert await values(service, series, maxDataPoints=2) == [(0, 0.0), (2, 0.25)]
    assert await values(service, series, maxDataPoints=1) == [(2, 0.25)]
    board = run.partition("/experiments")[0]
    place = run.removeprefix("/v1/")
    names = [("timeSeries", f"{place}/timeSeries/{entry}") for entry in (acc, loss)]
    both = (await service.result("GET", f"{board}:batchRead?{urlencode(names)}"))["timeSeriesData"]
    assert [entry["tensorboardTimeSeriesId"] for entry in both] == [acc, loss]
    assert [len(entry["values"]) for entry in both] == [1, 3]


async def test_time_series_write_is_atomic(service: ApiService) -> None:
    run = await create_run(service)
    loss = await create_series(service, run)
    good = scalars(loss, (1, 1.0))
    tensor = good | {"values": [{"step": "1", "tensor": {"value": "AAAA"}}]}
    far = scalars(loss, (1, 1.0))
    far["values"][0]["wallTime"] = "2500-01-01T00:00:00Z"
    for bad, field in (
        (good | {"valueType": "TENSOR"}, "time_series_data[1].value_type"),
        (tensor, "time_series_data[1].values[0]"),
        (far, "time_series_data[1].values[0].wall_time"),
        (scalars("", (1, 1.0)), "time_series_data[1].tensorboard_time_series_id"),
    ):
        answer = await service.call("POST", f"{run}:write", {"timeSeriesData": [good, bad]})
        assert fields(answer) == {field}
    unknown = {"timeSeriesData": [good, scalars("nobody", (1, 1.0))]}
    assert (await service.call("POST", f"{run}:write", unknown)).status == 404
    many = {"timeSeriesData": [scalars(loss, *((step, 0.5) for step in range(5001)))]}
    assert fields(await service.call("POST", f"{run}:write", many)) == {"time_series_data"}
    assert await values(service, f"{run}/timeSeries/{loss}") == []


async def test_runs_and_time_series_are_created_and_written_in_batches(service: ApiService) -> None:
    service.serve(settings=replace(SETTINGS, project="p1"))
    board = await create_board(service)
    await service.result("POST", f"{board}/experiments?tensorboardExperimentId=e", {})
    experiment = f"{board}/experiments/e"
    parent = f"{PLACE}/tensorboards/{board.rpartition('/')[2]}/experiments/e"
    requests = [{"parent": parent, "tensorboardRunId": f"r{number}"} for number in range(3)]
    made = await service.result("POST", f"{experiment}/runs:batchCreate", {"requests": requests})
    names = [entry["name"] for entry in made["tensorboardRuns"]]
    series = {"displayName": "loss", "valueType": "SCALAR", "pluginName": "scalars"}
    number = f"projects/{project_number('p1')}/"  # Programs use the project number.
    requests = [
        {"parent": name.replace("projects/p1/", number), "tensorboardTimeSeries": series} for name in names
    ]
    made = await service.result("POST", f"{experiment}:batchCreate", {"requests": requests})
    ids = [entry["name"] for entry in made["tensorboardTimeSeries"]]
    assert [name.partition("/timeSeries")[0] for name in ids] == names
    writes = [
        {"tensorboardRun": run, "timeSeriesData": [scalars(entry.rpartition("/")[2], (1, 2.0))]}
        for run, entry in zip(names, ids, strict=True)
    ]
    await service.result("POST", f"{experiment}:write", {"writeRunDataRequests": writes})
    assert await values(service, f"{board}/{ids[2].partition(f'{board[-19:]}/')[2]}") == [(1, 2.0)]
    elsewhere = {"requests": [{"parent": f"{PLACE}/tensorboards/1/experiments/e"}]}
    answer = await service.call("POST", f"{experiment}/runs:batchCreate", elsewhere)
    assert fields(answer) == {"requests[0].parent"}


async def test_run_batch_is_limited_to_1000_runs(service: ApiService) -> None:
    """facts/experiments#tensorboards: the public limit of one batch."""
    board = await create_board(service)
    await service.result("POST", f"{board}/experiments?tensorboardExperimentId=e", {})
    requests = [
        {"tensorboardRunId": f"r{number}", "tensorboardRun": {"description": "x" * 60}}
        for number in range(1001)
    ]
    path = f"{board}/experiments/e/runs:batchCreate"
    answer = await service.call("POST", path, {"requests": requests})
    assert fields(answer) == {"requests"}
    made = await service.result("POST", path, {"requests": requests[:1000]})
    assert len(made["tensorboardRuns"]) == 1000


async def test_tensorboard_error_lists_all_faults(service: ApiService) -> None:
    wrong = {"displayName": "x" * 129, "labels": {"Not A Label": "x"}}
    assert fields(await service.call("POST", BOARDS, wrong)) == {
        "tensorboard.display_name",
        "tensorboard.labels.Not A Label",
    }
    assert fields(await service.call("POST", BOARDS, {})) == {"tensorboard.display_name"}
    for wrong_filter in ("banana=1", "is_default >", "x"):
        answer = await service.call("GET", f"{BOARDS}?{urlencode({'filter': wrong_filter})}")
        assert fields(answer) == {"filter"}


async def test_tensorboard_returns_its_blob_storage_path(service: ApiService) -> None:
    """facts/experiments#tensorboards: the uploader crashes if this field is missing."""
    board = await create_board(service)
    answer = await service.result("GET", board)
    assert answer["blobStoragePathPrefix"] == "trainshed-p1/tensorboards/p1"
    assert service.buckets.projects == {"trainshed-p1": "p1"}
    (listed,) = (await service.result("GET", BOARDS))["tensorboards"]
    assert listed["blobStoragePathPrefix"] == answer["blobStoragePathPrefix"]


async def test_unsupported_tensorboard_method_error_names_an_alternative(service: ApiService) -> None:
    answer = await service.call("GET", f"{await create_board(service)}:readUsage")
    assert answer.error["status"] == "UNIMPLEMENTED"
    assert "trainshed tensorboard JOB" in answer.error["message"]
