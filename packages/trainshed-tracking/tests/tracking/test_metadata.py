"""`aiplatform` v1 MetadataService over REST against a real store (facts/experiments)."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.violations import fields
from tests.contract.store.metadata_samples import context, make_node
from tests.unit.specs_requests import custom_job
from trainshed.core.launch import STALL_LABEL
from trainshed_tracking.metadata import records

PLACE = "projects/p1/locations/us-central1"
STORES = f"{LOCATION}/metadataStores"
STORE = f"{PLACE}/metadataStores/default"
CONTEXTS = f"{STORES}/default/contexts"
ARTIFACTS = f"{STORES}/default/artifacts"
EXECUTIONS = f"{STORES}/default/executions"
RUN = {"schemaTitle": "system.ExperimentRun", "schemaVersion": "0.0.1"}


async def create_store(service: ApiService) -> None:
    await service.result("POST", f"{STORES}?metadataStoreId=default", {})


@pytest.fixture
async def service(service: ApiService) -> ApiService:
    """A service with a metadata store."""
    await create_store(service)
    return service


async def create_run(service: ApiService, run_id: str = "e-r", **metadata: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"_params": {}, "_metrics": {}, **metadata}
    body = RUN | {"displayName": "r", "metadata": known}
    return await service.result("POST", f"{CONTEXTS}?contextId={run_id}", body)


async def add_to_context(service: ApiService, context: str, kind: str, **names: str) -> None:
    """Make contexts children of a context, or add artifacts and executions to it."""
    members = {key: [name] for key, name in names.items()}
    await service.result("POST", f"{CONTEXTS}/{context}:addContext{kind}", members)


async def filter_ids(service: ApiService, path: str, text: str) -> list[str]:
    """Return the IDs of the nodes that match a filter."""
    page = await service.result("GET", f"{path}?{urlencode({'filter': text})}")
    return [node["name"].rpartition("/")[2] for node in page.get(path.rpartition("/")[2], [])]


async def test_metadata_store_is_created_listed_and_deleted(service: ApiService) -> None:
    mine, name = f"{STORES}/mine", STORE.replace("default", "mine")
    assert (await service.call("GET", mine)).status == 404
    assert (await service.call("POST", f"{mine}/contexts?contextId=e", {})).status == 404
    done = await service.result("POST", f"{STORES}?metadataStoreId=mine", {"description": "d"})
    assert done["done"] and done["response"]["name"] == name
    assert done["metadata"]["@type"].endswith("CreateMetadataStoreOperationMetadata")
    assert await service.result("GET", f"/ui/{done['name']}") == done
    assert (await service.result("GET", mine))["description"] == "d"
    assert (await service.call("POST", f"{STORES}?metadataStoreId=mine", {})).status == 409
    stores = (await service.result("GET", STORES))["metadataStores"]
    assert [store["name"] for store in stores] == [STORE, name]
    assert (await service.result("DELETE", mine))["done"]
    assert (await service.call("GET", mine)).status == 404


async def test_empty_maps_and_nulls_in_metadata_are_kept(service: ApiService) -> None:
    made = await create_run(service, note=None, deep={"a": [1, {}]})
    expected: dict[str, Any] = {"_params": {}, "_metrics": {}, "note": None, "deep": {"a": [1, {}]}}
    assert made["metadata"] == expected
    shown = await service.result("GET", f"{CONTEXTS}/e-r")
    assert shown == made
    assert shown["metadata"] == expected
    assert shown["etag"].isdigit()


async def test_metadata_patch_changes_only_its_fields(service: ApiService) -> None:
    await create_run(service, "e")
    made = await create_run(service)
    await add_to_context(service, "e", "Children", childContexts=made["name"])
    patch = {"metadata": {"_params": {"lr": 0.1}}, "etag": made["etag"], "labels": {"a": "b"}}
    changed = await service.result("PATCH", f"{CONTEXTS}/e-r", patch)
    assert changed["metadata"] == {"_params": {"lr": 0.1}}
    assert changed["displayName"] == "r"
    assert changed["parentContexts"] == [f"{STORE}/contexts/e"]
    assert int(changed["etag"]) > int(made["etag"])
    same = await service.result("PATCH", f"{CONTEXTS}/e-r", patch | {"etag": changed["etag"]})
    assert same == changed  # A patch without changes keeps the etag.
    masked = await service.result(
        "PATCH", f"{CONTEXTS}/e-r?updateMask=description", {"description": "d", "displayName": "no"}
    )
    assert (masked["description"], masked["displayName"]) == ("d", "r")


async def test_stale_etag_error_has_the_text_that_clients_expect(service: ApiService) -> None:
    made = await service.result("POST", f"{CONTEXTS}?contextId=e", {"schemaTitle": "system.Pipeline"})
    newer = await service.result("PATCH", f"{CONTEXTS}/e", {"description": "1"})
    answer = await service.call("PATCH", f"{CONTEXTS}/e", {"description": "2", "etag": made["etag"]})
    assert (answer.status, answer.error["status"]) == (409, "ABORTED")
    assert answer.error["message"] == (
        f"Specified Context `etag`: `{made['etag']}` does not match server `etag`: `{newer['etag']}`"
    )
    assert (await service.call("DELETE", f"{CONTEXTS}/e?etag={made['etag']}")).status == 409


async def test_experiment_patch_with_a_stale_etag_is_merged(service: ApiService) -> None:
    experiment = {"schemaTitle": "system.Experiment", "metadata": {"mine": 1}}
    made = await service.result("POST", f"{CONTEXTS}?contextId=e", experiment)
    await service.result("PATCH", f"{CONTEXTS}/e", {"metadata": {"mine": 1, "others": 2}})
    stale = {"metadata": {"mine": 3, "mine/deep": 4}, "etag": made["etag"]}
    merged = await service.result("PATCH", f"{CONTEXTS}/e", stale)
    assert merged["metadata"] == {"mine": 3, "mine/deep": 4, "others": 2}
    answer = await service.call("PATCH", f"{CONTEXTS}/e", stale | {"etag": "1" * 5000})
    assert answer.error["status"] == "ABORTED"


async def test_concurrent_writers_of_an_experiment_run_lose_no_values(service: ApiService) -> None:
    made = await create_run(service)
    patches = [{"_params": {f"p{n}": n}, "_metrics": {f"m{n}": n}} for n in range(9)]
    bodies = [{"etag": made["etag"], "metadata": metadata} for metadata in patches]
    await asyncio.gather(*(service.result("PATCH", f"{CONTEXTS}/e-r", body) for body in bodies))
    metadata = (await service.result("GET", f"{CONTEXTS}/e-r"))["metadata"]
    assert metadata["_params"] == {f"p{number}": number for number in range(9)}
    assert metadata["_metrics"] == {f"m{number}": number for number in range(9)}
    # A writer that repeats an old value does not overwrite a newer value of another writer.
    etag = (await service.result("GET", f"{CONTEXTS}/e-r"))["etag"]
    for metrics in ({"m1": 0.9}, {"m1": 0.8}, {"m1": 1, "loss": 2}):
        body = {"etag": etag, "metadata": {"_metrics": metrics}}
        await service.result("PATCH", f"{CONTEXTS}/e-r", body)
    metrics = (await service.result("GET", f"{CONTEXTS}/e-r"))["metadata"]["_metrics"]
    assert (metrics["m1"], metrics["loss"]) == (0.8, 2)


def test_change_history_of_a_metadata_node_is_limited() -> None:
    run = records.with_changes(make_node(context("r")), {"_metrics": {"loss": 9.5}}, 1_001)
    for etag in range(1_002, 4_000):
        run = records.with_changes(run, {"_metrics": {"loss": etag / 7}}, etag)
    assert len(str(run.changes)) < 50_000
    for seen, value in ((1_001, 9.5), (3_998, 3_998 / 7)):
        assert records.merge(run, {"_metrics": {"loss": value}}, seen) == run.metadata
    for value in ("x" * 99_999, 1):
        run = records.with_changes(run, {"_metrics": {"loss": value}}, 4_000)
    assert len(str(run.changes)) < 150_000
    records.with_changes(run, {"_params": dict.fromkeys(map(str, range(20_001)), 1)}, 4_001)


async def test_metadata_links_do_not_change_the_etag(service: ApiService) -> None:
    await create_run(service, "e")
    run = await create_run(service)
    artifact = await service.result("POST", ARTIFACTS, {"displayName": "a", "uri": "gs://b/a"})
    await add_to_context(service, "e", "Children", childContexts=run["name"])
    await add_to_context(service, "e-r", "ArtifactsAndExecutions", artifacts=artifact["name"])
    shown = await service.result("GET", f"{CONTEXTS}/e-r")
    assert shown["etag"] == run["etag"]
    assert shown["parentContexts"] == [f"{STORE}/contexts/e"]


async def test_artifacts_are_found_by_their_uri(service: ApiService) -> None:
    for artifact, uri in (("a", "gs://b/1"), ("b", "gs://b/2"), ("c", "gs://b/1")):
        body = {"uri": uri, "schemaTitle": f"system.{artifact}"}
        await service.result("POST", f"{ARTIFACTS}?artifactId={artifact}", body)
    assert await filter_ids(service, ARTIFACTS, 'uri="gs://b/1"') == ["a", "c"]
    either = 'schema_title="system.c" AND (uri="gs://b/1" OR uri="gs://b/2")'
    assert await filter_ids(service, ARTIFACTS, either) == ["c"]
    assert await filter_ids(service, ARTIFACTS, 'NOT uri="gs://b/1"') == ["b"]
    assert await filter_ids(service, ARTIFACTS, 'uri=""') == []
    assert (await service.result("GET", f"{ARTIFACTS}/a"))["metadata"] == {}


async def test_filters_of_the_vertex_sdk_are_supported(service: ApiService) -> None:
    await service.result("POST", f"{CONTEXTS}?contextId=e", {"schemaTitle": "system.Experiment"})
    run = await create_run(service)
    await create_run(service, "f-r")
    system_run = {"schemaTitle": "system.Run"}
    execution = await service.result("POST", f"{EXECUTIONS}?executionId=x", system_run)
    await add_to_context(service, "e", "Children", childContexts=run["name"])
    await add_to_context(service, "e", "ArtifactsAndExecutions", executions=execution["name"])
    experiment = f"{STORE}/contexts/e"
    runs = '(schema_title="system.ExperimentRun" OR schema_title="system.PipelineRun")'
    assert await filter_ids(service, CONTEXTS, f'{runs} AND parent_contexts:"{experiment}"') == ["e-r"]
    assert await filter_ids(service, CONTEXTS, runs) == ["e-r", "f-r"]
    assert await filter_ids(service, CONTEXTS, f'parent_contexts:"f-r","{experiment}"') == ["e-r"]
    assert await filter_ids(service, CONTEXTS, 'child_contexts: "e-r"') == ["e"]
    inside = f'(schema_title="system.Run") AND in_context("{experiment}")'
    assert await filter_ids(service, EXECUTIONS, inside) == ["x"]
    assert await filter_ids(service, EXECUTIONS, 'in_context("f-r")') == []
    # A filter cannot read another store.
    others = EXECUTIONS.replace("default", "mine")
    await service.result("POST", f"{STORES}?metadataStoreId=mine", {})
    assert await filter_ids(service, others, inside) == []
    assert await filter_ids(service, CONTEXTS, "schema_title = system.Experiment") == ["e"]
    assert await filter_ids(service, EXECUTIONS, 'create_time < "9999-12-31" AND create_time > "0001-01-01"')
    for wrong in ("banana=1", "in_context(", 'in_context("a"', "metadata", "create_time > x"):
        answer = await service.call("GET", f"{CONTEXTS}?{urlencode({'filter': wrong})}")
        assert fields(answer) == {"filter"}, wrong
    answer = await service.call("GET", f"{CONTEXTS}?{urlencode({'orderBy': 'banana'})}")
    assert fields(answer) == {"order_by"}


async def test_metadata_nodes_are_filtered_by_fields(service: ApiService) -> None:
    """facts/experiments#filters: fields, labels, times and metadata values."""
    run = {"_metrics": {"acc": 0.5, "n": 3}, "done": True, "who": "me"}
    labelled = {"displayName": "a*b[c]?", "labels": {"team": "y"}, "schemaTitle": "system.Pipeline"}
    service.clock += 7  # These nanoseconds are not part of the response.
    made = await service.result("POST", f"{CONTEXTS}?contextId=e", labelled)
    await create_run(service, "r1", **run)
    await create_run(service, "r2")
    await service.result("PATCH", f"{CONTEXTS}/r2", {"labels": {"team": "x"}})
    for text, expected in (
        ("", ["e", "r1", "r2"]),
        ("NOT schema_title=system.ExperimentRun", ["e"]),
        ('display_name:"b["', ["e"]),
        ('display_name:"a*[c]?"', ["e"]),
        ('display_name:"a*[d]*"', []),
        ("name=contexts/r2", ["r2"]),
        ("labels.team=y OR metadata._metrics.acc.number_value > 0.4", ["e", "r1"]),
        ("labels.team:*", ["e", "r2"]),
        ("labels:teams", []),
        (f'create_time="{made["createTime"]}"', ["e", "r1", "r2"]),
        ("metadata._metrics.struct_value.fields.acc.string_value = 0.5", []),
        ("metadata._metrics.n.number_value <= 3.0", ["r1"]),
        ("metadata.done = true", ["r1"]),
        ('metadata.who:"m*"', ["r1"]),
        ("NOT metadata.who=me", ["e", "r2"]),
        ("metadata.who.deeper=me", []),
        ('child_contexts:"r1" OR schema_title=system.Pipeline', ["e"]),
        ('NOT parent_contexts:"e" AND labels.team=x', ["r2"]),
    ):
        assert await filter_ids(service, CONTEXTS, text) == expected, text
    for wrong in ("metadata.done.bool_value=x", "metadata.n.number_value=x", "parent_contexts!=e"):
        answer = await service.call("GET", f"{CONTEXTS}?{urlencode({'filter': wrong})}")
        assert fields(answer) == {"filter"}, wrong


