"""Limits of experiments and TensorBoards (facts/experiments#limits, facts/experiments#points).

Values at a limit are accepted. Values beyond it are rejected with all their fields, and nothing is stored.
"""

import base64

import pytest

from tests.contract.api.api_service import ApiService
from tests.contract.api.violations import fields
from tests.tracking.test_metadata import ARTIFACTS, CONTEXTS, EXECUTIONS, STORE, create_store
from tests.tracking.test_tensorboards import create_run, create_series

LABELS = {f"l{number}": "x" for number in range(64)}
MAX_LENGTH_ID = "a" * 128


@pytest.mark.parametrize(
    ("path", "parameter"), [(CONTEXTS, "contextId"), (ARTIFACTS, "artifactId"), (EXECUTIONS, "executionId")]
)
async def test_metadata_nodes_above_the_size_limits_are_rejected(
    service: ApiService, path: str, parameter: str
) -> None:
    await create_store(service)
    singular = parameter.removesuffix("Id")
    # {"t":"xxx"} has eight bytes in addition to the text.
    at_limit = {"displayName": "d" * 128, "labels": LABELS, "metadata": {"t": "x" * (200_000 - 8)}}
    made = await service.result("POST", f"{path}?{parameter}={MAX_LENGTH_ID}", at_limit)
    assert made["name"].endswith(MAX_LENGTH_ID)
    assert (made["labels"], made["metadata"]) == (at_limit["labels"], at_limit["metadata"])
    beyond = {
        "displayName": "d" * 129,
        "labels": {**LABELS, "one-more": "x"},
        "metadata": {"t": "x" * (200_000 - 7)},
    }
    answer = await service.call("POST", f"{path}?{parameter}={MAX_LENGTH_ID}a", beyond)
    body = {f"{singular}.{name}" for name in ("display_name", "labels", "metadata")}
    assert fields(answer) == body | {f"{singular}_id"}
    for wrong in ("Upper", "under_score", "dot."):
        answer = await service.call("POST", f"{path}?{parameter}={wrong}", {"labels": {"A": "x"}})
        assert fields(answer) == {f"{singular}_id", f"{singular}.labels.A"}
    answer = await service.call("PATCH", f"{path}/{MAX_LENGTH_ID}", {**beyond, "etag": made["etag"]})
    assert fields(answer) == body
    assert await service.result("GET", f"{path}/{MAX_LENGTH_ID}") == made
    assert len((await service.result("GET", path))[f"{singular}s"]) == 1


async def test_metadata_error_lists_all_invalid_names_and_events(service: ApiService) -> None:
    await create_store(service)
    for path, node in ((CONTEXTS, "contextId=c"), (EXECUTIONS, "executionId=x")):
        await service.result("POST", f"{path}?{node}", {})
    members = {"artifacts": ["a", f"{STORE}/contexts/c"], "executions": [f"{STORE}/executions/x", ""]}
    path = f"{CONTEXTS}/c:addContextArtifactsAndExecutions"
    assert fields(await service.call("POST", path, members)) == {
        *("artifacts[0]", "artifacts[1]", "executions[1]")
    }
    events = [
        {"artifact": "a", "type": "INPUT"},
        {"artifact": f"{STORE}/artifacts/a"},
        {"artifact": f"{STORE}/artifacts/a", "type": "INPUT", "labels": {**LABELS, "more": ""}},
    ]
    path = f"{EXECUTIONS}/x:addExecutionEvents"
    assert fields(await service.call("POST", path, {"events": events})) == {
        *("events[0].artifact", "events[1].type", "events[2].labels")
    }
    lineage = await service.result("GET", f"{EXECUTIONS}/x:queryExecutionInputsAndOutputs")
    assert "events" not in lineage


async def test_metadata_page_sizes_are_limited(service: ApiService) -> None:
    await create_store(service)
    for number in range(101):
        await service.result("POST", f"{CONTEXTS}?contextId=c{number}", {})
    page = await service.result("GET", CONTEXTS)
    assert (len(page["contexts"]), "nextPageToken" in page) == (100, True)
    assert len((await service.result("GET", f"{CONTEXTS}?pageSize=5000"))["contexts"]) == 101
    assert fields(await service.call("GET", f"{CONTEXTS}?pageSize=-1")) == {"page_size"}


async def test_tensorboard_resource_limits_are_enforced(service: ApiService) -> None:
    run = await create_run(service)
    experiment = run.partition("/runs/")[0]
    board = experiment.partition("/experiments/")[0]
    for path, parameter, field in (
        (f"{board}/experiments", "tensorboardExperimentId", "tensorboard_experiment"),
        (f"{experiment}/runs", "tensorboardRunId", "tensorboard_run"),
    ):
        at_limit = {"displayName": "d" * 128, "labels": LABELS}
        await service.result("POST", f"{path}?{parameter}={MAX_LENGTH_ID}", at_limit)
        beyond = {"displayName": "d" * 129, "labels": {**LABELS, "one-more": "x"}}
        for wrong in (f"{MAX_LENGTH_ID}a", "Upper", "-dash"):
            answer = await service.call("POST", f"{path}?{parameter}={wrong}", beyond)
            expected = {f"{field}_id", f"{field}.display_name", f"{field}.labels"}
            assert fields(answer) == expected, wrong
    series = {"displayName": "d" * 128, "valueType": "SCALAR"}
    data = base64.b64encode(bytes(65_000)).decode()
    await service.result("POST", f"{run}/timeSeries", {**series, "pluginData": data})
    more = base64.b64encode(bytes(65_537)).decode()
    wrong = {"displayName": "d" * 129, "pluginData": more}
    answer = await service.call("POST", f"{run}/timeSeries", wrong)
    field = "tensorboard_time_series"
    assert fields(answer) == {f"{field}.{name}" for name in ("display_name", "plugin_data", "value_type")}


async def test_batch_read_is_limited_to_20_time_series(service: ApiService) -> None:
    run = await create_run(service)
    board = run.partition("/experiments/")[0]
    name = run.removeprefix("/v1/")
    series = f"{name}/timeSeries/{await create_series(service, run)}"
    twenty = "&".join([f"timeSeries={series}"] * 20)
    read = await service.result("GET", f"{board}:batchRead?{twenty}")
    assert len(read["timeSeriesData"]) == 20
    answer = await service.call("GET", f"{board}:batchRead?{twenty}&timeSeries={series}")
    assert fields(answer) == {"time_series"}
    assert fields(await service.call("GET", f"{board}:batchRead")) == {"time_series"}
    elsewhere = series.replace("/tensorboards/", "/tensorboards/9")
    answer = await service.call(
        "GET", f"{board}:batchRead?timeSeries={series}&timeSeries=x&timeSeries={elsewhere}"
    )
    assert fields(answer) == {"time_series[1]", "time_series[2]"}
