"""Operations have the types of the version that their reader speaks: the generated REST clients of both, over
loopback."""

import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api.house import LOCATION, House
from tests.contract.api.serving import Served, serve
from tests.contract.api.studying import SPEC, advised

PARENT = LOCATION.removeprefix("/v1/")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(tmp_path) as running:
        running.house.clock = time.time_ns()
        yield running


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_the_rest_client_reads_its_operations(served: Served, version: str) -> None:
    """spec/clients#surface, spec/clients#operations: made below the version, polled below /ui/."""
    adviser = advised(served.house)
    adviser.stops = True
    credentials: Any = import_module("google.oauth2.credentials")
    package: Any = import_module(f"google.cloud.aiplatform_{version}")
    vizier = package.VizierServiceClient(
        transport="rest",
        client_options={"api_endpoint": served.url},
        credentials=credentials.Credentials(served.house.token),
    )
    spec = {
        "metrics": [{"metric_id": "loss", "goal": "MINIMIZE"}],
        "parameters": [{"parameter_id": "x", "double_value_spec": {"max_value": 1}}],
    }
    study = vizier.create_study(parent=PARENT, study={"display_name": "study", "study_spec": spec})
    request = {"parent": study.name, "suggestion_count": 2, "client_id": "c"}
    suggested = vizier.suggest_trials(request)
    assert type(suggested.metadata).__module__.startswith(package.__name__)
    (first, _) = suggested.result(timeout=30).trials
    # In the version-less place, where the client looks while an operation runs.
    polled = vizier.transport.operations_client.get_operation(suggested.operation.name)
    assert polled.response.type_url.endswith(f".{version}.SuggestTrialsResponse")
    check = vizier.check_trial_early_stopping_state({"trial_name": first.name})
    assert check.result(timeout=30).should_stop


@pytest.mark.anyio
async def test_where_no_version_is_said_the_one_counts_through_which_it_was_made(
    house: House,
) -> None:
    advised(house)
    study = await house.call(
        "POST", f"{LOCATION}/studies", {"displayName": "study", "studySpec": SPEC}
    )
    name = study.json["name"]
    kinds: list[str] = []
    for version in ("v1beta1", "v1"):
        made = await house.call(
            "POST",
            f"/{version}/{name}/trials:suggest",
            {"suggestionCount": 1, "clientId": version},
        )
        found = await house.call("GET", f"/ui/{made.json['name']}")
        assert found.json == made.json
        assert found.json["response"]["@type"].endswith(f".{version}.SuggestTrialsResponse")
        kinds.append(found.json["metadata"]["@type"])
        # Who asks for the other one's operation by its version is answered in his own.
        for asked in ("v1", "v1beta1"):
            other = await house.call("GET", f"/{asked}/{made.json['name']}")
            assert f".{asked}." in other.json["metadata"]["@type"]
        assert (await house.call("GET", f"/ui/{made.json['name']}")).json == made.json
    listed = await house.call("GET", f"/ui/{name}/operations")
    assert sorted(each["metadata"]["@type"] for each in listed.json["operations"]) == sorted(kinds)
