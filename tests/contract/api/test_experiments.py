"""`/trainshed/v1/experiments`: experiments, their runs, and what these were given and have measured."""

import math
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.api.house import LOCATION, House
from tests.contract.api.test_metadata import (
    CONTEXTS,
    STORE,
    custom_job,
    ok,
    store_made,
)
from trainshed.access.job_tokens import JobClaims
from trainshed.core.tensorboards.records import BoardName, Level, Point

pytestmark = pytest.mark.anyio
EXPERIMENTS = "/trainshed/v1/experiments"
HERE = "project=p1&region=us-central1"
BOARDS = f"{LOCATION}/tensorboards"


async def experiment_made(house: House, name: str = "e", **more: Any) -> None:
    body: dict[str, Any] = {"displayName": name, "schemaTitle": "system.Experiment"}
    await ok(house, "POST", f"{CONTEXTS}?contextId={name}", body | more)


async def run_made(house: House, run: str, experiment: str = "e", **metadata: Any) -> None:
    house.clock += 10**9
    body: dict[str, Any] = {
        "displayName": run,
        "schemaTitle": "system.ExperimentRun",
        "metadata": {"_params": {}, "_metrics": {}, "_state": "RUNNING", **metadata},
    }
    await ok(house, "POST", f"{CONTEXTS}?contextId={experiment}-{run}", body)
    children = {"childContexts": [f"{STORE}/contexts/{experiment}-{run}"]}
    await ok(house, "POST", f"{CONTEXTS}/{experiment}:addContextChildren", children)


async def curve_made(house: House, board: str, run: str, name: str, *values: float) -> None:
    """As the SDK does it; `board`: full name of the tensorboard."""
    path = f"/v1/{board}/experiments/e/runs"
    at = f"{path}/{run}"
    if (await house.call("GET", at)).status == 404:
        await ok(house, "POST", f"{path}?tensorboardRunId={run}", {"displayName": run})
        artifact = {
            "schemaTitle": "google.VertexTensorboardRun",
            "metadata": {"resourceName": at.removeprefix("/v1/")},
        }
        await ok(
            house,
            "POST",
            f"{LOCATION}/metadataStores/default/artifacts?artifactId=e-{run}-tb-run",
            artifact,
        )
    series = await ok(
        house, "POST", f"{at}/timeSeries", {"displayName": name, "valueType": "SCALAR"}
    )
    points = [{"step": step, "scalar": {"value": value}} for step, value in enumerate(values, 1)]
    data = {
        "timeSeriesData": [
            {
                "tensorboardTimeSeriesId": series["name"].rpartition("/")[2],
                "valueType": "SCALAR",
                "values": points,
            }
        ]
    }
    await ok(house, "POST", f"{at}:write", data)


async def board_made(house: House) -> str:
    made = await ok(house, "POST", BOARDS, {"displayName": "b"})
    name: str = made["response"]["name"]
    await ok(house, "POST", f"/v1/{name}/experiments?tensorboardExperimentId=e", {})
    return name


async def test_without_a_metadata_store_there_is_none(house: House) -> None:
    answer = await ok(house, "GET", f"{EXPERIMENTS}?{HERE}")
    assert (answer["experiments"], answer["nextPageToken"]) == ([], "")
    missing = await house.call("GET", f"{EXPERIMENTS}/e?{HERE}")
    assert missing.status == 404 and "trainshed experiments list" in missing.error["message"]


