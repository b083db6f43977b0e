"""Pages of studies, datasets, models and experiments with their related resources."""

import json
from html import unescape
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.console.browser import Browser, ConsoleService, curves_of, text_of
from tests.contract.api import test_datasets
from tests.contract.api.api_service import LOCATION, START
from tests.tracking.test_metadata import ARTIFACTS, CONTEXTS, STORE, create_store
from tests.tracking.test_tensorboards import create_board, create_series, scalars
from tests.unit.test_specs_pipeline import MODEL, inputs, pipeline
from trainshed.api.registry import BUILT_IN
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import ModelName
from trainshed.core.pipelines import ModelVersion
from trainshed_console.pages import collections

SPEC = {
    "metrics": [{"metricId": "accuracy"}, {"metricId": "seconds", "goal": "MINIMIZE"}],
    "parameters": [
        {
            "parameterId": "rate",
            "doubleValueSpec": {"minValue": 0.001, "maxValue": 1},
            "scaleType": "UNIT_LOG_SCALE",
        },
        {"parameterId": "kind", "categoricalValueSpec": {"values": ["sgd", "adam"]}},
    ],
}


async def create(service: ConsoleService, path: str, body: object) -> Any:
    return await service.result("POST", path, body)


async def test_study_page_shows_its_trials(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainshed.api.aiplatform_v1.studies._MAX_PAGE_SIZE", 1)
    study = await create(service, f"{LOCATION}/studies", {"displayName": "fast", "studySpec": SPEC})
    known = ((0.01, 0.125, 9), (0.1, 0.25, 8), (0.2, 0.5, 20))
    for rate, accuracy, seconds in (*known, *known[:1] * 7):
        point = {"rate": rate, "kind": "adam"}.items()
        parameters = [{"parameterId": name, "value": value} for name, value in point]
        trial = await create(service, f"/v1/{study['name']}/trials", {"parameters": parameters})
        measured = {"accuracy": accuracy, "seconds": seconds}.items()
        metrics = [{"metricId": name, "value": value} for name, value in measured]
        final = {"stepCount": "3", "metrics": metrics}
        await create(service, f"/v1/{trial['name']}:complete", {"finalMeasurement": final})
    listed = (await browser.get("/studies?project=p1")).body.decode()
    path = f"/studies/{study['name'].rpartition('/')[2]}?project=p1"
    assert f'href="{path}"' in listed
    page = await browser.get(f"{path}&trial=2")
    text = text_of(page)
    assert "maximize accuracy, minimize seconds" in text
    assert curves_of(page)[0]["lines"][1] == ["best so far", [0.125, 0.25, *[0.5] * 8], "steps"]
    assert "0.001 to 1, log" in text
    assert "accuracy against seconds" in text
    assert "Trial 2, step by step" in text
    drawn = (await browser.get(path.replace("?", "/outlook?") + "&parameter=rate")).json
    assert (drawn["metric"], drawn["isMaximized"], drawn["best"]) == ("accuracy", True, 3)
    assert [value for _, value in drawn["points"]] == [0.125, 0.25, 0.5, *[0.125] * 7]
    assert drawn["axes"][0]["isLog"] and len(drawn["expected"]) > 50
    refused = await browser.get(path.replace("?", "/outlook?") + "&parameter=nothing")
    assert refused.status == 400 and "kind, rate" in text_of(refused)
    assert text.count("Succeeded best") == 2, "another trial dominates the first one in both metrics"
    assert (await browser.get("/studies/1?project=p1")).status == 404
    assert (await browser.get(f"{path.replace('p1', 'p2')}")).status == 404


async def test_dataset_page_shows_its_files_and_labels(service: ConsoleService, browser: Browser) -> None:
    body = {
        "displayName": "flowers",
        "metadataSchemaUri": "gs://google-cloud-aiplatform/schema/dataset/metadata/tabular_1.0.0.yaml",
        "metadata": {"inputConfig": {"gcsSource": {"uri": ["gs://bucket/data/a.csv"]}}},
        "labels": {"team": "vision"},
    }
    await create(service, f"{LOCATION}/datasets", body)
    (result,) = (await service.result("GET", f"{LOCATION}/datasets"))["datasets"]
    path = f"/datasets/{result['name'].rpartition('/')[2]}?project=p1"
    assert f'href="{path}"' in (await browser.get("/datasets?project=p1")).body.decode()
    page = await browser.get(path)
    assert 'href="/buckets/bucket?prefix=data%2F"' in page.body.decode()
    for text in ("flowers", "Tabular", "team=vision", "gs://bucket/data/a.csv", "newest 200 pipelines"):
        assert text in text_of(page)


async def test_model_page_links_to_its_artifacts(service: ConsoleService, browser: Browser) -> None:
    body = {"model": {"displayName": "classifier", "artifactUri": "gs://bucket/out/model"}}
    model = await create(service, f"{LOCATION}/models:upload", body)
    name = model["response"]["model"]
    listed = (await browser.get("/models?project=p1")).body.decode()
    path = f"/models/{name.rpartition('/')[2]}?project=p1"
    assert f'href="{path}"' in listed
    evaluation = {"displayName": "holdout", "metrics": {"auPrc": 0.5, "classes": ["a"]}}
    await create(service, f"/v1/{name}/evaluations:import", {"modelEvaluation": evaluation})
    page = await browser.get(path)
    assert "Version 1" in text_of(page)
    assert "auPrc 0.5" in text_of(page)
    assert 'href="/buckets/bucket?prefix=out%2Fmodel%2F"' in page.body.decode()


async def test_model_page_of_a_pipeline_links_to_its_job_and_data(
    service: ConsoleService, browser: Browser
) -> None:
    dataset = (await test_datasets.create_dataset(service)).rpartition("/")[2]
    data = {"datasetId": dataset, "gcsDestination": {"outputUriPrefix": "gs://bucket/data/"}}
    body = pipeline(trainingTaskInputs=inputs(), modelToUpload=MODEL, inputDataConfig=data)
    name = (view := await create(service, f"{LOCATION}/trainingPipelines", body))["name"]
    version = ModelVersion(
        name=ModelName("p1", "us-central1", "m1"),
        version=1,
        display_name="model",
        public_json=json.dumps(MODEL),
        artifact_uri="gs://bucket/out/model",
        created=START,
        updated=START,
        aliases=("default",),
        pipeline=name,
    )
    await service.update_job(name, {"model": version}, state=JobState.SUCCEEDED)
    page = (await browser.get("/models/m1?project=p1")).body.decode()
    job = view["trainingTaskMetadata"]["backingCustomJob"].rpartition("/")[2]
    for path in (f"/datasets/{dataset}?project=p1", f"/jobs/{view['name'].rpartition('/')[2]}"):
        assert f'href="{path}"' in page
    assert f'href="/jobs/{job}"' in page


async def create_run(service: ConsoleService, run: str, **metadata: Any) -> None:
    """Create a run of the experiment `exp`, as the SDK does."""
    service.clock += 10**9
    body = {"displayName": run, "schemaTitle": "system.ExperimentRun", "metadata": metadata}
    await create(service, f"{CONTEXTS}?contextId=exp-{run}", body)
    children = {"childContexts": [f"{STORE}/contexts/exp-{run}"]}
    await create(service, f"{CONTEXTS}/exp:addContextChildren", children)


async def create_curve(service: ConsoleService, run: str, name: str, *values: float) -> None:
    """Create a curve in a new TensorBoard, as the SDK does."""
    experiments = f"{await create_board(service)}/experiments"
    await create(service, f"{experiments}?tensorboardExperimentId=exp", {})
    at = f"{experiments}/exp/runs/{run}"
    await create(service, f"{experiments}/exp/runs?tensorboardRunId={run}", {"displayName": run})
    artifact = {"metadata": {"resourceName": at.removeprefix("/v1/")}}
    await create(service, f"{ARTIFACTS}?artifactId=exp-{run}-tb-run", artifact)
    data = scalars(await create_series(service, at, name), *enumerate(values))
    await create(service, f"{at}:write", {"timeSeriesData": [data]})


async def test_experiments_page_without_tracking_shows_the_package_to_install(
    service: ConsoleService,
) -> None:
    service.registry = BUILT_IN
    service.new_console()
    browser = Browser(service)
    await browser.sign_in(token=service.token)
    for path in ("/experiments", "/experiments/exp?project=p1"):
        assert "trainshed[tracking]" in text_of(await browser.get(path))


async def test_experiment_page_shows_a_comparison_of_its_runs(
    service: ConsoleService, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_store(service)
    experiment = {"displayName": "exp", "schemaTitle": "system.Experiment"}
    await create(service, f"{CONTEXTS}?contextId=exp", experiment)
    board = experiment | {"metadata": {"tensorboard_link": "x"}}
    await create(service, f"{CONTEXTS}?contextId=board", board)
    for run, rate, accuracy in (("r1", 0.1, 0.5), ("r2", 0.2, 0.9), ("r3", 0.3, 0.7)):
        params = {"batch": 64, "rate": rate, "kind": "sgd", "dims": [1, 2]}
        await create_run(service, run, _params=params, _metrics={"accuracy": accuracy})
    await create_curve(service, "r1", "loss", 2, 0.25)
    await create_curve(service, "r2", "loss", 1)
    path = "/experiments/exp?project=p1"
    listed = (await browser.get("/experiments?project=p1")).body.decode()
    assert f'href="{path}"' in listed
    assert "experiments/board" not in listed
    assert (await browser.get(path.replace("/exp?", "/board?"))).status == 404
    page = await browser.get(path)
    text = text_of(page)
    assert "[1, 2]" in text
    lines = [["r1", [2, 0.25]], ["r2", [1, None]]]
    assert curves_of(page) == [{"at": [0, 1], "lines": lines, "label": "Step"}]
    assert all(name in text for name in ("r1", "r2", "r3"))
    assert text.index("rate") < text.index("batch"), "different parameters come first"
    assert "r2: 0.9" in page.body.decode(), "a line has the name of its run"
    chosen = text_of(await browser.get(f"{path}&run=r1&run=r3"))
    assert "Runs compared" in chosen
    assert "r2" not in chosen
    monkeypatch.setattr(collections, "_PAGE_SIZE", 2)
    first = (await browser.get(path)).body.decode()
    older = unescape(first.rpartition('<a class="button" href="')[2].partition('"')[0])
    shown = (await browser.get(older)).body.decode()
    token = parse_qs(older.partition("?")[2])["page"][0]
    assert f'name="page" value="{token}"' in shown, "the runs of that page are compared"
    assert "Older runs" not in text_of(await browser.get(f"{path}&run=r3"))
    await create_run(service, "odd", _params="no object", _metrics=[1], _state=7, _custom_jobs=["x"])
    assert "odd" in text_of(await browser.get(path)), "clients may write anything"
