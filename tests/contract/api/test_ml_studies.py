"""`ml` v1 studies and trials over REST against a real store, by the apiclient and by hand
(spec/tuning#studies, facts/tuning#vizier)."""

from typing import Any

import pytest

from tests.contract.api.house import LOCATION, Answer, House
from tests.contract.api.refusals import fields, violations
from tests.contract.api.studying import SPEC, Adviser, advised
from trainshed.api.resources import studies
from trainshed.api.rest import is_request_of_ml
from trainshed.core.study.records import StudyUid

pytestmark = pytest.mark.anyio
STUDIES = f"{LOCATION}/studies"
STUDY = f"{STUDIES}/tune_1"
CONFIG: dict[str, Any] = {
    "metrics": [{"metric": "loss", "goal": "MINIMIZE"}],
    "parameters": [
        {
            "parameter": "rate",
            "type": "DOUBLE",
            "doubleValueSpec": {"maxValue": 1},
        },
        {
            "parameter": "layers",
            "type": "INTEGER",
            "integerValueSpec": {"minValue": "1", "maxValue": "9"},
        },
        {
            "parameter": "model",
            "type": "CATEGORICAL",
            "categoricalValueSpec": {"values": ["linear", "deep"]},
        },
    ],
}
OWN: dict[str, Any] = {
    "parameters": [
        {"parameter": "rate", "floatValue": 0},
        {"parameter": "layers", "intValue": "2"},
        {"parameter": "model", "stringValue": "deep"},
    ]
}
FINAL = {"finalMeasurement": {"stepCount": "7", "metrics": [{"metric": "loss", "value": 0.25}]}}
APICLIENT = (("x-goog-api-client", "gdcl/2.202.0 gl-python/3.11"),)


@pytest.fixture
def adviser(house: House) -> Adviser:
    return advised(house)


async def created(house: House, study_id: str = "tune_1") -> Answer:
    answer = await house.call("POST", f"{STUDIES}?studyId={study_id}", {"studyConfig": CONFIG})
    assert answer.status == 200, answer.body
    return answer


async def suggested(house: House, client: str = "a", count: int = 1) -> list[Any]:
    asked = {"suggestionCount": count, "clientId": client}
    answer = await house.call("POST", f"{STUDY}/trials:suggest", asked)
    assert answer.status == 200, answer.body
    return answer.json["response"]["trials"]


async def test_a_study_has_the_id_that_its_client_chose(house: House) -> None:
    answer = await created(house)
    assert answer.json == {
        "name": "projects/p1/locations/us-central1/studies/tune_1",
        "studyConfig": CONFIG,
        "state": "ACTIVE",
        "createTime": "2025-10-09T08:53:20Z",
    }
    assert (await house.call("GET", STUDY)).json == answer.json
    again = await house.call("POST", f"{STUDIES}?studyId=tune_1", {"studyConfig": CONFIG})
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")
    assert (await house.call("DELETE", STUDY)).json == {}
    assert (await house.call("GET", STUDY)).status == 404


async def test_both_apis_share_the_paths_and_each_has_its_own_studies(house: House) -> None:
    await created(house)
    vertex = await house.call("POST", STUDIES, {"displayName": "vertex", "studySpec": SPEC})
    of_vertex = (await house.call("GET", STUDIES)).json["studies"]
    of_ml = (await house.call("GET", STUDIES, headers=APICLIENT)).json["studies"]
    assert [study["name"] for study in of_vertex] == [vertex.json["name"]]
    assert [study["studyConfig"] for study in of_ml] == [CONFIG]
    lookup = await house.call("POST", f"{STUDIES}:lookup", {"displayName": "tune_1"})
    assert lookup.status == 404


async def test_every_fault_of_a_study_is_named_at_once(house: House) -> None:
    """spec/submit#refusals; ids of digits alone are Vertex's."""
    answer = await house.call("POST", f"{STUDIES}?studyId=77", {"studyConfig": {"surprise": 1}})
    told = fields(answer)
    assert {"study.study_config.surprise", "study_id", "study_config.parameters"} <= set(told)
    unnamed = await house.call("POST", f"{STUDIES}?studyId=", {"studyConfig": CONFIG})
    assert list(violations(unnamed)) == ["study_id"]


async def test_a_suggestion_has_each_value_in_the_field_of_its_type(
    house: House, adviser: Adviser
) -> None:
    await created(house)
    (trial,) = await suggested(house)
    assert trial["parameters"] == [
        {"floatValue": 0.001, "parameter": "rate"},
        {"intValue": "2", "parameter": "layers"},
        {"parameter": "model", "stringValue": "deep"},
    ]
    assert (trial["state"], trial["clientId"]) == ("ACTIVE", "a")
    assert (await house.call("GET", f"/v1/{trial['name']}")).json == trial


