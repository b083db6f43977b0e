"""`aiplatform` v1 DatasetService over REST against a real store (facts/datasets)."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.violations import fields
from tests.unit.specs_requests import pool
from tests.unit.test_specs_pipeline import pipeline
from trainshed.core.copies import copy_of
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api

DATASETS = f"{LOCATION}/datasets"
SCHEMAS = "gs://google-cloud-aiplatform/schema/dataset"
TABLE = {"inputConfig": {"gcsSource": {"uri": ["gs://bucket/a.csv"]}}}


def schema(kind: str) -> str:
    return f"{SCHEMAS}/metadata/{kind}_1.0.0.yaml"


def body(kind: str = "tabular", **changes: Any) -> dict[str, Any]:
    metadata = TABLE if kind in ("tabular", "time_series") else None
    return {"displayName": "d", "metadataSchemaUri": schema(kind), "metadata": metadata, **changes}


async def create_dataset(service: ApiService, kind: str = "tabular", **changes: Any) -> str:
    """Create a dataset and return its path."""
    service.clock += 10**6
    done = await service.result("POST", DATASETS, body(kind, **changes))
    assert done["done"]
    assert done["metadata"]["@type"].endswith("CreateDatasetOperationMetadata")
    return f"{DATASETS}/{done['response']['name'].rpartition('/')[2]}"


def import_body(uris: list[str], form: str = "image_classification_single_label") -> dict[str, Any]:
    schema_uri = f"{SCHEMAS}/ioformat/{form}_io_format_1.0.0.yaml"
    return {"importConfigs": [{"gcsSource": {"uris": uris}, "importSchemaUri": schema_uri}]}


@pytest.mark.parametrize("kind", ["tabular", "time_series", "image", "text"])
async def test_created_dataset_keeps_its_schema_and_metadata(service: ApiService, kind: str) -> None:
    path = await create_dataset(service, kind, labels={"a": "b"}, description="what it is")
    shown = await service.result("GET", path)
    assert shown["metadataSchemaUri"] == schema(kind)
    assert shown.get("metadata") == body(kind)["metadata"]
    assert (shown["displayName"], shown["labels"]) == ("d", {"a": "b"})
    assert shown["description"] == "what it is"
    assert shown["createTime"] == shown["updateTime"]


async def test_all_wrong_fields_of_a_dataset_are_reported_at_once(service: ApiService) -> None:
    long = "d" * 100_001
    wrong = {"labels": {"A B": "x"}, "metadataSchemaUri": "gs://mine.yaml", "description": long}
    at = ("display_name", "labels.A B", "metadata_schema_uri", "description")
    expected = {f"dataset.{field}" for field in at}
    assert fields(await service.call("POST", DATASETS, wrong)) == expected
    for uri, fault in (
        ("gs://missing/a.csv", "does not exist. Create it first"),
        ("gs://theirs/a.csv", "belongs to another project"),
        ("gs://bucket/missing.csv", "does not exist. Copy the file there"),
        ("/home/me/a.csv", "not a Cloud Storage path"),
        ("gs://bucket/*/*/*/*/*.csv", "more than 4 wildcards"),
    ):
        metadata = {"inputConfig": {"gcsSource": {"uri": ["gs://bucket/a.csv", uri]}}}
        answer = await service.call("POST", DATASETS, body(metadata=metadata))
        (field,) = fields(answer)
        assert field.rpartition(".")[2] == "uri[1]", field
        assert fault in answer.error["message"] or fault in str(answer.error["details"])
    assert await service.result("GET", DATASETS) == {}


async def test_table_metadata_in_snake_case_is_accepted(service: ApiService) -> None:
    metadata = {"input_config": {"gcs_source": {"uri": ["gs://missing/a.csv"]}}}
    answer = await service.call("POST", DATASETS, body(metadata=metadata))
    assert fields(answer) == {"dataset.metadata.inputConfig.gcsSource.uri[0]"}


async def test_video_dataset_is_rejected_with_advice(service: ApiService) -> None:
    answer = await service.call("POST", DATASETS, body("video"))
    assert fields(answer) == {"dataset.metadata_schema_uri"}
    assert "create a tabular dataset from it" in str(answer.error)


async def test_bigquery_table_is_rejected_with_advice(service: ApiService) -> None:
    metadata = {"inputConfig": {"bigquerySource": {"uri": "bq://p.d.t"}}}
    answer = await service.call("POST", DATASETS, body(metadata=metadata))
    assert answer.status == 400
    assert "bq extract" in str(answer.error["details"])


@pytest.mark.parametrize("mask", ["displayName,labels", "display_name,labels"])
async def test_dataset_update_changes_only_the_fields_of_its_mask(service: ApiService, mask: str) -> None:
    path = await create_dataset(service, description="kept")
    old = await service.result("GET", path)
    new = {"displayName": "new", "labels": {"a": "b"}, "description": "not taken"}
    shown = await service.result("PATCH", f"{path}?updateMask={mask}", new)
    assert (shown["displayName"], shown["labels"]) == ("new", {"a": "b"})
    assert shown["description"] == "kept"
    assert shown == await service.result("GET", path)
    stale = await service.call("PATCH", f"{path}?updateMask={mask}", new | {"etag": old["etag"]})
    assert (stale.status, stale.error["status"]) == (409, "ABORTED")
    await service.result("PATCH", f"{path}?updateMask={mask}", new | {"etag": shown["etag"]})
    assert fields(await service.call("PATCH", f"{path}?updateMask=metadata", new)) == {"update_mask"}
    unmasked = await service.result("PATCH", path, {"description": "all that is sent"})
    assert unmasked["labels"] == {"a": "b"} and unmasked["displayName"] == "new"


async def test_dataset_lists_support_filters_order_masks_and_pages(service: ApiService) -> None:
    for name, kind in (("b", "image"), ("a", "tabular"), ("c", "tabular")):
        await create_dataset(service, kind, displayName=name, labels={"of": name})

    async def names(**query: Any) -> list[str]:
        page = await service.result("GET", f"{DATASETS}?{urlencode(query)}")
        return [dataset["displayName"] for dataset in page.get("datasets", [])]

    assert await names() == ["c", "a", "b"]
    assert await names(orderBy="display_name") == ["a", "b", "c"]
    assert await names(orderBy="create_time") == ["b", "a", "c"]
    assert await names(filter=f'metadata_schema_uri="{schema("tabular")}"') == ["c", "a"]
    assert await names(filter="display_name=a OR labels.of=b") == ["a", "b"]
    first = await service.result("GET", f"{DATASETS}?pageSize=2&orderBy=display_name")
    token = first["nextPageToken"]
    rest = await service.result("GET", f"{DATASETS}?pageSize=2&orderBy=display_name&pageToken={token}")
    assert [dataset["displayName"] for dataset in rest["datasets"]] == ["c"]
    assert "nextPageToken" not in rest
    for query, field in (("orderBy=size", "order_by"), ("filter=size%3D1", "filter")):
        assert fields(await service.call("GET", f"{DATASETS}?{query}")) == {field}


async def test_deleted_dataset_is_not_found(service: ApiService) -> None:
    path = await create_dataset(service)
    done = await service.result("DELETE", path)
    assert done["done"] and done["response"]["@type"].endswith("google.protobuf.Empty")
    assert (await service.call("GET", path)).status == 404
    assert (await service.call("DELETE", path)).status == 404


async def test_dataset_import_creates_items_and_is_rejected_for_table_datasets(service: ApiService) -> None:
    path = await create_dataset(service, "image")
    request = import_body(["gs://bucket/a.csv", "gs://bucket/b-*.jsonl"])
    request["importConfigs"][0]["dataItemLabels"] = {"batch": "1"}
    done = await service.result("POST", f"{path}:import", request)
    assert done["response"]["@type"].endswith("ImportDataResponse")
    assert done["metadata"]["@type"].endswith("ImportDataOperationMetadata")
    polled = await service.result("GET", f"/v1/{done['name']}")
    assert polled == done
    name = path.removeprefix("/v1/")
    (record,) = await service.store.datasets.list({"project_id": "p1", "location": "us-central1"})
    assert str(record.name) == name
    assert [files.labels for files in record.files] == [(("batch", "1"),)]
    table = await create_dataset(service)
    assert fields(await service.call("POST", f"{table}:import", request)) == {"name"}


async def test_import_with_wrong_schema_or_missing_files_is_rejected(service: ApiService) -> None:
    path = await create_dataset(service, "image")
    for request, field in (
        (import_body(["gs://bucket/a.csv"], "text_sentiment"), "import_configs[0].import_schema_uri"),
        (import_body([]), "import_configs[0].gcs_source.uris"),
        (import_body(["gs://bucket/missing"]), "import_configs[0].gcs_source.uris[0]"),
        (import_body(["gs://bucket/a"], "video_classification"), "import_configs[0].import_schema_uri"),
        ({}, "import_configs"),
    ):
        assert fields(await service.call("POST", f"{path}:import", request)) == {field}, request
    (record,) = await service.store.datasets.list({"project_id": "p1", "location": "us-central1"})
    assert record.files == ()


def pipeline_with_dataset(dataset: str) -> dict[str, Any]:
    """Return a pipeline that reads the dataset."""
    data = {"datasetId": dataset, "gcsDestination": {"outputUriPrefix": "gs://bucket/out"}}
    return pipeline(inputDataConfig=data, trainingTaskInputs={"workerPoolSpecs": [pool()]})


async def test_job_of_a_pipeline_contains_the_plan_of_its_dataset_split(service: ApiService) -> None:
    dataset = (await create_dataset(service)).rpartition("/")[2]
    await service.result("POST", f"{LOCATION}/trainingPipelines", pipeline_with_dataset(dataset))
    (live,) = [live.job for live in await service.store.ledger.load_live() if isinstance(live.job, Job)]
    plan = live.spec.data
    assert plan is not None and str(plan.dataset).endswith(f"/datasets/{dataset}")
    assert plan.directory.startswith(f"gs://bucket/out/dataset-{dataset}-tables-")
    env = dict(live.spec.pool(0).program.env)
    assert env == dict(plan.env)
    copied = copy_of(Api.VERTEX, json.loads(live.public_json), 1, str(live.uid))
    again = await service.result("POST", f"{LOCATION}/customJobs", copied)
    (kept,) = again["jobSpec"]["workerPoolSpecs"]
    assert {row["name"]: row["value"] for row in kept["pythonPackageSpec"]["env"]} == env, "a retry"


async def test_pipeline_with_unusable_dataset_is_rejected(service: ApiService) -> None:
    path = f"{LOCATION}/trainingPipelines"
    elsewhere = path.replace("us-central1", "europe-west4")
    table = (await create_dataset(service)).rpartition("/")[2]
    images = (await create_dataset(service, "image")).rpartition("/")[2]
    for place, id_ in ((path, "404"), (elsewhere, table), (path, images)):
        answer = await service.call("POST", place, pipeline_with_dataset(id_))
        assert "input_data_config.dataset_id" in fields(answer)


def has_no_object(uri: str) -> bool:
    return False


async def test_pipeline_with_missing_dataset_files_is_rejected(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = (await create_dataset(service)).rpartition("/")[2]
    monkeypatch.setattr(service.buckets, "has_object", has_no_object)
    answer = await service.call("POST", f"{LOCATION}/trainingPipelines", pipeline_with_dataset(dataset))
    assert fields(answer) == {"input_data_config.dataset_id"}
