"""Isolation between projects: a user with rights in one project learns nothing about another one, not even
whether a resource exists. Ana owns `vision` and knows every name, ID and uid of `speech`."""

import re
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.api import test_datasets
from tests.contract.api.api_service import Answer, ApiService
from tests.contract.api.fake_advisor import OWN, SPEC
from tests.contract.api.test_matrix import MISSING, served_methods
from tests.contract.api.test_matrix import service as service  # noqa: PLC0414  a fixture
from tests.people import add_user
from tests.unit.specs_requests import custom_job, ml_job
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.api.trainshed_v1.transport import METHODS, PREFIX
from trainshed.core.names import project_number
from trainshed.store.sqlite.snapshots import Snapshots

ANA = "ana@corp.example"
SECRET = "zebra"
"""Appears in all values of `speech` that are not names."""
SPEECH = "/v1/projects/speech/locations/us-central1"


async def create_resources(service: ApiService) -> dict[str, str]:
    """Create resources in `speech` and return their IDs by collection."""
    there: dict[str, str] = {"projects": "speech", "locations": "us-central1"}

    async def make(collection: str, path: str, body: Any, id_: str = "") -> str:
        answer = await service.result("POST", path, body)
        view = answer.get("response", answer)
        name = str(view.get("name") or view.get("model") or view.get("jobId") or "")
        there[collection] = id_ or name.rpartition("/")[2]
        if "/operations/" in str(answer.get("name")):
            there["operations"] = answer["name"].rpartition("/")[2]
        return name

    fields = {"displayName": SECRET, "labels": {"animal": SECRET}}
    await make("customJobs", f"{SPEECH}/customJobs", custom_job() | fields)
    await make("hyperparameterTuningJobs", f"{SPEECH}/hyperparameterTuningJobs", tuning_job() | fields)
    made = pipeline(trainingTaskInputs=inputs())
    await make("trainingPipelines", f"{SPEECH}/trainingPipelines", made | fields)
    await make("jobs", "/v1/projects/speech/jobs", ml_job() | {"jobId": "night"}, "night")
    model = {"model": fields, "modelId": "ear"}
    await make("models", f"{SPEECH}/models:upload", model, "ear")
    evaluation = {"modelEvaluation": {"displayName": SECRET}}
    await make("evaluations", f"{SPEECH}/models/ear/evaluations:import", evaluation)
    dataset = {"displayName": SECRET, "metadataSchemaUri": test_datasets.schema("text")}
    await make("datasets", f"{SPEECH}/datasets", dataset)
    study = await make("studies", f"{SPEECH}/studies", {"displayName": SECRET, "studySpec": SPEC})
    await make("trials", f"/v1/{study}/trials", OWN)
    await make("metadataStores", f"{SPEECH}/metadataStores?metadataStoreId=default", {}, "default")
    for kind in ("contexts", "artifacts", "executions"):
        path = f"{SPEECH}/metadataStores/default/{kind}?{kind[:-1]}Id=k{kind[0]}"
        await make(kind, path, {"displayName": SECRET})
    board = await make("tensorboards", f"{SPEECH}/tensorboards", {"displayName": SECRET})
    path = f"/v1/{board}/experiments"
    await make("experiments", f"{path}?tensorboardExperimentId=ee", {"displayName": SECRET})
    await make("runs", f"{path}/ee/runs?tensorboardRunId=rr", {"displayName": SECRET})
    series = {"displayName": SECRET, "valueType": "SCALAR"}
    await make("timeSeries", f"{path}/ee/runs/rr/timeSeries", series)
    await make("serviceAccounts", "/v1/projects/speech/serviceAccounts", {"accountId": "listener"})
    secret = {"name": "ears", "value": SECRET, "project": "speech"}
    assert (await service.call("POST", f"{PREFIX}secrets", secret)).status == 200
    there["secrets"] = "ears"
    return there


