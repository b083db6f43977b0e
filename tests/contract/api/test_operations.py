"""Long-running operations over REST: get, wait, list, cancel and delete (facts/resources#vertex)."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, SECOND, START, ApiService
from tests.people import add_user
from trainshed.access.book import AccessBook
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid, StudyName
from trainshed.core.study.records import Study, StudyUid, Trial, TrialState
from trainshed.core.study.spec import Goal, Metric, Parameter, ParameterType, StudySpec
from trainshed.store.records import Operation, OperationKind

STUDY = StudyName("p1", "us-central1", "7")
UID = StudyUid(7)
SUGGESTION = Operation(
    name=f"{STUDY}/operations/1",
    kind=OperationKind.SUGGEST,
    target=str(STUDY),
    created=START,
    updated=START,
    state=OperationState.RUNNING,
    study=UID,
    client="c1",
    count=2,
)
CHECK = replace(
    SUGGESTION,
    name=f"{STUDY.trial(1)}/operations/2",
    kind=OperationKind.CHECK_STOPPING,
    target=STUDY.trial(1),
    trial=1,
)


async def store_study(service: ApiService, *operations: Operation) -> None:
    """Store a study with these running operations."""
    spec = StudySpec((Parameter("x", ParameterType.DOUBLE, 0, 1),), (Metric("loss", Goal.MINIMIZE),))
    await service.store.studies.create(Study(UID, STUDY, "study", spec, "{}", START))
    for operation in operations:
        await service.store.studies.begin_operation(operation)


async def finish_suggestion(service: ApiService) -> None:
    """Finish the operation like the controller, with two new trials."""
    trials = [Trial(UID, 0, TrialState.ACTIVE, (("x", 0.5),), START, client="c1") for _ in range(2)]
    done = replace(SUGGESTION, state=OperationState.SUCCEEDED, updated=START + SECOND)
    await service.store.studies.finish_operation(done, suggested=trials)
    service.notices.publish(JobUid(UID))


async def get_operation(service: ApiService, name: str, prefix: str = "/ui/") -> dict[str, Any]:
    return await service.result("GET", f"{prefix}{name}")


@pytest.mark.parametrize("prefix", ["/ui/", "/v1/", "/v1beta1/"])
async def test_suggest_operation_is_shown_running_and_finished(service: ApiService, prefix: str) -> None:
    """spec/clients#surface: operation names are below studies. REST clients poll below /ui/, gcloud
    below /v1/."""
    await store_study(service, SUGGESTION)
    version = "v1beta1" if prefix == "/v1beta1/" else "v1"
    running = await get_operation(service, SUGGESTION.name, prefix)
    assert "done" not in running
    assert "response" not in running
    assert running["metadata"]["clientId"] == "c1"
    assert running["metadata"]["@type"].endswith(f".{version}.SuggestTrialsMetadata")
    await finish_suggestion(service)
    done = await get_operation(service, SUGGESTION.name, prefix)
    response = done["response"]
    assert done["done"] is True
    assert response["@type"].endswith(f".{version}.SuggestTrialsResponse")
    assert response["studyState"] == "ACTIVE"
    assert (response["startTime"], response["endTime"]) == ("2025-10-09T08:53:20Z", "2025-10-09T08:53:21Z")
    assert [trial["id"] for trial in response["trials"]] == ["1", "2"]
    assert response["trials"][0]["parameters"] == [{"parameterId": "x", "value": 0.5}]
    assert {trial["clientId"] for trial in response["trials"]} == {"c1"}


@pytest.mark.parametrize("status", [200, 401])
async def test_wait_method_returns_when_the_operation_finishes(
    status: int, service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """401: the caller's token is revoked during the wait."""
    token = add_user(service.tokens, "ana@corp.example", "roles/aiplatform.user", "p1")
    waits, wait_beyond = asyncio.Event(), service.notices.wait_beyond

    async def signal_and_wait(uid: JobUid, count: int, patience: float) -> bool:
        waits.set()
        return await wait_beyond(uid, count, patience)

    monkeypatch.setattr(service.notices, "wait_beyond", signal_and_wait)
    await store_study(service, SUGGESTION)
    path = f"/v1/{SUGGESTION.name}:wait?timeout=60s"
    waiting = asyncio.create_task(service.call("POST", path, token=token))
    await asyncio.wait_for(waits.wait(), 60)
    if status == 401:
        service.tokens.replace(AccessBook())
    await finish_suggestion(service)
    answer = await asyncio.wait_for(waiting, 60)
    assert (answer.status, "done" in answer.json) == (status, status == 200)