async def test_metadata_list_is_paged(service: ApiService) -> None:
    for number in range(5):
        service.clock += 1
        await create_run(service, f"r{number}")
    page = await service.result("GET", f"{CONTEXTS}?pageSize=3&orderBy=create_time%20desc")
    assert [context["name"][-2:] for context in page["contexts"]] == ["r4", "r3", "r2"]
    path = f"{CONTEXTS}?pageSize=3&orderBy=create_time%20desc&pageToken={page['nextPageToken']}"
    rest = (await service.result("GET", path))["contexts"]
    assert [context["name"][-2:] for context in rest] == ["r1", "r0"]


async def test_metadata_execution_shows_its_inputs_and_outputs(service: ApiService) -> None:
    names = dict[str, str]()
    for name in ("data", "model"):
        path, body = f"{ARTIFACTS}?artifactId={name}", {"uri": f"gs://b/{name}"}
        names[name] = (await service.result("POST", path, body))["name"]
    body = {"state": "RUNNING", "schemaTitle": "system.ContainerExecution"}
    execution = await service.result("POST", f"{EXECUTIONS}?executionId=x", body)
    assert execution["state"] == "RUNNING"
    events = [{"artifact": names["data"], "type": "INPUT"}, {"artifact": names["model"], "type": 2}]
    await service.result("POST", f"{EXECUTIONS}/x:addExecutionEvents", {"events": events})
    await service.result("PATCH", f"{EXECUTIONS}/x", {"state": "COMPLETE"})
    graph = await service.result("GET", f"{EXECUTIONS}/x:queryExecutionInputsAndOutputs")
    assert {resource["name"] for resource in graph["artifacts"]} == set(names.values())
    assert [resource["state"] for resource in graph["executions"]] == ["COMPLETE"]
    assert {resource["type"] for resource in graph["events"]} == {"INPUT", "OUTPUT"}


