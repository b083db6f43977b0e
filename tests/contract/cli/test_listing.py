"""`trainshed list`, `describe` and `delete`: requests and output of each kind of resource.
`trainshed status`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.cli.fake_service import FakeService, job

OWN = "/trainshed/v1"
PLACE = "projects/p/locations/us-central1"
HERE = {"project": "p", "region": "us-central1"}
AT = "2026-11-20T05:55:42.123456Z"
SHOWN = "2026-11-20 05:55:42"
HOSTILE = "\x1b]0;gone\x07rm\nnext"


def dataset(dataset_id: str, **more: Any) -> dict[str, Any]:
    schema = "gs://google-cloud-aiplatform/schema/dataset/metadata/time_series_1.0.0.yaml"
    by_name = {"name": f"{PLACE}/datasets/{dataset_id}", "displayName": f"data {dataset_id}"}
    return {"etag": "x", **by_name, "metadataSchemaUri": schema, "createTime": AT} | more


NODE: dict[str, Any] = {
    "name": "node-1",
    "condition": "READY",
    "vcpus": 8,
    "usedVcpus": 2.5,
    "memoryBytes": 32 * 2**30,
    "usedMemoryBytes": 4 * 2**30,
    "accelerators": [{"type": "NVIDIA_L4", "count": 2, "used": 1, "usedByOthers": 1}],
    "replicas": [{"job": "j", "replica": "workerpool0-0", "gpus": ["GPU-a"]}],
}
EXPERIMENT: dict[str, Any] = {
    "name": f"{PLACE}/metadataStores/default/contexts/churn",
    "createTime": AT,
    "description": "who",
}
MODEL: dict[str, Any] = {
    "name": f"{PLACE}/models/churn",
    "displayName": "Churn",
    "versionId": "2",
    "createTime": AT,
    "trainingPipeline": f"{PLACE}/trainingPipelines/8",
    "artifactUri": "gs://b/8",
}
STUDY: dict[str, Any] = {
    "name": f"{PLACE}/studies/9",
    "displayName": "find-it",
    "state": "ACTIVE",
    "studySpec": {"metrics": [{"metricId": "acc"}, {"metricId": "loss", "goal": "MINIMIZE"}]},
    "createTime": AT,
}
SECRET: dict[str, Any] = {
    "name": "db",
    "versions": [{"version": 2, "created": AT}, {"version": 1, "created": ""}],
}


@pytest.mark.parametrize(
    ("kind", "path", "record", "titles", "row"),
    [
        (
            "datasets",
            f"/v1/{PLACE}/datasets",
            dataset("7"),
            "DATASET NAME KIND CREATED",
            f"7  data 7  time series  {SHOWN}",
        ),
        (
            "experiments",
            f"/v1/{PLACE}/metadataStores/default/contexts",
            EXPERIMENT,
            "EXPERIMENT CREATED DESCRIPTION",
            f"churn  {SHOWN}  who",
        ),
        (
            "models",
            f"/v1/{PLACE}/models",
            MODEL,
            "MODEL NAME VERSION CREATED CREATED BY ARTIFACTS",
            f"churn  Churn  2  {SHOWN}  trainingPipelines/8  gs://b/8",
        ),
        (
            "nodes",
            f"{OWN}/nodes",
            NODE | {"othersVcpus": 3},
            "NODE CONDITION CPUS MEMORY ACCELERATORS OTHERS REPLICAS",
            "node-1  READY  2.5/8  4.0 GiB/32.0 GiB  1/2 NVIDIA_L4  3 CPUs, 1 NVIDIA_L4  1",
        ),
        (
            "quotas",
            f"{OWN}/quotas",
            {"metric": "cpus_n1_e2", "limit": 20, "used": 12.5, "waiting": 0},
            "METRIC USED LIMIT WAITING",
            "cpus_n1_e2  12.5  20  0",
        ),
        ("secrets", f"{OWN}/secrets", SECRET, "SECRET VERSIONS CREATED", f"db  2, 1  {SHOWN}"),
        (
            "studies",
            f"/v1/{PLACE}/studies",
            STUDY,
            "STUDY NAME STATE METRICS ALGORITHM CREATED",
            f"9  find-it  ACTIVE  maximize acc, minimize loss  –  {SHOWN}",
        ),
    ],
)
def test_list_command_prints_a_table_or_with_format_json_the_records(
    service: FakeService, kind: str, path: str, record: dict[str, Any], titles: str, row: str
) -> None:
    service.on("GET", path, {path.rpartition("/")[2]: [record]})
    for words in (("list", kind), (kind, "list"), (kind,)):
        result = service.cli(*words)
        assert result.exit_code == 0, result.stderr
        header, line = result.stdout.splitlines()
        assert " ".join(header.split()) == titles
        assert [cell.strip() for cell in line.split("  ") if cell] == row.split("  ")
    assert json.loads(service.cli("list", kind, "--format", "json").stdout) == [record]
    service.on("GET", path, {})
    empty = service.cli("list", kind)
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert f"There are no {kind}" in empty.stderr


def test_list_joins_pages_and_escapes_control_characters(service: FakeService) -> None:
    first = {"datasets": [dataset("8", displayName=HOSTILE)], "nextPageToken": "t"}
    service.on("GET", f"/v1/{PLACE}/datasets", first, {"datasets": [dataset("7")]})
    shown = service.cli("datasets", "list").stdout
    assert [line.split()[0] for line in shown.splitlines()] == ["DATASET", "8", "7"]
    assert "\x1b]" not in shown
    assert [request.query.get("pageToken") for request in service.sent] == [None, "t"]
    service.on("GET", f"/v1/{PLACE}/datasets/8", dataset("8", displayName=HOSTILE))
    assert "\x1b]" not in service.cli("datasets", "describe", "8").stdout


@pytest.mark.parametrize("name", ["7", f"{PLACE}/datasets/7", "data 7"])
def test_describe_prints_yaml_with_the_columns_first(service: FakeService, name: str) -> None:
    service.on("GET", f"/v1/{PLACE}/datasets/7", dataset("7"))
    service.on("GET", f"/v1/{PLACE}/datasets", {"datasets": [dataset("8"), dataset("7")]})
    result = service.cli("datasets", "describe", name)
    assert result.exit_code == 0, result.stderr
    assert yaml.safe_load(result.stdout) == dataset("7")
    names = [line.partition(":")[0] for line in result.stdout.splitlines()]
    assert names == ["name", "displayName", "metadataSchemaUri", "createTime", "etag"]
    assert json.loads(service.cli("describe", "dataset", name, "--format", "json").stdout) == (dataset("7"))


@pytest.mark.parametrize("name", ["node-1", "node-9"])
def test_describe_command_finds_a_node_in_the_list_of_nodes(service: FakeService, name: str) -> None:
    service.on("GET", f"{OWN}/nodes", {"nodes": [NODE]})
    result = service.cli("nodes", "describe", name)
    if name == "node-1":
        assert yaml.safe_load(result.stdout) == NODE
    else:
        shown = "among the nodes. List them: trainshed nodes list.\n"
        assert (result.exit_code, result.stderr.endswith(shown)) == (1, True)


def test_study_description_contains_its_trials_and_the_best_trial(service: FakeService) -> None:
    trials = [{"id": "1"}, {"id": "2"}, {"id": "3"}]
    at = f"/v1/{PLACE}/studies/9"
    service.on("GET", at, STUDY)
    service.on("GET", f"{at}/trials", {"trials": trials})
    service.on("POST", f"{at}/trials:listOptimalTrials", {"optimalTrials": trials[:1]})
    shown = yaml.safe_load(service.cli("studies", "describe", "9").stdout)
    assert (shown["trials"], shown["optimalTrials"]) == (trials, trials[:1])


@pytest.mark.parametrize("name", ["churn", EXPERIMENT["name"]])
def test_experiment_description_contains_its_runs(service: FakeService, name: str) -> None:
    runs = [{"name": f"{PLACE}/metadataStores/default/contexts/churn-{run}"} for run in ("b", "a")]
    contexts = f"/v1/{PLACE}/metadataStores/default/contexts"
    service.on("GET", f"{contexts}/churn", EXPERIMENT)
    service.on("GET", contexts, {"contexts": runs[:1], "nextPageToken": "t"}, {"contexts": runs[1:]})
    shown = yaml.safe_load(service.cli("experiments", "describe", name).stdout)
    assert shown == EXPERIMENT | {"runs": runs}
    assert service.sent[0].query == {}
    assert f'parent_contexts:"{EXPERIMENT["name"]}"' in service.sent[-1].query["filter"]


def test_model_description_contains_its_versions(service: FakeService) -> None:
    versions = [{"versionId": "2", "metadata": {"job": f"{PLACE}/customJobs/8"}}]
    service.on("GET", f"/v1/{MODEL['name']}", {"name": MODEL["name"]})
    service.on("GET", f"/v1/{MODEL['name']}:listVersions", {"models": versions})
    good = [{"displayName": "holdout"}]
    service.on("GET", f"/v1/{MODEL['name']}/evaluations", {"modelEvaluations": good})
    for name in ("churn", f"{PLACE}/models/churn"):
        shown = yaml.safe_load(service.cli("models", "describe", name).stdout)
        assert shown == {"name": MODEL["name"], "versions": versions, "evaluations": good}
    of_one = f"/v1/{MODEL['name']}@2"
    service.on("GET", of_one, {"name": MODEL["name"], "versionId": "2"})
    service.on("GET", f"{of_one}:listVersions", {"models": versions})
    service.on("GET", f"{of_one}/evaluations", {})
    for name in ("churn@2", f"{PLACE}/models/churn@2"):
        shown = yaml.safe_load(service.cli("models", "describe", name).stdout)
        assert (shown["versionId"], shown["evaluations"]) == ("2", [])


@pytest.mark.parametrize("kind", ["curves", "usage"])
def test_describe_shows_curves_and_usage_of_a_job(service: FakeService, kind: str) -> None:
    service.on("GET", f"{OWN}/jobs/7", job("7"))
    service.on("GET", f"{OWN}/jobs/7/{kind}", {"job": "7", "points": [1, 2]})
    result = service.cli("describe", kind, "7", "--format", "json")
    assert json.loads(result.stdout) == {"job": "7", "points": [1, 2]}, result.stderr


def test_usage_is_grouped_and_printed_as_csv(service: FakeService) -> None:
    row = {"name": "ana@corp.example", "cpuHours": 4, "gigabyteHours": 15.5, "machineHours": 1}
    row |= {"cpuShare": 0.75}
    service.on("GET", f"{OWN}/usage", {"rows": [row]})
    moment = "2026-11-01T00:00:00Z"
    shown = service.cli("usage", "--by", "machine", "--since", moment, "--format", "csv").stdout
    assert shown.splitlines() == [
        "NAME,COST,GPU-HOURS,AT WORK,CPU-HOURS,AT WORK,GB-HOURS,MACHINE-HOURS",
        "ana@corp.example,,,,4.00,75%,15.50,1.00",
    ]
    query = service.sent[-1].query
    assert (query["by"], query["project"], query["since"][:10]) == ("machine", "p", moment[:10])
    assert "GPU-HOURS" not in service.cli("usage").stdout
    assert json.loads(service.cli("usage", "--format", "jsonl").stdout) == row
    assert "is an option of usage" in service.cli("list", "nodes", "--by", "user").stderr
    assert "Write how long ago" in service.cli("usage", "--since", "yesterday").stderr


@pytest.mark.parametrize(
    ("kind", "name", "path", "query"),
    [
        ("secrets", "db", f"{OWN}/secrets/db", {"project": "p"}),
        ("secrets", "db@2", f"{OWN}/secrets/db", {"project": "p", "version": "2"}),
        ("models", "churn", f"/v1/{PLACE}/models/churn", {}),
        ("models", "churn@2", f"/v1/{PLACE}/models/churn@2:deleteVersion", {}),
        ("datasets", f"{PLACE}/datasets/7", f"/v1/{PLACE}/datasets/7", {}),
        ("studies", "9", f"/v1/{PLACE}/studies/9", {}),
        ("tokens", "2d1b6f", f"{OWN}/tokens/2d1b6f", {}),
        ("tokens", "ana@corp.example", f"{OWN}/tokens/ana@corp.example", {}),
    ],
)
def test_delete_command_removes_a_resource_or_a_single_version(
    service: FakeService, kind: str, name: str, path: str, query: dict[str, str]
) -> None:
    roles = "has no tokens any more; the roles remain (trainshed list grants)"
    done = roles if "@corp" in name else "is deleted"
    service.on("DELETE", path, {})
    assert service.cli(kind, "delete", name).stdout == f"{name}  {done}\n"
    (request,) = service.sent
    assert (request.method, request.path, request.query) == ("DELETE", path, query)


def test_delete_command_for_nodes_is_rejected_with_a_list_of_deletable_kinds(service: FakeService) -> None:
    result = service.cli("nodes", "delete", "node-1")
    assert result.exit_code == 2
    assert "The kinds are datasets, models, pipelines, schedules, secrets" in result.stderr
    assert service.sent == []


STATUS = {
    "version": "1.2",
    "startTime": "2026-11-20T06:00:00.000000Z",
    "principal": "owner@p",
    "project": "p",
    "region": "r",
    "bucket": "b",
}


def test_status_prints_an_overview_of_the_service(service: FakeService, tmp_path: Path) -> None:
    service.on("GET", "/trainshed/v1/status", STATUS)
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [job("7")], "nextPageToken": ""})
    result = service.cli("status")
    assert result.exit_code == 0, result.stderr
    facts = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert facts["Service"] == f"{service.address}  trainshed 1.2"
    assert facts["Up"].startswith("1m 00s, since")
    assert facts["Data"] == str(tmp_path)
    service.refuse("GET", "/trainshed/v1/jobs", 403, "You may list those of one project alone.")
    assert json.loads(service.cli("status", "--format", "json").stdout)["url"] == service.address