async def test_wait_method_returns_an_unfinished_operation_at_timeout_or_service_stop(
    service: ApiService,
) -> None:
    await store_study(service, SUGGESTION)
    answer = await service.result("POST", f"/ui/{SUGGESTION.name}:wait?timeout=0.01s")
    assert "done" not in answer
    waiting = asyncio.create_task(service.call("POST", f"/v1/{SUGGESTION.name}:wait"))
    service.services.closing.set()
    assert "done" not in (await asyncio.wait_for(waiting, 60)).json


async def test_cancel_ends_a_running_operation_and_does_not_change_a_finished_operation(
    service: ApiService,
) -> None:
    await store_study(service, SUGGESTION)
    assert await service.result("POST", f"/v1/{SUGGESTION.name}:cancel") == {}
    view = await get_operation(service, SUGGESTION.name)
    assert (view["done"], view["error"]["code"]) == (True, 1)
    assert await service.store.studies.running_operations() == ()
    assert await service.result("POST", f"/v1/{SUGGESTION.name}:cancel") == {}
    assert await get_operation(service, SUGGESTION.name) == view
    unknown = await service.call("POST", f"/v1/{SUGGESTION.name}9:cancel")
    assert unknown.status == 404


async def test_operations_are_listed_by_parent_and_done(service: ApiService) -> None:
    others = [replace(SUGGESTION, name=f"{STUDY}/operations/{number}") for number in (3, 4)]
    await store_study(service, SUGGESTION, CHECK, *others)
    await finish_suggestion(service)

    async def list_ids(parent: str, query: str = "") -> list[str]:
        answer = await service.result("GET", f"{parent}/operations?{query}")
        return [operation["name"].rpartition("/")[2] for operation in answer.get("operations", [])]

    study = f"/ui/{STUDY}"
    assert await list_ids(study) == ["1", "3", "4"]
    assert await list_ids(f"/ui/{STUDY.trial(1)}") == ["2"]
    assert await list_ids(LOCATION) == []
    for query in ("filter=done=true", "filter=done:true"):
        assert await list_ids(study, query) == ["1"]
    for query in ("filter=done=false", "filter=NOT%20done=true", "filter=done!=true"):
        assert await list_ids(study, query) == ["3", "4"]
    page = await service.result("GET", f"{study}/operations?pageSize=1&filter=done=false")
    token = page["nextPageToken"]
    assert await list_ids(study, f"pageSize=1&filter=done=false&pageToken={token}") == ["4"]
    for query in ("filter=size=3", "filter=done>true", f"pageToken={token}"):
        answer = await service.call("GET", f"{study}/operations?{query}")
        assert answer.error["status"] == "INVALID_ARGUMENT"


async def test_finished_operations_are_deleted_with_their_study(service: ApiService) -> None:
    await store_study(service, SUGGESTION)
    await finish_suggestion(service)
    await service.store.studies.delete_trial(UID, 1)
    assert [t["id"] for t in (await get_operation(service, SUGGESTION.name))["response"]["trials"]] == ["2"]
    await service.store.studies.delete_study(STUDY, service.clock)
    assert (await service.call("GET", f"/ui/{SUGGESTION.name}")).status == 404


async def test_only_a_finished_operation_can_be_deleted(service: ApiService) -> None:
    """google.longrunning: a finished operation can be deleted, a running one cannot."""
    await store_study(service, SUGGESTION, CHECK)
    await finish_suggestion(service)
    assert await service.result("DELETE", f"/ui/{SUGGESTION.name}") == {}
    for method in ("GET", "DELETE"):
        assert (await service.call(method, f"/v1/{SUGGESTION.name}")).status == 404
    answer = await service.call("DELETE", f"/v1/{CHECK.name}")
    assert answer.error["status"] == "FAILED_PRECONDITION"
    assert "cancel it" in answer.error["message"]
    assert "done" not in await get_operation(service, CHECK.name)
