"""Curves of jobs over REST against a real store (facts/experiments#curves)."""

import threading
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.contract.api.violations import fields
from tests.contract.store.metadata_samples import make_progress
from tests.tracking.test_tensorboards import create_board
from tests.unit.specs_requests import custom_job
from tests.unit.test_specs_pipeline import pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.api.trainshed_v1 import jobs, measures
from trainshed.core.curves import CurveSeries, Point
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid

UID = JobUid(1000)
CURVES = "/trainshed/v1/jobs/1000/curves"
AT = 1_763_612_345_000_000_000
OUTPUT = {"outputUriPrefix": "gs://bucket/out"}


async def log_points(service: ApiService, run: str, tag: str, *values: float, first: int = 0) -> None:
    """Log one point per value, starting at step `first`."""
    uid = int.from_bytes(f"{run}{tag}".encode()[:7], "big")
    series = CurveSeries(uid, run, tag, len(values) - 1, AT, 0.5, len(values))
    points = [Point(step, AT + step, value) for step, value in enumerate(values, first)]
    await service.points.append(UID, [(uid, points)])
    await service.store.curves.put(UID, make_progress(f"{run}/events"), (series,))


async def create_job(service: ApiService, **spec: Any) -> str:
    job = custom_job(baseOutputDirectory=OUTPUT, **spec)
    return (await service.result("POST", f"{LOCATION}/customJobs", job))["name"]


async def read_curves(service: ApiService, **query: Any) -> dict[str, list[Any]]:
    answer = await service.result("GET", f"{CURVES}?{urlencode(query, doseq=True)}")
    return {
        f"{curve['run']}:{curve['tag']}": [point["value"] for point in curve["points"]]
        for curve in answer["curves"]
    }


async def test_printed_measurements_become_curves_without_event_files(service: ApiService) -> None:
    """The x axis shows epochs. Measurements on other data become runs."""
    name = await create_job(service)
    await service.run(name)
    lines = [f"epoch {n}/3 loss: {1 / n} - val_loss: nan" for n in (1, 2, 3)]
    service.write_log(1000, "workerpool0-0", *((START + n * SECOND, line) for n, line in enumerate(lines)))
    train, validation = (await service.result("GET", f"{CURVES}?points=2"))["curves"]
    assert (train["run"], train["tag"], train["unit"], train["count"]) == ("", "loss", "epoch", 3)
    assert [(point["step"], point["value"]) for point in train["points"]] == [(1, 1), (3, 1 / 3)]
    assert validation["run"] == "validation" and validation["points"][0]["value"] == "NaN"
    assert list(await read_curves(service, run="validation")) == ["validation:loss"]
    await log_points(service, "", "accuracy", 0.5)
    assert list(await read_curves(service)) == [":accuracy"]


