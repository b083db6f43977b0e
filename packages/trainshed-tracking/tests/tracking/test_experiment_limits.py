"""The limits of experiments and tensorboards: what is at one is taken, what is beyond it is refused with
every field that is, and nothing is stored (facts/experiments#limits, facts/experiments#points)."""

import base64

import pytest

from tests.contract.api.house import House
from tests.contract.api.refusals import fields
from tests.tracking.test_metadata import ARTIFACTS, CONTEXTS, EXECUTIONS, STORE, store_made
from tests.tracking.test_tensorboards import run_made, series_made

LABELS = {f"l{number}": "x" for number in range(64)}
LONGEST = "a" * 128


@pytest.mark.parametrize(
    ("path", "parameter"),
    [(CONTEXTS, "contextId"), (ARTIFACTS, "artifactId"), (EXECUTIONS, "executionId")],
)
async def test_nodes(house: House, path: str, parameter: str) -> None:
    await store_made(house)
    singular = parameter.removesuffix("Id")
    # {"t":"xxx"} has eight bytes beside the text.
    most = {"displayName": "d" * 128, "labels": LABELS, "metadata": {"t": "x" * (200_000 - 8)}}
    made = await house.result("POST", f"{path}?{parameter}={LONGEST}", most)
    assert made["name"].endswith(LONGEST)
    assert (made["labels"], made["metadata"]) == (most["labels"], most["metadata"])
    beyond = {
        "displayName": "d" * 129,
        "labels": {**LABELS, "one-more": "x"},
        "metadata": {"t": "x" * (200_000 - 7)},
    }
    answer = await house.call("POST", f"{path}?{parameter}={LONGEST}a", beyond)
    body = {f"{singular}.{name}" for name in ("display_name", "labels", "metadata")}
    assert fields(answer) == body | {f"{singular}_id"}
    for wrong in ("Upper", "under_score", "dot."):
        answer = await house.call("POST", f"{path}?{parameter}={wrong}", {"labels": {"A": "x"}})
        assert fields(answer) == {f"{singular}_id", f"{singular}.labels.A"}
    answer = await house.call("PATCH", f"{path}/{LONGEST}", {**beyond, "etag": made["etag"]})
    assert fields(answer) == body
    assert await house.result("GET", f"{path}/{LONGEST}") == made
    assert len((await house.result("GET", path))[f"{singular}s"]) == 1


async def test_every_name_and_event_that_is_wrong_is_named(house: House) -> None:
    await store_made(house)
    for path, node in ((CONTEXTS, "contextId=c"), (EXECUTIONS, "executionId=x")):
        await house.result("POST", f"{path}?{node}", {})
    members = {
        "artifacts": ["a", f"{STORE}/contexts/c"],
        "executions": [f"{STORE}/executions/x", ""],
    }
    path = f"{CONTEXTS}/c:addContextArtifactsAndExecutions"
    assert fields(await house.call("POST", path, members)) == {
        *("artifacts[0]", "artifacts[1]", "executions[1]")
    }
    events = [
        {"artifact": "a", "type": "INPUT"},
        {"artifact": f"{STORE}/artifacts/a"},
        {"artifact": f"{STORE}/artifacts/a", "type": "INPUT", "labels": {**LABELS, "more": ""}},
    ]
    path = f"{EXECUTIONS}/x:addExecutionEvents"
    assert fields(await house.call("POST", path, {"events": events})) == {
        *("events[0].artifact", "events[1].type", "events[2].labels")
    }
    lineage = await house.result("GET", f"{EXECUTIONS}/x:queryExecutionInputsAndOutputs")
    assert "events" not in lineage


async def test_pages_of_nodes(house: House) -> None:
    await store_made(house)
    for number in range(101):
        await house.result("POST", f"{CONTEXTS}?contextId=c{number}", {})
    page = await house.result("GET", CONTEXTS)
    assert (len(page["contexts"]), "nextPageToken" in page) == (100, True)
    assert len((await house.result("GET", f"{CONTEXTS}?pageSize=5000"))["contexts"]) == 101
    assert fields(await house.call("GET", f"{CONTEXTS}?pageSize=-1")) == {"page_size"}


async def test_what_lies_below_a_tensorboard(house: House) -> None:
    run = await run_made(house)
    experiment = run.partition("/runs/")[0]
    board = experiment.partition("/experiments/")[0]
    for path, parameter, field in (
        (f"{board}/experiments", "tensorboardExperimentId", "tensorboard_experiment"),
        (f"{experiment}/runs", "tensorboardRunId", "tensorboard_run"),
    ):
        most = {"displayName": "d" * 128, "labels": LABELS}
        await house.result("POST", f"{path}?{parameter}={LONGEST}", most)
        beyond = {"displayName": "d" * 129, "labels": {**LABELS, "one-more": "x"}}
        for wrong in (f"{LONGEST}a", "Upper", "-dash"):
            answer = await house.call("POST", f"{path}?{parameter}={wrong}", beyond)
            expected = {f"{field}_id", f"{field}.display_name", f"{field}.labels"}
            assert fields(answer) == expected, wrong
    series = {"displayName": "d" * 128, "valueType": "SCALAR"}
    data = base64.b64encode(bytes(65_000)).decode()
    await house.result("POST", f"{run}/timeSeries", {**series, "pluginData": data})
    more = base64.b64encode(bytes(65_537)).decode()
    wrong = {"displayName": "d" * 129, "pluginData": more}
    answer = await house.call("POST", f"{run}/timeSeries", wrong)
    field = "tensorboard_time_series"
    assert fields(answer) == {
        f"{field}.{name}" for name in ("display_name", "plugin_data", "value_type")
    }


async def test_a_batch_read_names_twenty_series(house: House) -> None:
    run = await run_made(house)
    board = run.partition("/experiments/")[0]
    name = run.removeprefix("/v1/")
    series = f"{name}/timeSeries/{await series_made(house, run)}"
    twenty = "&".join([f"timeSeries={series}"] * 20)
    read = await house.result("GET", f"{board}:batchRead?{twenty}")
    assert len(read["timeSeriesData"]) == 20
    answer = await house.call("GET", f"{board}:batchRead?{twenty}&timeSeries={series}")
    assert fields(answer) == {"time_series"}
    assert fields(await house.call("GET", f"{board}:batchRead")) == {"time_series"}
    elsewhere = series.replace("/tensorboards/", "/tensorboards/9")
    answer = await house.call(
        "GET", f"{board}:batchRead?timeSeries={series}&timeSeries=x&timeSeries={elsewhere}"
    )
    assert fields(answer) == {"time_series[1]", "time_series[2]"}
