"""`trainshed models`: what is asked of the service, and what is printed."""

import json
from typing import Any

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService

MODELS = "/trainshed/v1/models"
PLACE = {"project": "p", "region": "us-central1"}
NAME = "projects/p/locations/us-central1/models/churn"
SUMMARY: dict[str, Any] = {
    "name": NAME,
    "modelId": "churn",
    "displayName": "Churn",
    "version": 2,
    "aliases": ["default"],
    "artifactUri": "gs://trainshed/8/model",
    "created": "2026-11-21T10:00:00.000000Z",
    "madeBy": "projects/p/locations/us-central1/customJobs/8",
}
VERSION: dict[str, Any] = {
    "version": 2,
    "aliases": ["candidate", "default"],
    "displayName": "Churn",
    "artifactUri": "gs://trainshed/8/model",
    "created": "2026-11-21T10:00:00.000000Z",
    "origin": {
        "pipeline": "projects/p/locations/us-central1/trainingPipelines/7",
        "job": "projects/p/locations/us-central1/customJobs/8",
        "state": "SUCCEEDED",
        "dataset": "projects/p/locations/us-central1/datasets/5",
        "datasetDisplayName": "customers",
        "split": "fraction 0.8/0.1/0.1",
        "arguments": ["--epochs", "3"],
        "trial": 4,
        "parameters": {"lr": 0.125, "layers": 2.0},
        "metrics": {"loss": 0.5},
    },
    "runs": [{"name": "x", "displayName": "r1", "parameters": {"depth": 3}, "metrics": {"a": 1.0}}],
    "sources": [{"name": "y", "displayName": "rows", "uri": "gs://trainshed/rows.csv"}],
    "evaluations": [{"displayName": "holdout", "metrics": {"auPrc": 0.875}}],
}


def test_a_list_says_what_made_each(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", MODELS, {**PLACE, "models": [SUMMARY], "more": False})
    for command in (("models",), ("models", "list")):
        where, header, line = trainshed(*command).stdout.splitlines()
        assert where == "Models of p in us-central1"
        assert header.split() == ["MODEL", "NAME", "VERSION", "CREATED", "MADE", "BY", "ARTIFACTS"]
        assert line.split()[:3] == ["churn", "Churn", "2"]
        assert line.split()[-2:] == ["customJobs/8", "gs://trainshed/8/model"]
    assert service.asked[0].query == PLACE
    shown = trainshed("models", "list", "--format", "json").stdout
    assert json.loads(shown) == [SUMMARY]


def test_no_model_is_said(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", MODELS, {**PLACE, "models": []})
    assert "no model of p in us-central1" in trainshed("models").stderr


def test_a_model_is_described_with_its_lineage(trainshed: Invoke, service: FakeService) -> None:
    bare = {"version": 1, "created": "2026-11-20T10:00:00.000000Z"}
    gone = {"job": "projects/p/locations/us-central1/customJobs/9", "state": ""}
    answer = {"name": NAME, "modelId": "churn", "versions": [VERSION, bare | {"origin": gone}]}
    service.on("GET", f"{MODELS}/churn", answer)
    for name in ("churn", NAME, f"{NAME}@2"):
        said = trainshed("models", "describe", name).stdout
        facts = [line.split(maxsplit=1) for line in said.splitlines() if line.strip()]
        assert ["Version", "2 (the default, candidate)"] in facts
        for fact in (
            ["Pipeline", "trainingPipelines/7"],
            ["Job", "customJobs/8"],
            ["Data", "dataset datasets/5 (customers), split: fraction 0.8/0.1/0.1"],
            ["Arguments", "--epochs 3"],
            ["Trial", "4: lr=0.125, layers=2"],
            ["Measured", "loss=0.5"],
            ["Read", "rows gs://trainshed/rows.csv"],
            ["Run", "r1"],
            ["Parameters", "depth=3"],
            ["Evaluation", "holdout: auPrc=0.875"],
            ["Job", "customJobs/9 (deleted)"],
        ):
            assert fact in facts, (fact, said)
    assert all(asked.query == PLACE for asked in service.asked)
