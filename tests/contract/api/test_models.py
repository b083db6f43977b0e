"""`aiplatform` v1 models over REST against a real store, for training pipelines and the SDK
(spec/clients#surface)."""

import asyncio
from typing import Any

from tests.contract.api.api_service import LOCATION, ApiService
from tests.contract.api.violations import fields
from tests.unit.test_specs_pipeline import MODEL

MODELS = f"{LOCATION}/models"
PLACE = "projects/p1/locations/us-central1"


async def upload_model(service: ApiService, model: Any = None, **request: Any) -> dict[str, Any]:
    answer = await service.result("POST", f"{MODELS}:upload", {"model": model or MODEL, **request})
    assert answer["done"] is True
    return answer["response"]


async def get_model(service: ApiService, name: str) -> dict[str, Any]:
    return await service.result("GET", f"{MODELS}/{name}")


async def aliases(service: ApiService, model: str = "m1") -> dict[str, set[str]]:
    versions = (await service.result("GET", f"{MODELS}/{model}:listVersions"))["models"]
    return {version["versionId"]: set(version.get("versionAliases", ())) for version in versions}


async def test_upload_finishes_immediately_and_first_version_is_default(service: ApiService) -> None:
    model = MODEL | {"artifactUri": "gs://bucket/m", "versionAliases": ["gold"]}
    answer = await service.call(
        "POST", f"{MODELS}:upload", {"model": model | {"labels": {"a": "b"}}, "modelId": "m1"}
    )
    done = answer.json
    assert done["response"] == {
        "@type": "type.googleapis.com/google.cloud.aiplatform.v1.UploadModelResponse",
        "model": f"{PLACE}/models/m1",
        "modelVersionId": "1",
    }
    assert done["metadata"]["@type"].endswith("UploadModelOperationMetadata")
    assert await service.result("GET", f"/ui/{done['name']}") == done
    view = await get_model(service, "m1")
    assert {key: view[key] for key in MODEL} == MODEL
    assert (view["name"], view["versionId"]) == (f"{PLACE}/models/m1", "1")
    assert (view["artifactUri"], view["labels"]) == ("gs://bucket/m", {"a": "b"})
    assert set(view["versionAliases"]) == {"gold", "default"}
    assert view["createTime"] == view["versionCreateTime"] == "2025-10-09T08:53:20Z"
    for version in ("m1%401", "m1@gold", "m1@default"):
        assert await get_model(service, version) == {**view, "name": f"{view['name']}@1"}