async def test_experiments_are_listed_with_their_runs_counted(house: House) -> None:
    await store_made(house)
    for name in ("old", "none", "new"):
        house.clock += 10**9
        await experiment_made(house, name, description=f"about {name}")
    await experiment_made(house, "board", metadata={"tensorboard_link": "x"})
    await ok(house, "POST", f"{CONTEXTS}?contextId=other", {"schemaTitle": "mine"})
    for run in ("r1", "r2"):
        await run_made(house, run, "old")
    await run_made(house, "r1", "new")
    listed = (await ok(house, "GET", f"{EXPERIMENTS}?{HERE}"))["experiments"]
    assert [(each["name"], each["runs"]) for each in listed] == [
        ("new", 1),
        ("none", 0),
        ("old", 2),
    ]
    assert listed[2]["description"] == "about old"
    # The last run of it came after it was made.
    assert (
        listed[2]["changed"] > listed[2]["created"] and listed[1]["changed"] == listed[1]["created"]
    )
    assert (await house.call("GET", f"{EXPERIMENTS}/board?{HERE}")).status == 404
    assert (await house.call("GET", f"{EXPERIMENTS}/other?{HERE}")).status == 404
    first = await ok(house, "GET", f"{EXPERIMENTS}?{HERE}&limit=2")
    rest = await ok(
        house, "GET", f"{EXPERIMENTS}?{HERE}&limit=2&pageToken={first['nextPageToken']}"
    )
    assert [each["name"] for each in rest["experiments"]] == ["old"] and not rest["nextPageToken"]


async def test_runs_have_what_they_were_given_and_measured_and_their_jobs(house: House) -> None:
    await store_made(house)
    await experiment_made(house)
    parameters = {
        "lr": 0.1,
        "layers": 3,
        "opt": "adam",
        "fast": True,
        "nothing": None,
        "dims": [1, 2],
    }
    await run_made(house, "r1", _params=parameters, _metrics={"acc": 0.9}, _state="COMPLETE")
    job = custom_job(experiment=f"{STORE}/contexts/e", experimentRun=f"{STORE}/contexts/e-r1")
    made = await ok(house, "POST", f"{LOCATION}/customJobs", job)
    await run_made(house, "r2", _params="no object", _metrics=[1], _state=7)
    answer = await ok(house, "GET", f"{EXPERIMENTS}/e?{HERE}")
    assert (answer["experiment"]["name"], answer["experiment"]["runs"]) == ("e", 2)
    second, first = answer["runs"]
    assert first["name"] == "r1" and first["resourceName"] == f"{STORE}/contexts/e-r1"
    assert first["parameters"] == {**parameters, "dims": "[1,2]"}
    assert (first["metrics"], first["state"], first["curves"]) == ({"acc": 0.9}, "COMPLETE", [])
    assert first["jobs"] == [made["name"]]
    # Whoever writes metadata may write anything.
    assert (second["parameters"], second["metrics"], second["state"]) == ({}, {}, "")


async def test_curves_are_thinned_and_hold_finite_numbers_only(house: House) -> None:
    await store_made(house)
    await experiment_made(house)
    board = await board_made(house)
    for run in ("r1", "r2", "r3"):
        await run_made(house, run)
    await curve_made(house, board, "r1", "loss", *(1 / step for step in range(1, 201)))
    await curve_made(house, board, "r1", "acc", 0.0, 0.5)
    await curve_made(house, board, "r2", "loss", 3.0)
    runs = {
        each["name"]: each
        for each in (await ok(house, "GET", f"{EXPERIMENTS}/e?{HERE}&curves=true"))["runs"]
    }
    accuracy, loss = runs["r1"]["curves"]
    assert accuracy == {"name": "acc", "steps": [1, 2], "values": [0.0, 0.5]}
    assert (loss["name"], len(loss["steps"])) == ("loss", 60)
    assert (loss["steps"][0], loss["steps"][-1]) == (1, 200) and loss["values"][-1] == 1 / 200
    assert [curve["values"] for curve in runs["r2"]["curves"]] == [[3.0]]
    assert runs["r3"]["curves"] == []
    # By gRPC a number may be none.
    name = BoardName.parse(f"{board}/experiments/e/runs/r2", Level.RUN)
    ((stored, (series,)),) = await house.services.tensorboards.runs([name])
    beyond = [Point(2, 0, math.nan), Point(3, 0, math.inf)]
    await house.services.points.append(stored.uid, [(series.uid, beyond)])
    again = await house.call("GET", f"{EXPERIMENTS}/e?{HERE}&curves=true")
    assert b"NaN" not in again.body and b"Infinity" not in again.body
    (curve,) = again.json["runs"][1]["curves"]
    assert curve == {"name": "loss", "steps": [1, 2, 3], "values": [3.0, None, None]}