@pytest.fixture(autouse=True)
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the SQL statements that read the database. A longer response time would show as
    additional reads."""
    statements: list[str] = []
    read_one_state = Snapshots._on_snapshot  # pyright: ignore[reportPrivateUsage]

    def trace_and_read(self: Snapshots, connection: sqlite3.Connection, read: Any) -> Any:
        connection.set_trace_callback(statements.append)
        return read_one_state(self, connection, read)

    monkeypatch.setattr(Snapshots, "_on_snapshot", trace_and_read)
    return statements


def paths(service: ApiService, there: dict[str, str], project: str) -> Iterator[tuple[str, str, str]]:
    """Return (verb, path of an existing resource, path of a missing one) for every method about a
    part of a project."""
    for _, verb, template in served_methods(service):
        path, colon, custom = template.partition(":")
        segments = path.split("/")
        if "projects" not in segments or "*" not in segments:
            continue
        full: list[str] = []
        last = [at for at, segment in enumerate(segments) if segment == "*"][-1]
        for at, segment in enumerate(segments):
            if segment != "*":
                full.append(segment)
            elif segments[at - 1] == "projects":
                full.append(project)
            else:
                full.append(there.get(segments[at - 1], "1"))
        is_of_project = segments[last - 1] in ("projects", "locations")
        empty = full if is_of_project else [*full[:last], MISSING, *full[last + 1 :]]
        yield verb, "/".join(full) + colon + custom, "/".join(empty) + colon + custom


def replace_ids(answer: Answer, there: dict[str, str]) -> tuple[int, str]:
    """Return the status, and the body with the IDs of the request replaced."""
    text = answer.body.decode()
    for id_ in sorted({*there.values()}, key=len, reverse=True):
        text = re.sub(rf"\b{re.escape(id_)}\b", MISSING, text)
    return answer.status, text


async def test_no_method_reveals_resources_of_another_project(service: ApiService, reads: list[str]) -> None:
    """Each method is called with the other project's ID, with its number, and with its resource IDs below the
    caller's project. The response and the number of reads must be the same as for a missing project."""
    there = await create_resources(service)
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    leaks: list[object] = []
    for project in ("speech", str(project_number("speech")), "vision"):
        for verb, path, empty in paths(service, there, project):
            body: Any = {} if verb in ("POST", "PATCH", "PUT") else None
            # Each call creates a resource in the caller's own project.
            asks = (path, empty) if path != empty or project != "vision" else (path,)
            answers: list[tuple[int, str, int]] = []
            for url in asks:
                reads.clear()
                answer = await service.call(verb, url, body, token=ana)
                answers.append((*replace_ids(answer, there), len(reads)))
            refused = project == "vision" or answers[0][0] in (400, 403)
            if len({*answers}) > 1 or SECRET in str(answers) or not refused:
                leaks.append((verb, path, answers))
    assert leaks == []


async def test_trainshed_methods_reveal_no_resources_of_another_project(
    service: ApiService, reads: list[str]
) -> None:
    """The job is selected by name, by uid and by ID, with the project in the query, in the body, or
    omitted."""
    there = await create_resources(service)
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    name = quote(f"{SPEECH[4:]}/customJobs/{there['customJobs']}", safe="")
    targets = {
        "{job}": (("night", "nacht"), (there["customJobs"], MISSING), (name, name + MISSING)),
        "{model}": (("ear", MISSING),),
        "{name}": (("ears", MISSING),),
    }
    leaks: list[object] = []
    for verb, path in METHODS:
        [variable] = re.findall(r"\{[a-z]+\}", path) or [""]
        for wanted, empty in targets.get(variable, (("x", "x"),)):
            for project in ("speech", str(project_number("speech")), "vision", "-", ""):
                answers: list[tuple[int, str, int]] = []
                for target in (wanted, empty):
                    body: Any = {"project": project} if verb in ("POST", "PATCH", "PUT") else None
                    parents = "&parent=" + name if path == "jobs" and project == "vision" else ""
                    url = path.replace(variable, target) if variable else path
                    query = f"?project={project}{parents}" if body is None else ""
                    reads.clear()
                    answer = await service.call(verb, f"{PREFIX}{url}{query}", body, token=ana)
                    text = answer.body.decode()
                    for part in (target, quote(target), target.replace("%2F", "/")):
                        text = text.replace(part, MISSING)
                    answers.append((answer.status, text, len(reads)))
                if len({*answers}) > 1 or SECRET in str(answers) or "ears" in str(answers):
                    leaks.append((verb, path, project, answers))
    assert leaks == []


async def test_job_id_selects_only_jobs_of_readable_projects(service: ApiService) -> None:
    """A job of another project with the same ID must not change the result, whether it is older or newer."""
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    for project in ("vision", "speech"):
        job = ml_job() | {"jobId": "night"}
        assert (await service.call("POST", f"/v1/projects/{project}/jobs", job)).status == 200
    for below in ("", "/timeline", "/usage"):
        answer = await service.call("GET", f"{PREFIX}jobs/night{below}", token=ana)
        assert answer.status == 200, answer.body
        assert "speech" not in answer.body.decode()
    assert (await service.call("POST", f"{PREFIX}jobs/night:cancel", {}, token=ana)).status == 200


async def test_parent_parameter_grants_no_access_to_the_services_project(service: ApiService) -> None:
    """Only the list of jobs accepts a parent. Without a project, a request applies to the service's
    own project."""
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    for path in ("access:change", "access:change?parent=projects/vision/locations/x"):
        grant = {"role": "roles/owner", "member": f"user:{ANA}"}
        assert (await service.call("POST", f"{PREFIX}{path}", grant, token=ana)).status == 200
    assert ANA not in (await service.call("GET", f"{PREFIX}access")).body.decode()
    assert ANA in (await service.call("GET", f"{PREFIX}access?project=vision")).body.decode()