async def test_curve_points_are_encoded_outside_the_event_loop(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response can contain 100,000 points, whose encoding would block the event loop for half a second."""
    threads: set[threading.Thread] = set()

    def record_thread(_: int) -> str:
        threads.add(threading.current_thread())
        return ""

    monkeypatch.setattr(measures, "text_micros", record_thread)
    await create_job(service)
    await log_points(service, "", "loss", 0.5, 0.25)
    assert list(await read_curves(service)) == [":loss"]
    assert threads and threading.main_thread() not in threads


async def test_curves_are_filtered_by_run_and_tag_and_downsampled(service: ApiService) -> None:
    name = await create_job(service)
    assert await service.result("GET", CURVES) == {"job": name, "curves": [], "more": False}
    await log_points(service, "eval", "acc", 0.5, float("nan"), float("-inf"))
    await log_points(service, "", "loss", *(float(step) for step in range(5000)))
    everything = await read_curves(service)
    assert everything["eval:acc"] == [0.5, "NaN", "-Infinity"]
    loss = everything[":loss"]
    assert len(loss) == 1000 and (loss[0], loss[-1]) == (0.0, 4999.0) and loss == sorted(loss)
    assert await read_curves(service, tag="loss", points=2) == {":loss": [0.0, 4999.0]}
    part = (await read_curves(service, tag="loss", begin=2000, end=2100))[":loss"]
    assert part == [float(step) for step in range(1999, 2102)]
    assert await read_curves(service, tag="loss", points=3, means="true") == {
        ":loss": [832.5, 2499.0, 4166.0]
    }
    assert await read_curves(service, tag="loss", begin=9, end=2, means="true") == {":loss": []}
    assert (await read_curves(service, run=["eval", "other"])).keys() == {"eval:acc"}
    assert await read_curves(service, tag="nothing") == {}
    few = (await service.result("GET", f"{CURVES}?charts=1&points=9"))["curves"]
    assert [(curve["tag"], curve["value"], len(curve["points"]) > 1) for curve in few] == [
        ("loss", 0.5, True),
        ("acc", 0.5, False),
    ]
    await log_points(service, "", "early", 1.0, 2.0, 3.0, 4.0, first=-3)
    assert (await read_curves(service, tag="early"))[":early"] == [1.0, 2.0, 3.0, 4.0]
    refused = await service.call("GET", f"{CURVES}?points=1001")
    assert (refused.status, fields(refused)) == (400, {"points"})


async def test_jobs_are_filtered_by_their_last_measurements(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters apply to values from event files and to printed values, combined with other filters
    and paging."""
    for number in range(4):
        name = await create_job(service)
        await service.run(name)
        uid = int(name.rpartition("/")[2])
        line = f"epoch 1/3 loss: {number} - val_accuracy: {number / 4}"
        service.write_log(uid, "workerpool0-0", (START, line))
    series = CurveSeries(7, "eval", "top5/accuracy", 9, AT, 0.99, 9)
    nowhere = CurveSeries(8, "", "loss", 9, AT, None, 9)
    await service.store.curves.put(UID, make_progress("events"), (series, nowhere))

    async def list_uids(*bounds: str, **query: str) -> list[int]:
        uids: list[int] = []
        query["project"] = "p1"
        while True:
            wanted = urlencode({**query, "metric": bounds}, doseq=True)
            page = await service.result("GET", f"/trainshed/v1/jobs?{wanted}")
            uids += [int(job["uid"]) for job in page["jobs"]]
            if not (token := page["nextPageToken"]):
                return uids
            query["pageToken"] = token

    first, *_, last = sorted(await list_uids())
    assert await list_uids("val_accuracy>0.7") == [last]
    # The filter covers the measurements on all data.
    assert await list_uids("accuracy >= 0.75") == [last]
    assert await list_uids("top5/accuracy>0.5") == [first]
    assert await list_uids("loss<1e0", "val_acc=0") == [first]
    assert await list_uids("loss>0", limit="1") == [last, last - 1, last - 2]
    assert await list_uids("loss>0", state="SUCCEEDED") == []
    monkeypatch.setattr(jobs, "_METRIC_TIME_LIMIT", -1.0)
    assert await list_uids("loss>0", limit="2") == [last, last - 1, last - 2]
    for wrong in ("loss", "loss>", ">1", "loss>nan", "loss>1e999", "loss>.", " " * 9000 + "x"):
        refused = await service.call("GET", f"/trainshed/v1/jobs?{urlencode({'metric': wrong})}")
        assert (refused.status, fields(refused)) == (400, {"metric"})
        assert "val_accuracy>0.9" in str(refused.json)


async def test_deleted_job_has_no_curves(service: ApiService) -> None:
    name = await create_job(service)
    await log_points(service, "", "loss", 1.0)
    await service.update_job(name, state=JobState.SUCCEEDED, started=START, ended=START + SECOND)
    await service.result("DELETE", f"/v1/{name}")
    assert (await service.call("GET", CURVES)).status == 404
    assert await service.store.curves.series(UID) == ()
    assert (await service.points.read(UID, [1])) == {1: []}
    assert not list(service.points._directory.glob("1000.*"))  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("kind", ["custom", "tuning", "pipeline"])
async def test_job_with_tensorboard_in_another_location_is_rejected(service: ApiService, kind: str) -> None:
    board = (await create_board(service)).removeprefix("/v1/")
    for name, says in (
        (board, ""),
        (f"{board}9", "does not exist"),
        (board.replace("us-central1", "us-east1"), "the project and location of the job"),
        (board.replace("p1", "p2"), "the project and location of the job"),
    ):
        spec = custom_job(baseOutputDirectory=OUTPUT, tensorboard=name)["jobSpec"]
        path, body, field = request(kind, spec)
        answer = await service.call("POST", path, body)
        if not says:
            assert answer.status == 200, answer.json
            continue
        assert (answer.status, fields(answer)) == (400, {f"{field}.tensorboard"})
        assert says in str(answer.json)


def request(kind: str, spec: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    """Return path and body of a request for a job with this spec, and the spec's field name in errors."""
    match kind:
        case "custom":
            return f"{LOCATION}/customJobs", {"displayName": "j", "jobSpec": spec}, "job_spec"
        case "tuning":
            body = tuning_job(trialJobSpec=spec)
            return f"{LOCATION}/hyperparameterTuningJobs", body, "trial_job_spec"
        case _:
            body = pipeline(trainingTaskInputs=spec)
            return f"{LOCATION}/trainingPipelines", body, "training_task_inputs"