async def test_an_operation_is_polled_below_the_location(
    house: House, adviser: Adviser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The discovery document has operations there only."""
    monkeypatch.setattr(studies, "PATIENCE", 0.01)
    await created(house)
    adviser.asleep = True
    asked = {"suggestionCount": 1, "clientId": "a"}
    operation = (await house.call("POST", f"{STUDY}/trials:suggest", asked)).json
    assert operation["name"].startswith("projects/p1/locations/us-central1/operations/")
    assert operation["metadata"]["suggestionCount"] == 1
    assert "done" not in operation
    await adviser.work_off(StudyUid(1000))
    polled = (await house.call("GET", f"/v1/{operation['name']}")).json
    assert polled["done"] is True
    assert polled["response"]["@type"].endswith("google.cloud.ml.v1.SuggestTrialsResponse")
    assert polled["response"]["studyState"] == "ACTIVE"
    assert len(polled["response"]["trials"]) == 1


async def test_a_trial_is_measured_stopped_and_completed(house: House, adviser: Adviser) -> None:
    """facts/tuning#vizier: the states are REQUESTED, ACTIVE, STOPPING, COMPLETED."""
    await created(house)
    trial = f"/v1/{(await suggested(house))[0]['name']}"
    measurement = {"elapsedTime": "2.500s", "metrics": [{"metric": "loss", "value": 0}]}
    answer = await house.call("POST", f"{trial}:addMeasurement", {"measurement": measurement})
    assert answer.json["measurements"] == [
        {"elapsedTime": "2.500s", "metrics": [{"metric": "loss"}]}
    ]
    assert (await house.call("POST", f"{trial}:stop", {})).json["state"] == "STOPPING"
    done = (await house.call("POST", f"{trial}:complete", {})).json
    assert (done["state"], done["finalMeasurement"]) == ("COMPLETED", done["measurements"][0])
    assert "trialInfeasible" not in done
    late = await house.call("POST", f"{trial}:complete", FINAL)
    assert (late.status, late.error["status"]) == (400, "FAILED_PRECONDITION")


async def test_a_clients_own_trial_is_requested_or_completed(house: House) -> None:
    await created(house)
    made = (await house.call("POST", f"{STUDY}/trials", OWN)).json
    assert made["state"] == "REQUESTED"
    assert made["parameters"][0] == {"floatValue": 0.0, "parameter": "rate"}, "a zero is a value"
    done = (await house.call("POST", f"{STUDY}/trials", OWN | FINAL)).json
    assert (done["state"], done["finalMeasurement"]) == ("COMPLETED", FINAL["finalMeasurement"])
    listed = (await house.call("GET", f"{STUDY}/trials")).json["trials"]
    assert listed == [made, done]
    best = (await house.call("POST", f"{STUDY}/trials:listOptimalTrials", {})).json
    assert best["trials"] == [done]
    assert (await house.call("DELETE", f"/v1/{made['name']}")).json == {}
    assert (await house.call("GET", f"/v1/{made['name']}")).status == 404


async def test_every_fault_of_a_trial_is_named_in_the_words_of_this_api(house: House) -> None:
    """spec/submit#refusals."""
    await created(house)
    bad = {
        "parameters": [
            {"parameter": "rate", "stringValue": "fast"},
            {"parameter": "depth", "intValue": "1"},
            {"parameter": "layers"},
            {"parameter": "model", "stringValue": "deep"},
        ],
        "finalMeasurement": {"metrics": [{"metric": "gain", "value": 1}]},
    }
    assert list(violations(await house.call("POST", f"{STUDY}/trials", bad))) == [
        "trial.parameters[0].value",
        "trial.parameters[2].value",
        "trial.parameters[1].parameter",
        "trial.final_measurement.metrics[0].metric",
        "trial.final_measurement.metrics",
    ]


@pytest.mark.parametrize(
    ("verb", "path", "parameters", "client", "expected"),
    [
        ("POST", "studies", {"studyId"}, "", True),
        ("POST", "studies", set[str](), APICLIENT[0][1], False),
        ("GET", "studies", set[str](), APICLIENT[0][1], True),
        ("GET", "studies", {"alt"}, "gl-python/3.11 gapic/1.0", False),
        ("POST", "studies:lookup", set[str](), "", False),
        ("GET", "studies/tune", set[str](), "", True),
        ("GET", "studies/12", set[str](), APICLIENT[0][1], False),
        ("POST", "studies/t%20x/trials:suggest", set[str](), "", True),
        ("POST", "studies/12/trials/1:stop", set[str](), "", False),
        ("POST", "studies/tune:testIamPermissions", set[str](), "", True),
        ("GET", "operations/suggest_5", set[str](), "", True),
        ("POST", "operations/5:cancel", set[str](), "", False),
        ("GET", "operations", set[str](), APICLIENT[0][1], False),
        ("GET", "customJobs/tune", {"studyId"}, APICLIENT[0][1], False),
        ("GET", "", set[str](), APICLIENT[0][1], False),
    ],
)
def test_the_id_tells_whose_path_it_is(
    verb: str, path: str, parameters: set[str], client: str, expected: bool
) -> None:
    assert is_request_of_ml(verb, f"{LOCATION}/{path}", parameters, client) is expected


# --- the apiclient


def test_who_calls_a_public_host_means_its_api() -> None:
    """As programs of jobs do, whose calls of those hosts end here."""
    for path in (f"{LOCATION}/studies", f"{LOCATION}/operations/7", "/v1/projects/p1/jobs"):
        for host in ("ml.googleapis.com", "us-central1-ml.googleapis.com:443"):
            assert is_request_of_ml("GET", path, (), "", host)
        for host in ("aiplatform.googleapis.com", "europe-west4-aiplatform.googleapis.com"):
            assert not is_request_of_ml("GET", path, (), "gdcl/2", host)
