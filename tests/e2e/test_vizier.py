"""The study APIs as their clients use them: generated Vertex clients, and `ml` v1 from its discovery document
(spec/tuning#studies)."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import PROJECT, REGION, Service
from tests.e2e.test_apiclient import built

PARENT = f"projects/{PROJECT}/locations/{REGION}"


errors: Any = importlib.import_module("google.api_core.exceptions")


@pytest.fixture(scope="module")
def vizier(service: Service) -> Iterator[Any]:
    """The generated client of v1beta1, over gRPC; of v1 over REST: tests/contract/api/test_trials.py."""
    grpc: Any = importlib.import_module("grpc")
    package = "google.cloud.aiplatform_v1beta1"
    transports: Any = importlib.import_module(f"{package}.services.vizier_service.transports")
    secure = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(Path(service.extra["ca"]).read_bytes()),
        grpc.access_token_call_credentials(service.token),
    )
    with grpc.secure_channel(service.extra["grpc_tls"], secure) as channel:
        transport = transports.VizierServiceGrpcTransport(channel=channel)
        yield importlib.import_module(package).VizierServiceClient(transport=transport)


@pytest.fixture
def new_study(vizier: Any) -> Iterator[Callable[..., Any]]:
    """Makes studies; they are deleted in the end."""
    made: list[str] = []

    def new(*metrics: tuple[str, str], **more: Any) -> Any:
        spec = {
            "metrics": [{"metric_id": name, "goal": goal} for name, goal in metrics],
            "parameters": [
                {"parameter_id": "x", "double_value_spec": {"min_value": 0, "max_value": 1}}
            ],
            **more,
        }
        name = f"client-{type(vizier).__module__}-{len(made)}"
        study = vizier.create_study(parent=PARENT, study={"display_name": name, "study_spec": spec})
        made.append(study.name)
        return study

    yield new
    for name in made:
        vizier.delete_study(name=name)


def handed_out(vizier: Any, study: Any, client: str, count: int = 1) -> list[Any]:
    request = {"parent": study.name, "suggestion_count": count, "client_id": client}
    return list(vizier.suggest_trials(request).result(timeout=60).trials)


def measurement(step: int = 0, **values: float) -> dict[str, Any]:
    metrics = [{"metric_id": name, "value": value} for name, value in values.items()]
    return {"step_count": step, "metrics": metrics}


def test_a_trial_is_measured_and_completed(vizier: Any, new_study: Callable[..., Any]) -> None:
    """facts/tuning#vizier: addTrialMeasurement, complete without a final measurement takes the last, a trial
    that is over stays."""
    study = new_study(("loss", "MINIMIZE"))
    first, second = handed_out(vizier, study, "me", 2)
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        request = {"trial_name": first.name, "measurement": measurement(step, loss=loss)}
        vizier.add_trial_measurement(request)
    done = vizier.complete_trial({"name": first.name})
    assert done.state.name == "SUCCEEDED"
    assert [each.step_count for each in done.measurements] == [1, 2, 3]
    assert done.final_measurement.step_count == 3
    assert done.final_measurement.metrics[0].value == 2.0
    over = {"name": second.name, "trial_infeasible": True, "infeasible_reason": "too hot"}
    done = vizier.complete_trial(over)
    assert (done.state.name, done.infeasible_reason) == ("INFEASIBLE", "too hot")
    with pytest.raises(errors.GoogleAPICallError, match="is over"):
        vizier.complete_trial({"name": first.name, "final_measurement": measurement(loss=0.0)})
    own = {"parameters": [{"parameter_id": "x", "value": 0.25}]}
    wanted = vizier.create_trial(parent=study.name, trial=own)
    assert wanted.state.name == "REQUESTED"
    # What somebody asked for goes before anything new.
    (given,) = handed_out(vizier, study, "me")
    assert (given.name, given.parameters[0].value, given.client_id) == (wanted.name, 0.25, "me")
    listed = list(vizier.list_trials(request={"parent": study.name, "page_size": 2}))
    assert [trial.id for trial in listed] == ["1", "2", "3"]
    vizier.delete_trial(name=second.name)
    with pytest.raises(errors.NotFound):
        vizier.get_trial(name=second.name)


# --- ml v1

_ML_CONFIG = {
    "metrics": [{"metric": "score", "goal": "MAXIMIZE"}],
    "parameters": [
        {"parameter": "x", "type": "DOUBLE", "doubleValueSpec": {"minValue": 0, "maxValue": 1}},
        {"parameter": "n", "type": "INTEGER", "integerValueSpec": {"minValue": 1, "maxValue": 4}},
    ],
}


def test_ml_studies_through_the_discovery_document(service: Service) -> None:
    """facts/tuning#vizier: the older API has words of its own for the same."""
    locations = built(service, "ml", "v1").projects().locations()
    studies, trials = locations.studies(), locations.studies().trials()
    body = {"studyConfig": _ML_CONFIG}
    study = studies.create(parent=PARENT, studyId="older", body=body).execute()
    assert study["name"].endswith("/studies/older")
    name = study["name"]

    def suggest(client: str) -> dict[str, Any]:
        asked = {"clientId": client, "suggestionCount": 1}
        operation = trials.suggest(parent=name, body=asked).execute()
        while not operation.get("done"):
            operation = locations.operations().get(name=operation["name"]).execute()
        (trial,) = operation["response"]["trials"]
        return trial

    first = suggest("me")
    assert suggest("me")["name"] == first["name"] != suggest("you")["name"]
    assert first["state"] == "ACTIVE"
    x, n = first["parameters"]
    assert 0 <= x["floatValue"] <= 1 and int(n["intValue"]) in (1, 2, 3, 4)
    measured = {"stepCount": 7, "metrics": [{"metric": "score", "value": 0.5}]}
    added = trials.addMeasurement(name=first["name"], body={"measurement": measured}).execute()
    assert added["measurements"][0]["stepCount"] == "7"
    done = trials.complete(name=first["name"], body={}).execute()
    assert (done["state"], done["finalMeasurement"]["metrics"]) == (
        "COMPLETED",
        measured["metrics"],
    )
    best = trials.listOptimalTrials(parent=name, body={}).execute()["trials"]
    assert [trial["name"] for trial in best] == [first["name"]]
    listed = trials.list(parent=name).execute()["trials"]
    assert [trial["state"] for trial in listed] == ["COMPLETED", "ACTIVE"]
    studies.delete(name=name).execute()
    assert name not in [
        each["name"] for each in studies.list(parent=PARENT).execute().get("studies", [])
    ]