async def create_job(service: ApiService, **spec: Any) -> Any:
    return await service.call("POST", f"{LOCATION}/customJobs", custom_job(**spec))


async def test_clients_cannot_remove_jobs_from_the_job_list_of_an_experiment_run(service: ApiService) -> None:
    """facts/experiments#jobs: the metadata of a run contains its jobs, which clients cannot remove."""
    experiment, run = f"{STORE}/contexts/e", f"{STORE}/contexts/e-r"
    await create_run(service, "e")
    made = await create_run(service, note="x" * 199_900)
    names = [
        (await create_job(service, experiment=experiment, experimentRun=run)).json["name"] for _ in range(2)
    ]
    shown = await service.result("GET", f"{CONTEXTS}/e-r")
    assert [job["custom_job_resource_name"] for job in shown["metadata"]["_custom_jobs"]] == names
    assert shown["etag"] == made["etag"]
    # The jobs do not count toward the limit of a client that sends them back. Other metadata does.
    patch = {"etag": made["etag"], "metadata": shown["metadata"] | {"_metrics": {"a": 1}}}
    changed = await service.result("PATCH", f"{CONTEXTS}/e-r", patch)
    assert len(changed["metadata"]["_custom_jobs"]) == 2
    beyond = {"etag": made["etag"], "metadata": {"_params": {"p": "x" * 60}}}
    assert fields(await service.call("PATCH", f"{CONTEXTS}/e-r", beyond)) == {"context.metadata"}