async def test_a_tensorboard_of_another_project_is_not_read(house: House) -> None:
    await store_made(house)
    await experiment_made(house)
    await run_made(house, "r1")
    theirs = "projects/theirs/locations/us-central1"
    await ok(house, "POST", f"/v1/{theirs}/metadataStores?metadataStoreId=default", {})
    made = await ok(house, "POST", f"/v1/{theirs}/tensorboards", {"displayName": "b"})
    board = made["response"]["name"]
    await ok(house, "POST", f"/v1/{board}/experiments?tensorboardExperimentId=e", {})
    await curve_made(house, board, "r1", "loss", 1.0)
    (run,) = (await ok(house, "GET", f"{EXPERIMENTS}/e?{HERE}&curves=true"))["runs"]
    assert run["curves"] == []


async def test_a_hundred_runs_are_one_request_and_as_many_lookups_as_one(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store_made(house)
    await experiment_made(house)
    board = await board_made(house)
    for number in range(101):
        await run_made(house, f"r{number}", _metrics={"n": number})
    await curve_made(house, board, "r100", "loss", 1.0, 0.5)
    asked: list[str] = []
    for door in (house.services.metadata, house.services.tensorboards):
        for method in ("node", "nodes", "children", "runs", "resource", "below"):
            if hasattr(door, method):
                monkeypatch.setattr(door, method, _counted(asked, getattr(door, method)))
    answer = await ok(house, "GET", f"{EXPERIMENTS}/e?{HERE}&curves=true")
    assert len(asked) <= 5, asked
    assert len(answer["runs"]) == 100 and answer["experiment"]["runs"] == 101
    assert [run["metrics"]["n"] for run in answer["runs"]] == list(range(100, 0, -1))
    path = f"{EXPERIMENTS}/e?{HERE}&pageToken={answer['nextPageToken']}"
    last = await ok(house, "GET", path)
    assert [run["name"] for run in last["runs"]] == ["r0"] and last["nextPageToken"] == ""


def _counted(asked: list[str], method: Any) -> Any:
    async def counted(*arguments: Any, **more: Any) -> Any:
        asked.append(method.__name__)
        return await method(*arguments, **more)

    return counted


async def test_a_program_sees_the_experiments_of_its_own_project(house: House) -> None:
    await store_made(house)
    await experiment_made(house)
    token, _ = house.jobs.mint(JobClaims(1, 1, "workerpool0-0", "p1", "sa@p1.example.com"))
    for path in (EXPERIMENTS, f"{EXPERIMENTS}/e"):
        assert (await house.call("GET", f"{path}?{HERE}", token=token)).status == 200
        theirs = await house.call("GET", f"{path}?project=p2&region=us-central1", token=token)
        assert theirs.status == 403


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ("project=_&region=nowhere", {"project", "region"}),
        (f"{HERE}&limit=-1", {"limit"}),
        (f"{HERE}&limit=x", {"limit"}),
        (f"{HERE}&pageToken=x", {"page_token"}),
        (f"{HERE}&curves=perhaps", {"curves"}),
    ],
)
async def test_what_is_wrong_is_named(house: House, query: str, fields: set[str]) -> None:
    answer = await house.call("GET", f"{EXPERIMENTS}/e?{query}")
    assert answer.status == 400, answer.body
    (details,) = answer.error["details"]
    assert {each["field"] for each in details["fieldViolations"]} == fields


async def test_a_name_that_cannot_be_one_is_not_found(house: House) -> None:
    await store_made(house)
    for name in ("../x", "a/b", "\x1b[31m", "x" * 500):
        answer = await house.call("GET", f"{EXPERIMENTS}/{quote(name, safe='')}?{HERE}")
        assert answer.status == 404, answer.body
