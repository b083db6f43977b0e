"""`aiplatform` v1 studies and trials over REST against a real store (spec/tuning#studies,
spec/tuning#trials, facts/resources#trials, facts/tuning, spec/clients#conflicts)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, Answer, ApiService
from tests.contract.api.fake_advisor import OWN, SPEC, FakeAdvisor, add_advisor
from tests.contract.api.violations import violations
from trainshed.api.aiplatform_v1 import studies
from trainshed.core.names import StudyName
from trainshed.core.study.records import StudyState, StudyUid

STUDIES = f"{LOCATION}/studies"
FINAL = {"finalMeasurement": {"stepCount": "7", "metrics": [{"metricId": "loss", "value": 0.25}]}}


@pytest.fixture(autouse=True)
def advisor(service: ApiService, monkeypatch: pytest.MonkeyPatch) -> FakeAdvisor:
    monkeypatch.setattr(studies, "OPERATION_TIMEOUT", 60.0)
    return add_advisor(service)


async def study(service: ApiService, name: str = "tune", **spec: Any) -> str:
    answer = await service.result("POST", STUDIES, {"displayName": name, "studySpec": SPEC | spec})
    return f"/v1/{answer['name']}"


async def suggest(service: ApiService, path: str, client: str = "a", count: int = 1) -> Answer:
    body = {"suggestionCount": count, "clientId": client}
    return await service.call("POST", f"{path}/trials:suggest", body)


async def suggest_trials(service: ApiService, path: str, client: str = "a", count: int = 1) -> list[Any]:
    return (await suggest(service, path, client, count)).json["response"].get("trials", [])


async def measure(service: ApiService, trial: str, value: Any, **more: Any) -> Answer:
    measurement = {"metrics": [{"metricId": "loss", "value": value}]} | more
    return await service.call("POST", f"/v1/{trial}:addTrialMeasurement", {"measurement": measurement})


def precondition(answer: Answer) -> str:
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION"), answer.body
    return answer.error["message"]


# --- suggestions


async def test_suggestion_is_a_finished_operation_that_can_be_polled(service: ApiService) -> None:
    """facts/resources#trials, spec/clients#surface: the operation's name is below the study, and
    the SDK polls it below /ui/."""
    path = await study(service)
    answer = await suggest(service, path)
    operation = answer.json
    assert operation["done"] is True
    assert operation["name"].startswith(path.removeprefix("/v1/") + "/operations/")
    assert operation["metadata"]["clientId"] == "a"
    assert operation["response"]["studyState"] == "ACTIVE"
    (trial,) = operation["response"]["trials"]
    assert trial["name"] == path.removeprefix("/v1/") + "/trials/1"
    assert (trial["id"], trial["state"], trial["clientId"]) == ("1", "ACTIVE", "a")
    assert trial["parameters"] == [
        {"parameterId": "layers", "value": 2},
        {"parameterId": "model", "value": "deep"},
        {"parameterId": "rate", "value": 0.001},
    ]
    assert await service.result("GET", f"/ui/{operation['name']}") == operation
    assert await service.result("GET", f"/v1/{trial['name']}") == trial


async def test_client_gets_its_pending_trial_again(service: ApiService) -> None:
    """Google's documentation: a client gets the identical trial while it is pending."""
    path = await study(service)
    (first,) = await suggest_trials(service, path, "a")
    first = (await measure(service, first["name"], 0.5)).json
    (again,) = await suggest_trials(service, path, "a")
    (other,) = await suggest_trials(service, path, "b")
    assert again == first
    assert other["id"] == "2"
    await service.call("POST", f"/v1/{first['name']}:complete", FINAL)
    (next_one,) = await suggest_trials(service, path, "a")
    assert next_one["id"] == "3"


async def test_slow_suggestion_returns_an_unfinished_operation(
    service: ApiService, advisor: FakeAdvisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "OPERATION_TIMEOUT", 0.01)
    advisor.asleep = True
    path = await study(service)
    operation = (await suggest(service, path, count=2)).json
    assert "done" not in operation and "response" not in operation
    await advisor.work_off(StudyUid(int(path.rpartition("/")[2])))
    polled = await service.result("GET", f"/ui/{operation['name']}")
    assert polled["done"] is True
    assert [trial["id"] for trial in polled["response"]["trials"]] == ["1", "2"]


async def test_client_without_id_gets_its_active_trial_again(service: ApiService) -> None:
    path = await study(service)
    request = {"suggestionCount": 1}
    numbers = [
        (await service.result("POST", f"{path}/trials:suggest", body))["response"]["trials"][0]["id"]
        for body in (request, request, request | {"clientId": "a"})
    ]
    assert numbers == ["1", "1", "2"]


async def test_invalid_number_of_suggestions_is_rejected(service: ApiService) -> None:
    """spec/submit#refusals. Google's documentation: the count must be positive."""
    path = await study(service)
    for count in (0, -1, 1_001):
        answer = await suggest(service, path, count=count)
        assert list(violations(answer)) == ["suggestion_count"]
    assert await service.result("GET", f"{path}/operations") == {}