async def test_job_cannot_use_a_service_account_of_another_project(service: ApiService) -> None:
    """A bucket of the other project may admit that account."""
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    number = project_number("speech")
    path = f"{SPEECH.replace('speech', 'vision')}/customJobs"
    for account, status in (
        ("trainer@vision.iam.gserviceaccount.com", 200),
        (f"{project_number('vision')}-compute@developer.gserviceaccount.com", 200),
        ("trainer@speech.iam.gserviceaccount.com", 403),
        (f"{number}-compute@developer.gserviceaccount.com", 403),
        ("somebody@corp.example", 403),
    ):
        job = custom_job()
        job["jobSpec"]["serviceAccount"] = account
        assert (await service.call("POST", path, job, token=ana)).status == status, account


async def test_references_in_requests_reveal_no_resources_of_another_project(service: ApiService) -> None:
    """The names of resources of `speech` occur in bodies and filters of requests about `vision`."""
    there = await create_resources(service)
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    vision, theirs = SPEECH.replace("speech", "vision"), SPEECH[4:]
    board = f"{theirs}/tensorboards/"
    context = f"{theirs}/metadataStores/default/contexts/"

    def job(**fields: Any) -> dict[str, Any]:
        made = custom_job()
        return {**made, "jobSpec": {**made["jobSpec"], **fields}}

    def pipeline_with(**fields: Any) -> dict[str, Any]:
        return pipeline(trainingTaskInputs=inputs(), modelToUpload={"displayName": "m"}, **fields)

    def asks(id_: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
        yield "POST", f"{vision}/customJobs", job(tensorboard=board + id_["tensorboards"])
        yield "POST", f"{vision}/customJobs", job(experiment=context + id_["contexts"])
        copied = {"labels": {"trainshed-copy-of": id_["customJobs"]}}
        yield "POST", f"{vision}/customJobs", custom_job() | copied
        model = f"{theirs}/models/{id_['models']}"
        yield "POST", f"{vision}/trainingPipelines", pipeline_with(parentModel=model)
        data = {"datasetId": id_["datasets"], "fractionSplit": {"trainingFraction": 1}}
        yield "POST", f"{vision}/trainingPipelines", pipeline_with(inputDataConfig=data)
        yield "POST", f"{vision}/models:upload", {"model": {}, "parentModel": model}
        yield "POST", f"{vision}/models:copy", {"sourceModel": model}
        for key, value in (("labels", id_["customJobs"]), ("resource.labels", id_["jobs"])):
            entries = {"resourceNames": ["projects/vision"], "filter": f'{key}.job_id="{value}"'}
            yield "POST", "/v2/entries:list", entries
        children = quote(f'parent_contexts:"{context}{id_["contexts"]}"')
        yield "GET", f"{vision}/metadataStores/default/contexts?filter={children}", None
        others = {"others": [id_["customJobs"]]}
        yield "POST", f"{PREFIX}jobs/mine:tensorboard", others

    stores = f"{vision}/metadataStores?metadataStoreId=default"
    assert (await service.call("POST", stores, {}, token=ana)).status == 200
    mine = ml_job() | {"jobId": "mine"}
    assert (await service.call("POST", "/v1/projects/vision/jobs", mine, token=ana)).status == 200
    empty = dict.fromkeys(there, MISSING)
    leaks: list[object] = []
    for wanted, other in zip(asks(there), asks(empty), strict=True):
        answers = [replace_ids(await service.call(*ask, token=ana), there) for ask in (wanted, other)]
        answers = [(status, re.sub(r"\d{4,}", MISSING, text)) for status, text in answers]
        if answers[0] != answers[1] or SECRET in str(answers):
            leaks.append((wanted, answers))
    assert leaks == []


@pytest.mark.parametrize(("more", "status"), [("bogus", 400), ("a" * 20_000, 403)])
async def test_rejected_create_request_reveals_no_buckets(
    service: ApiService, more: str, status: int
) -> None:
    """The error reveals no bucket, neither in a malformed request nor in a large one, which is
    validated early."""
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    job = custom_job()
    job["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://nobodys"}
    job |= {more: 1} if status == 400 else {"labels": {"a": more}}
    answer = await service.call("POST", f"{SPEECH}/customJobs", job, token=ana)
    assert answer.status == status and "nobodys" not in answer.error["message"]


async def test_project_in_the_request_path_takes_precedence_over_the_request_body(
    service: ApiService,
) -> None:
    """The body names another project."""
    add_user(service.tokens, "bo@corp.example", "roles/viewer", "speech")
    ana = add_user(service.tokens, ANA, "roles/owner", "vision")
    before = service.tokens.book.policy.of_project("speech")
    binding = {"role": "roles/owner", "members": [f"user:{ANA}"]}
    body = {"resource": "projects/speech", "policy": {"bindings": [binding]}}
    for version in ("v1", "v3"):
        await service.call("POST", f"/{version}/projects/vision:setIamPolicy", body, token=ana)
    assert service.tokens.book.policy.of_project("speech") == before