async def test_job_of_an_experiment_gets_a_new_run(service: ApiService) -> None:
    """facts/experiments#jobs: the service creates a run for a job that only specifies an experiment."""
    await create_run(service, "e")
    job = (await create_job(service, experiment=f"{STORE}/contexts/e")).json
    run = job["jobSpec"]["experimentRun"]
    stored = await service.result("GET", f"/v1/{job['name']}")
    assert stored["jobSpec"]["experimentRun"] == run
    shown = await service.result("GET", f"{CONTEXTS}/{run.rpartition('/')[2]}")
    assert shown["parentContexts"] == [f"{STORE}/contexts/e"]
    assert shown["metadata"]["_custom_jobs"][0]["custom_job_resource_name"] == job["name"]
    # A rejected job leaves no run.
    labelled = custom_job(experiment=f"{STORE}/contexts/e") | {"labels": {STALL_LABEL: "soon"}}
    refused = await service.call("POST", f"{LOCATION}/customJobs", labelled)
    assert fields(refused) == {f"labels.{STALL_LABEL}"}
    assert await filter_ids(service, CONTEXTS, "") == ["e", run.rpartition("/")[2]]


async def test_job_with_a_missing_or_foreign_experiment_is_rejected(service: ApiService) -> None:
    """facts/experiments#jobs: the experiment must exist in the project of the job."""
    for spec, expected in (
        ({"experiment": f"{STORE}/contexts/e"}, {"job_spec.experiment"}),
        ({"experiment": "e"}, {"job_spec.experiment"}),
        ({"experimentRun": f"{STORE}/contexts/e-r"}, {"job_spec.experiment", "job_spec.experiment_run"}),
    ):
        assert fields(await create_job(service, **spec)) == expected
    await create_run(service, "e")
    answer, absent = [
        await service.call(
            "POST",
            f"{LOCATION.replace('p1', 'p2')}/customJobs",
            custom_job(experiment=f"{STORE}/contexts/{name}"),
        )
        for name in ("e", "f")
    ]
    assert fields(answer) == {"job_spec.experiment"}
    # The error does not reveal which of the two experiments exists.
    assert absent.error["message"] == answer.error["message"].replace("contexts/e", "contexts/f")