async def test_suggestion_contexts_are_rejected_unless_empty(service: ApiService) -> None:
    path = await study(service)
    body: dict[str, Any] = {"suggestionCount": 1, "clientId": "a"}
    blank: dict[str, Any] = {}
    context = {"parameters": [{"parameterId": "rate", "value": 0.5}]}
    answer = await service.call("POST", f"{path}/trials:suggest", body | {"contexts": [context]})
    assert answer.error["status"] == "UNIMPLEMENTED"
    single = await service.call("POST", f"{path}/trials:suggest", body | {"contexts": [blank]})
    assert single.json["done"] is True
    two = await service.call("POST", f"{path}/trials:suggest", body | {"contexts": [blank, blank]})
    assert list(violations(two)) == ["contexts"]


async def test_number_of_trials_of_a_study_is_limited(service: ApiService) -> None:
    """facts/tuning#metrics: the number of a study's trials is limited. A client with a pending
    trial still gets that trial."""
    add_advisor(service, max_study_trials=2)
    path = await study(service)
    await suggest_trials(service, path, "a", 2)
    full = await suggest(service, path, "b")
    assert "the maximum of 2 trials" in precondition(full)
    assert "the maximum of 2 trials" in precondition(await service.call("POST", f"{path}/trials", OWN))
    assert len(await suggest_trials(service, path, "a", 5)) == 2
    await service.call("DELETE", f"{path}/trials/1")
    assert [trial["id"] for trial in await suggest_trials(service, path, "b")] == ["3"]


async def test_finished_study_suggests_only_pending_trials(service: ApiService) -> None:
    path = await study(service)
    await suggest_trials(service, path, "a")
    name = StudyName.parse(path.removeprefix("/v1/"))
    await service.store.studies.change(
        name, lambda study: replace(study, state=StudyState.COMPLETED, inactive_reason="all was tried")
    )
    assert [trial["id"] for trial in await suggest_trials(service, path, "a", 3)] == ["1"]
    other = await suggest(service, path, "b")
    assert "is COMPLETED (all was tried)" in precondition(other)


# --- measurements


async def test_measurements_are_ordered_and_equal_steps_are_replaced(service: ApiService) -> None:
    """facts/resources#trials: measurements are ordered by (steps, elapsed time)."""
    (trial,) = await suggest_trials(service, await study(service))
    await measure(service, trial["name"], 0.5, stepCount="2", elapsedDuration="3.5s")
    await measure(service, trial["name"], 0.7, stepCount=1)
    answer = await measure(service, trial["name"], 0.4, stepCount="2", elapsedDuration="3.5s")
    assert answer.json["measurements"] == [
        {"stepCount": "1", "metrics": [{"metricId": "loss", "value": 0.7}]},
        {"elapsedDuration": "3.500s", "stepCount": "2", "metrics": [{"metricId": "loss", "value": 0.4}]},
    ]
    assert await service.result("GET", f"/v1/{trial['name']}") == answer.json


# --- the end of a trial


async def test_trial_is_completed_once_with_its_final_measurement(service: ApiService) -> None:
    (trial,) = await suggest_trials(service, await study(service))
    service.clock += 60 * 10**9
    done = await service.result("POST", f"/v1/{trial['name']}:complete", FINAL)
    assert (done["state"], done["finalMeasurement"]) == ("SUCCEEDED", FINAL["finalMeasurement"])
    assert done["endTime"] == "2025-10-09T08:54:20Z"
    for verb in (":complete", ":stop", ":checkTrialEarlyStoppingState"):
        late = await service.call("POST", f"/v1/{trial['name']}{verb}", {})
        assert "has already finished" in precondition(late), verb
    assert "has already finished" in precondition(await measure(service, trial["name"], 0.1, stepCount=9))
    assert await service.result("GET", f"/v1/{trial['name']}") == done


async def test_trial_completed_without_a_measurement_becomes_infeasible(service: ApiService) -> None:
    """facts/resources#trials: an INFEASIBLE trial is finished and has no final measurement."""
    path = await study(service)
    first, second = await suggest_trials(service, path, count=2)
    done = await service.result("POST", f"/v1/{first['name']}:complete", {})
    assert done["state"] == "INFEASIBLE"
    assert "without a measurement" in done["infeasibleReason"]
    body = FINAL | {"trialInfeasible": True, "infeasibleReason": "diverged"}
    done = await service.result("POST", f"/v1/{second['name']}:complete", body)
    assert (done["state"], done["infeasibleReason"]) == ("INFEASIBLE", "diverged")
    assert "finalMeasurement" not in done


@pytest.mark.parametrize("stops", [True, False])
async def test_early_stopping_check_returns_an_operation_of_the_trial(
    service: ApiService, advisor: FakeAdvisor, stops: bool
) -> None:
    """spec/clients#surface: checkTrialEarlyStoppingState is a long-running operation."""
    advisor.stops = stops
    (trial,) = await suggest_trials(service, await study(service))
    answer = await service.call("POST", f"/v1/{trial['name']}:checkTrialEarlyStoppingState", {})
    operation = answer.json
    assert operation["done"] is True
    assert operation["name"].startswith(f"{trial['name']}/operations/")
    assert operation["metadata"]["trial"] == trial["name"]
    assert operation["response"].get("shouldStop", False) is stops
    assert await service.result("GET", f"/ui/{operation['name']}") == operation