async def test_upload_with_parent_model_adds_a_version(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    response = await upload_model(
        service, MODEL | {"versionAliases": ["new"]}, parentModel=f"{PLACE}/models/m1"
    )
    assert response["modelVersionId"] == "2"
    assert (await get_model(service, "m1"))["versionId"] == "1"
    assert (await get_model(service, "m1@new"))["versionId"] == "2"
    listed = (await service.result("GET", f"{MODELS}/m1:listVersions"))["models"]
    assert [version["name"] for version in listed] == [f"{PLACE}/models/m1@{n}" for n in (1, 2)]
    again = await service.call("POST", f"{MODELS}:upload", {"model": MODEL, "modelId": "m1"})
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")


async def test_uploaded_default_version_takes_over_the_default_alias(service: ApiService) -> None:
    """The SDK's is_default_version=True."""
    await upload_model(service, modelId="m1")
    model = MODEL | {"versionAliases": ["default"]}
    await upload_model(service, model, parentModel=f"{PLACE}/models/m1")
    assert (await get_model(service, "m1"))["versionId"] == "2"
    assert await aliases(service) == {"2": {"default"}, "1": set()}


async def test_all_wrong_fields_of_an_upload_are_reported_at_once(service: ApiService) -> None:
    """spec/submit#refusals."""
    model = {
        "displayName": "",
        "containerSpec": {"command": ["x"]},
        "artifactUri": "gs://nowhere/m",
        "versionAliases": ["ok-1", "1"],
        "labels": {"A": "b"},
    }
    request = {"model": model, "modelId": "1m", "parentModel": f"{PLACE}/models/none"}
    answer = await service.call("POST", f"{MODELS}:upload", request)
    assert fields(answer) == {
        "model.display_name",
        "model.container_spec.image_uri",
        "model.artifact_uri",
        "model.version_aliases[1]",
        "model.labels.A",
        "model_id",
        "parent_model",
    }
    assert await service.result("GET", MODELS) == {}


async def test_model_lists_support_filters_order_and_pages(service: ApiService) -> None:
    for number, name in enumerate(("b", "a", "c")):
        service.clock += 10**9
        model = MODEL | {"displayName": name, "labels": {"n": str(number)}}
        await upload_model(service, model, modelId=f"m{number}")

    async def list_names(query: str) -> list[str]:
        answer = await service.result("GET", f"{MODELS}?{query}")
        return [model["displayName"] for model in answer.get("models", [])]

    assert await list_names("") == ["c", "a", "b"]
    assert await list_names('filter=display_name="a"') == ["a"]
    assert await list_names('filter=displayName!="a"') == ["c", "b"]
    assert await list_names("filter=model=m0") == ["b"]
    assert await list_names("filter=labels.n=2") == ["c"]
    assert await list_names("orderBy=display_name") == ["a", "b", "c"]
    assert await list_names("orderBy=create_time%20desc,%20display_name") == ["c", "a", "b"]
    assert await list_names("filter=NOT%20labels.n=2&orderBy=display_name%20desc") == ["b", "a"]
    page = await service.result("GET", f"{MODELS}?pageSize=2&orderBy=display_name")
    assert [model["displayName"] for model in page["models"]] == ["a", "b"]
    token = page["nextPageToken"]
    await service.call("DELETE", f"{MODELS}/m1")
    assert await list_names(f"pageSize=2&orderBy=display_name&pageToken={token}") == ["c"]
    for query in (f"pageToken={token}", f"orderBy=display_name&pageToken={token}x"):
        assert fields(await service.call("GET", f"{MODELS}?{query}")) == {"page_token"}
    assert fields(await service.call("GET", f"{MODELS}?filter=size>3")) == {"filter"}
    assert fields(await service.call("GET", f"{MODELS}?orderBy=size")) == {"order_by"}


async def test_model_update_changes_all_versions_and_version_update_changes_one_version(
    service: ApiService,
) -> None:
    await upload_model(service, modelId="m1")
    await upload_model(service, parentModel=f"{PLACE}/models/m1")
    changed = {"displayName": "new", "description": "words", "labels": {"k": "v"}}
    service.clock += 10**9
    mask = "displayName,description,labels"
    answer = await service.call("PATCH", f"{MODELS}/m1?updateMask={mask}", changed)
    assert answer.status == 200, answer.body
    for version in ("m1@1", "m1@2"):
        view = await get_model(service, version)
        assert {key: view[key] for key in changed} == changed
        assert view["updateTime"] > view["createTime"]
        assert view["containerSpec"] == MODEL["containerSpec"]
    answer = await service.call(
        "PATCH", f"{MODELS}/m1@2?updateMask=versionDescription", {"versionDescription": "second"}
    )
    assert answer.json["versionDescription"] == "second"
    assert "versionDescription" not in await get_model(service, "m1@1")


async def test_invalid_model_update_is_rejected(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    nothing = await service.call("PATCH", f"{MODELS}/m1", {"displayName": "x"})
    assert fields(nothing) == {"update_mask"}
    path = f"{MODELS}/m1?updateMask=artifactUri,displayName,labels"
    several = await service.call("PATCH", path, {"displayName": "", "labels": {"K": "v"}})
    assert fields(several) == {"update_mask", "model.display_name", "model.labels.K"}
    single = await service.call("PATCH", f"{MODELS}/m1@1?updateMask=displayName", {"displayName": "x"})
    assert fields(single) == {"update_mask"}
    missing = await service.call("PATCH", f"{MODELS}/m2?updateMask=displayName", {"displayName": "x"})
    assert missing.status == 404


async def test_version_aliases_are_added_moved_and_removed(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    await upload_model(service, parentModel=f"{PLACE}/models/m1")

    async def merge(version: str, *names: str) -> Any:
        return await service.call(
            "POST", f"{MODELS}/m1@{version}:mergeVersionAliases", {"versionAliases": names}
        )

    both = (await merge("1", "gold", "blue")).json["versionAliases"]
    assert set(both) == {"default", "gold", "blue"}
    assert (await merge("2", "gold", "default")).status == 200
    assert await aliases(service) == {"2": {"default", "gold"}, "1": {"blue"}}
    assert (await merge("gold", "-gold")).status == 200
    assert (await merge("1", "-blue", "blue")).status == 200
    assert await aliases(service) == {"2": {"default"}, "1": {"blue"}}
    refused = await merge("2", "-default")
    assert refused.error["status"] == "FAILED_PRECONDITION"
    assert fields(await merge("2", "1", "ok", "-X")) == {"version_aliases[0]", "version_aliases[2]"}
    assert fields(await merge("2")) == {"version_aliases"}
    gold = {"versionAliases": ["gold"]}
    unversioned = await service.call("POST", f"{MODELS}/m1:mergeVersionAliases", gold)
    assert fields(unversioned) == {"name"}


async def test_concurrent_label_update_keeps_version_aliases(service: ApiService) -> None:
    """An earlier version lost the model's default version in this race."""
    await upload_model(service, modelId="m1")
    await upload_model(service, parentModel=f"{PLACE}/models/m1")
    gives = {"versionAliases": ["default"]}
    both = await asyncio.gather(
        service.call("POST", f"{MODELS}/m1@2:mergeVersionAliases", gives),
        service.call("PATCH", f"{MODELS}/m1@2?updateMask=labels", {"labels": {"a": "b"}}),
    )
    assert [answer.status for answer in both] == [200, 200]
    assert (await get_model(service, "m1"))["labels"] == {"a": "b"}


async def test_model_deletions_return_finished_operations(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    only = await service.call("DELETE", f"{MODELS}/m1@1:deleteVersion")
    await upload_model(service, parentModel=f"{PLACE}/models/m1")
    default = await service.call("DELETE", f"{MODELS}/m1@1:deleteVersion")
    assert only.error["status"] == default.error["status"] == "FAILED_PRECONDITION"
    done = await service.result("DELETE", f"{MODELS}/m1@2:deleteVersion")
    assert (done["done"], (await service.call("GET", f"{MODELS}/m1@2")).status) == (True, 404)
    assert fields(await service.call("DELETE", f"{MODELS}/m1@1")) == {"name"}
    done = await service.result("DELETE", f"{MODELS}/m1")
    assert done["metadata"]["@type"].endswith("DeleteOperationMetadata")
    assert (await service.call("GET", f"{MODELS}/m1")).status == 404
    assert (await service.call("DELETE", f"{MODELS}/m1")).status == 404
    await upload_model(service, modelId="m1")
    assert (await get_model(service, "m1"))["versionId"] == "1"


async def copy_model(service: ApiService, target: str = MODELS, **request: Any) -> Any:
    return await service.call("POST", f"{target}:copy", request)


async def test_copy_to_another_location_creates_an_independent_model(service: ApiService) -> None:
    """The copy has no aliases, and its artifacts remain in their place (spec/clients#surface)."""
    model = MODEL | {"artifactUri": "gs://bucket/m", "versionAliases": ["gold"]}
    await upload_model(service, model | {"labels": {"a": "b"}}, modelId="m1")
    source, there = await get_model(service, "m1"), MODELS.replace("us-central1", "europe-west4")
    answer = await copy_model(service, there, sourceModel=source["name"], modelId="m2")
    assert (answer.status, answer.json["done"]) == (200, True), answer.body
    assert answer.json["metadata"]["@type"].endswith("v1.CopyModelOperationMetadata")
    name = source["name"].replace("us-central1", "europe-west4").replace("m1", "m2")
    assert answer.json["response"] == {
        "@type": "type.googleapis.com/google.cloud.aiplatform.v1.CopyModelResponse",
        "model": name,
        "modelVersionId": "1",
    }
    copy = await service.result("GET", f"{there}/m2")
    assert copy["originalModelInfo"] == {"model": f"{source['name']}@1"}
    assert copy["modelSourceInfo"] == {"sourceType": "CUSTOM", "copy": True}
    assert copy["versionAliases"] == ["default"]
    same = ("displayName", "artifactUri", "labels", "containerSpec")
    assert {key: copy.get(key) for key in same} == {key: source.get(key) for key in same}
    assert await get_model(service, "m1") == source


async def test_version_is_copied_into_an_existing_model(service: ApiService) -> None:
    await upload_model(service, modelId="m1")
    parent = f"{PLACE}/models/m1"
    await upload_model(service, MODEL | {"displayName": "second"}, parentModel=parent)
    answer = await copy_model(service, sourceModel=f"{parent}@2", parentModel=parent)
    assert answer.json["response"]["modelVersionId"] == "3"
    assert (await get_model(service, "m1@3"))["displayName"] == "second"
    assert await aliases(service) == {"3": set(), "2": set(), "1": {"default"}}
    again = await copy_model(service, sourceModel=parent, modelId="m1")
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")


async def test_all_wrong_fields_of_a_copy_are_reported_at_once(service: ApiService) -> None:
    """spec/submit#refusals."""
    nowhere = f"{PLACE}/models/nowhere"
    wrong = await copy_model(service, sourceModel=nowhere, parentModel=nowhere)
    assert fields(wrong) == {"source_model", "parent_model"}
    wrong = await copy_model(service, sourceModel=nowhere, modelId="-M")
    assert fields(wrong) == {"source_model", "model_id"}
    assert fields(await copy_model(service)) == {"source_model"}
    await upload_model(service, modelId="m1")
    other = MODELS.replace("/p1/", "/p2/")
    assert fields(await copy_model(service, other, sourceModel=f"{PLACE}/models/m1")) == {"source_model"}
