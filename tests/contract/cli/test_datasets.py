"""`trainshed datasets`: what is asked of the service, and what is printed."""

import json
from typing import Any

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService

PLACE = "projects/p/locations/us-central1"
DATASETS, PIPELINES = f"/v1/{PLACE}/datasets", f"/v1/{PLACE}/trainingPipelines"
AT = "2026-11-20T05:55:42.123456Z"
DIRECTORY = f"out/dataset-7-tables-{AT}"
HOSTILE = "\x1b]0;gone\x07rm\nnext"
SCHEMA = "gs://google-cloud-aiplatform/schema/dataset/metadata"


def dataset(dataset_id: str, kind: str = "tabular", **more: Any) -> dict[str, Any]:
    return {
        "name": f"{PLACE}/datasets/{dataset_id}",
        "displayName": f"data {dataset_id}",
        "metadataSchemaUri": f"{SCHEMA}/{kind}_1.0.0.yaml",
        "createTime": AT,
        "updateTime": AT,
        **more,
    }


def pipeline(pipeline_id: str, dataset_id: str = "7", **more: Any) -> dict[str, Any]:
    return {
        "name": f"{PLACE}/trainingPipelines/{pipeline_id}",
        "displayName": f"train {pipeline_id}",
        "state": "PIPELINE_STATE_SUCCEEDED",
        "createTime": AT,
        "inputDataConfig": {
            "datasetId": dataset_id,
            "gcsDestination": {"outputUriPrefix": "gs://b/out/"},
        },
        **more,
    }


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def split_of(count: int, shards: int) -> dict[str, Any]:
    return {"rows": count, "size": count * 10, "shards": [f"s{n}" for n in range(shards)]}


def written_at(service: FakeService, directory: str) -> None:
    manifest = {
        "dataset": f"{PLACE}/datasets/7",
        "size": 10_000,
        "training": split_of(800, 2),
        "validation": split_of(150, 1),
        "test": split_of(50, 1),
        "ignored": 3,
    }
    name = f"{directory}/manifest.json"
    other = "out/dataset-7-tables-2026-11-20T05:55:42.999999Z/manifest.json"
    service.on("GET", "/storage/v1/b/b/o", {"items": [{"name": other}, {"name": name}]})
    service.on("GET", f"/storage/v1/b/b/o/{name}", json.dumps(manifest).encode())


def test_datasets_are_listed_page_by_page(trainshed: Invoke, service: FakeService) -> None:
    first = {"datasets": [dataset("8", "time_series", displayName=HOSTILE)], "nextPageToken": "t"}
    service.on("GET", DATASETS, first, {"datasets": [dataset("7")]})
    result = trainshed("datasets", "list")
    assert result.exit_code == 0, result.output
    header, second, last = rows(result.stdout)
    assert header == ["DATASET", "NAME", "KIND", "CREATED"]
    assert second[0] == "8" and second[-4:-2] == ["time", "series"]
    assert last == ["7", "data", "7", "tabular", "2026-11-20", "05:55:42"]
    assert "\x1b]" not in result.stdout
    assert [asked.query.get("pageToken") for asked in service.asked] == [None, "t"]


def test_an_empty_list_says_so(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", DATASETS, {})
    result = trainshed("datasets", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"No datasets in {PLACE}" in result.stderr
    assert json.loads(trainshed("datasets", "list", "--format", "json").stdout) == []


def test_a_dataset_is_described_by_id_or_display_name(
    trainshed: Invoke, service: FakeService
) -> None:
    uris = [f"gs://b/{number}.csv" for number in range(12)]
    found = dataset(
        "7", metadata={"inputConfig": {"gcsSource": {"uri": uris}}}, labels={"team": "a"}
    )
    service.on("GET", f"{DATASETS}/7", found)
    service.on("GET", DATASETS, {"datasets": [found]})
    said = trainshed("datasets", "describe", "7").stdout
    assert "Kind     tabular" in said
    assert "team=a" in said
    assert "gs://b/9.csv" in said and "gs://b/10.csv" not in said
    assert "and 2 files more" in said
    assert trainshed("datasets", "describe", "data 7").stdout == said
    full = trainshed("datasets", "describe", f"{PLACE}/datasets/7", "--format", "json")
    assert json.loads(full.stdout) == found


def test_one_that_is_not_there_is_told_where_to_look(
    trainshed: Invoke, service: FakeService
) -> None:
    service.on("GET", DATASETS, {})
    service.on("GET", PIPELINES, {})
    for command in ("describe", "splits"):
        result = trainshed("datasets", command, "9")
        assert result.exit_code == 1
        assert "trainshed datasets list" in result.stderr


def test_the_splits_of_a_dataset_are_those_of_its_pipelines(
    trainshed: Invoke, service: FakeService
) -> None:
    service.on("GET", f"{DATASETS}/7", dataset("7"))
    error = {"message": "gs://b/a.csv, row 3: it has 1 field"}
    other = pipeline("1", "8")
    failed = pipeline("2", createTime="2026-11-20T05:00:00Z", error=error)
    service.on("GET", PIPELINES, {"trainingPipelines": [pipeline("3"), failed, other]})
    written_at(service, DIRECTORY)
    result = trainshed("datasets", "splits", "7")
    assert result.exit_code == 0, result.output
    title, header, training, validation, test, ignored, blank, second, why = (
        result.stdout.splitlines()
    )
    assert title.startswith("3 train 3, SUCCEEDED, created 2026-11-20 05:55:42")
    assert header.split() == ["SPLIT", "ROWS", "PART", "BYTES", "FILES", "WHERE"]
    assert training.split()[:5] == ["training", "800", "80.0%", "8,000", "2"]
    assert training.split()[5] == f"gs://b/{DIRECTORY}/training-*"
    assert validation.split()[:3] == ["validation", "150", "15.0%"]
    assert test.split()[:3] == ["test", "50", "5.0%"]
    assert (ignored, blank) == ("3 rows went to no split.", "")
    assert second.startswith("2 train 2")
    assert "row 3: it has 1 field" in why


def test_the_splits_of_a_pipeline_as_json(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", DATASETS, {})
    service.on("GET", f"{PIPELINES}/3", pipeline("3"))
    written_at(service, DIRECTORY)
    result = trainshed("datasets", "splits", "3", "--format", "json")
    (found,) = json.loads(result.stdout)
    assert found["directory"] == f"gs://b/{DIRECTORY}"
    assert found["written"]["training"]["rows"] == 800


def test_a_pipeline_without_a_dataset_says_so(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", DATASETS, {})
    service.on("GET", f"{PIPELINES}/3", pipeline("3") | {"inputDataConfig": {}})
    result = trainshed("datasets", "splits", "3")
    assert result.exit_code == 1
    assert "reads no dataset" in result.stderr