# --- a client's own trials


async def test_trial_in_state_requested_is_suggested_first(service: ApiService) -> None:
    """Google's documentation: a REQUESTED trial is requested and not suggested yet."""
    path = await study(service)
    made = await service.result("POST", f"{path}/trials", OWN | {"clientId": "me"})
    assert (made["state"], made["id"]) == ("REQUESTED", "1")
    assert "clientId" not in made
    first, second = await suggest_trials(service, path, "a", 2)
    assert (first["id"], first["state"], first["parameters"]) == ("1", "ACTIVE", OWN["parameters"])
    assert second["id"] == "2"


async def test_trial_created_with_a_result_is_finished(service: ApiService) -> None:
    path = await study(service)
    made = await service.result("POST", f"{path}/trials", OWN | FINAL)
    assert (made["state"], made["finalMeasurement"]) == ("SUCCEEDED", FINAL["finalMeasurement"])
    sad = {"state": "INFEASIBLE", "infeasibleReason": "no memory"}
    made = await service.result("POST", f"{path}/trials", OWN | sad)
    assert (made["state"], made["infeasibleReason"]) == ("INFEASIBLE", "no memory")
    curve = [{"stepCount": "3", "metrics": [{"metricId": "loss", "value": 0.75}]}]
    body = OWN | {"state": "SUCCEEDED", "measurements": curve}
    made = await service.result("POST", f"{path}/trials", body)
    assert (made["measurements"], made["finalMeasurement"]) == (curve, curve[0])


async def test_list_of_trials_is_returned_in_pages_and_omits_deleted_trials(service: ApiService) -> None:
    path = await study(service)
    await suggest_trials(service, path, count=5)
    await service.call("DELETE", f"{path}/trials/2")
    seen: list[str] = []
    token = ""
    for _ in range(2):
        page = await service.result("GET", f"{path}/trials?pageSize=2&pageToken={token}")
        seen += [trial["id"] for trial in page["trials"]]
        token = page.get("nextPageToken", "")
    assert (seen, token) == (["1", "3", "4", "5"], "")
    whole = await service.result("GET", f"{path}/trials")
    assert [trial["id"] for trial in whole["trials"]] == seen
    for verb, rest in (("GET", ""), ("DELETE", ""), ("POST", ":complete"), ("POST", ":stop")):
        gone = await service.call(verb, f"{path}/trials/2{rest}", {} if verb == "POST" else None)
        assert (gone.status, gone.error["status"]) == (404, "NOT_FOUND"), (verb, rest)
    assert (await service.call("GET", f"{path}/trials/two")).status == 400


async def test_optimal_trials_of_several_objectives_are_the_pareto_front(service: ApiService) -> None:
    """spec/tuning#objectives: the study API supports several objectives."""
    metrics = [{"metricId": "loss", "goal": "MINIMIZE"}, {"metricId": "speed", "goal": "MAXIMIZE"}]
    path = await study(service, metrics=metrics)
    for trial, (loss, speed) in zip(
        await suggest_trials(service, path, count=4), ((1, 1), (2, 3), (3, 2), (0.5, 0.5)), strict=True
    ):
        values = [{"metricId": "loss", "value": loss}, {"metricId": "speed", "value": speed}]
        await service.call("POST", f"/v1/{trial['name']}:complete", {"finalMeasurement": {"metrics": values}})
    answer = await service.result("POST", f"{path}/trials:listOptimalTrials", {})
    assert [trial["id"] for trial in answer["optimalTrials"]] == ["1", "2", "4"]


async def test_study_with_existing_name_is_rejected_and_found_by_lookup(service: ApiService) -> None:
    """spec/clients#conflicts: Study.create_or_load finds the study by this error 409."""
    path = await study(service)
    again = await service.call("POST", STUDIES, {"displayName": "tune", "studySpec": SPEC})
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")
    answer = await service.call("POST", f"{STUDIES}:lookup", {"displayName": "tune"})
    assert f"/v1/{answer.json['name']}" == path
    missing = await service.call("POST", f"{STUDIES}:lookup", {"displayName": "other"})
    assert (missing.status, missing.error["status"]) == (404, "NOT_FOUND")


async def test_deleting_a_study_deletes_its_trials_and_frees_its_name(service: ApiService) -> None:
    path = await study(service)
    assert (await service.call("POST", f"{path}/trials", OWN)).status == 200
    answer = await service.call("DELETE", path)
    assert (answer.status, answer.json) == (200, {})
    for below in ("", "/trials", "/trials/1"):
        gone = await service.call("GET", f"{path}{below}")
        assert (gone.status, gone.error["status"]) == (404, "NOT_FOUND"), below
    assert (await service.call("DELETE", path)).status == 404
    assert await study(service) != path
