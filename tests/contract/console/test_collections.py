"""Studies, datasets and models, each with what belongs to it."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION
from tests.contract.api.test_experiments import experiment_made, run_made, store_made
from tests.contract.console.browser import Browser, ConsoleHouse, text_of

pytestmark = pytest.mark.anyio
SPEC = {
    "metrics": [
        {"metricId": "loss", "goal": "MINIMIZE"},
        {"metricId": "seconds", "goal": "MINIMIZE"},
    ],
    "parameters": [
        {
            "parameterId": "rate",
            "doubleValueSpec": {"minValue": 0.001, "maxValue": 1},
            "scaleType": "UNIT_LOG_SCALE",
        },
        {"parameterId": "kind", "categoricalValueSpec": {"values": ["sgd", "adam"]}},
    ],
}


async def made(house: ConsoleHouse, path: str, body: object) -> Any:
    answer = await house.call("POST", path, body)
    assert answer.status == 200, answer.body
    return answer.json


async def test_a_study_has_a_page_with_its_trials(house: ConsoleHouse, browser: Browser) -> None:
    study = await made(house, f"{LOCATION}/studies", {"displayName": "fast", "studySpec": SPEC})
    for rate, loss, seconds in ((0.01, 0.5, 9), (0.1, 0.25, 8), (0.2, 0.125, 20)):
        parameters = [
            {"parameterId": "rate", "value": rate},
            {"parameterId": "kind", "value": "adam"},
        ]
        trial = await made(house, f"/v1/{study['name']}/trials", {"parameters": parameters})
        final = {
            "stepCount": "3",
            "metrics": [
                {"metricId": "loss", "value": loss},
                {"metricId": "seconds", "value": seconds},
            ],
        }
        await made(house, f"/v1/{trial['name']}:complete", {"finalMeasurement": final})
    listed = (await browser.get("/studies?project=p1")).body.decode()
    path = f"/studies/{study['name'].rpartition('/')[2]}?project=p1"
    assert f'href="{path}"' in listed
    page = await browser.get(f"{path}&trial=2")
    text = text_of(page)
    assert "minimize loss, minimize seconds" in text
    assert "0.001 to 1, log" in text
    assert "loss against seconds" in text
    assert "Trial 2, step by step" in text
    assert text.count("Succeeded best") == 2, "the first is beaten in both"
    assert (await browser.get("/studies/1?project=p1")).status == 404
    assert (await browser.get(f"{path.replace('p1', 'p2')}")).status == 404


async def test_a_dataset_shows_its_files_and_labels(house: ConsoleHouse, browser: Browser) -> None:
    body = {
        "displayName": "flowers",
        "metadataSchemaUri": "gs://google-cloud-aiplatform/schema/dataset/metadata/tabular_1.0.0.yaml",
        "metadata": {"inputConfig": {"gcsSource": {"uri": ["gs://bucket/data/a.csv"]}}},
        "labels": {"team": "vision"},
    }
    await made(house, f"{LOCATION}/datasets", body)
    (found,) = (await house.call("GET", f"{LOCATION}/datasets")).json["datasets"]
    path = f"/datasets/{found['name'].rpartition('/')[2]}?project=p1"
    assert f'href="{path}"' in (await browser.get("/datasets?project=p1")).body.decode()
    page = await browser.get(path)
    assert 'href="/buckets/bucket?prefix=data%2F"' in page.body.decode()
    for text in ("flowers", "Tabular", "team=vision", "gs://bucket/data/a.csv", "No pipeline"):
        assert text in text_of(page)


async def test_a_model_leads_to_what_made_it(house: ConsoleHouse, browser: Browser) -> None:
    body = {"model": {"displayName": "classifier", "artifactUri": "gs://bucket/out/model"}}
    model = await made(house, f"{LOCATION}/models:upload", body)
    name = model["response"]["model"]
    listed = (await browser.get("/models?project=p1")).body.decode()
    path = f"/models/{name.rpartition('/')[2]}?project=p1"
    assert f'href="{path}"' in listed
    page = await browser.get(path)
    assert "Version 1" in text_of(page)
    assert 'href="/buckets/bucket?prefix=out%2Fmodel%2F"' in page.body.decode()


async def test_runs_of_an_experiment_are_compared(house: ConsoleHouse, browser: Browser) -> None:
    await store_made(house)
    await experiment_made(house, "exp")
    for run, rate, accuracy in (("r1", 0.1, 0.5), ("r2", 0.2, 0.9), ("r3", 0.3, 0.7)):
        await run_made(
            house,
            run,
            "exp",
            _params={"batch": 64, "rate": rate, "kind": "sgd"},
            _metrics={"accuracy": accuracy},
        )
    path = "/experiments/exp?project=p1"
    assert f'href="{path}"' in (await browser.get("/experiments?project=p1")).body.decode()
    page = await browser.get(path)
    text = text_of(page)
    assert all(name in text for name in ("r1", "r2", "r3"))
    assert text.index("rate") < text.index("batch"), "what differs comes first"
    assert "r2: 0.9" in page.body.decode(), "a line is called as its run"
    chosen = text_of(await browser.get(f"{path}&run=r1&run=r3"))
    assert "Runs compared" in chosen
    assert "r2" not in chosen
