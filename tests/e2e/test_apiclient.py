"""google-api-python-client against a real service: `ml` v1 and Logging v2 (spec/submit#refusals,
facts/resources#ml, spec/clients#recipes).

The library is untyped: what it builds from a discovery document is `Any` here.
"""

import importlib
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.running import SKLEARN, Service

PROJECT = "apiclient"
PARENT = f"projects/{PROJECT}"
BUCKET = f"trainshed-{PROJECT}"
REGION = "us-central1"

SHOW = """
import json, os, sys
print("ARGV", json.dumps(sys.argv[1:]))
print("CLUSTER_SPEC", os.environ["CLUSTER_SPEC"])
print("TF_CONFIG", os.environ["TF_CONFIG"])
"""


def untyped(name: str) -> Any:
    return importlib.import_module(name)


discovery: Any = untyped("googleapiclient.discovery")
HttpError: Any = untyped("googleapiclient.errors").HttpError


def credentials(token: str) -> Any:
    return untyped("google.oauth2.credentials").Credentials(token)


def built(service: Service, api: str, version: str) -> Any:
    """As in the recipe: the document that the library ships, and our address."""
    options = untyped("google.api_core.client_options").ClientOptions(api_endpoint=service.rest)
    return discovery.build(
        api,
        version,
        static_discovery=True,
        client_options=options,
        credentials=credentials(service.token),
    )


@pytest.fixture(scope="module")
def ml(service: Service) -> Any:
    service.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": BUCKET})
    return built(service, "ml", "v1")


def image_job(job_id: str, script: str, **more: Any) -> dict[str, Any]:
    """A job that runs a script in a prebuilt image, so that there is no package to upload."""
    config = {"imageUri": SKLEARN, "containerCommand": ["python3", "-c", script]}
    return {
        "jobId": job_id,
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            "masterConfig": config,
            "region": REGION,
        }
        | more,
    }


def ref(job_id: str) -> str:
    return quote(f"{PARENT}/jobs/{job_id}", safe="")


def said(lines: list[str], word: str) -> Any:
    (found,) = [line for line in lines if line.startswith(word + " ")]
    return json.loads(found.removeprefix(word))


@pytest.fixture(scope="module")
def finished(ml: Any, service: Service) -> dict[str, dict[str, Any]]:
    """Three jobs that succeeded, by id; the first has workers."""
    jobs = ml.projects().jobs()
    workers = {
        "workerType": "n1-standard-4",
        "workerCount": 2,
        "workerConfig": {"imageUri": SKLEARN, "containerCommand": ["python3", "-c", SHOW]},
    }
    bodies: list[dict[str, Any]] = [
        image_job("census_1", SHOW, jobDir=f"gs://{BUCKET}/census", **workers)
        | {"labels": {"team": "red"}},
        image_job("census_2", "print('two')"),
        image_job("other", "print('other')"),
    ]
    for body in bodies:
        answer = jobs.create(parent=PARENT, body=body).execute()
        assert answer["state"] in ("QUEUED", "PREPARING")
        assert answer["etag"]
    ids = [body["jobId"] for body in bodies]
    for job_id in ids:
        view = service.finish(ref(job_id))
        assert view["state"] == "SUCCEEDED", view.get("error")
    return {i: jobs.get(name=f"{PARENT}/jobs/{i}").execute() for i in ids}


def test_a_job_with_workers_in_an_image(finished: dict[str, Any], service: Service) -> None:
    """spec/program#cluster_spec: custom containers have CLUSTER_SPEC too; master, not chief; the job
    directory comes last."""
    job = finished["census_1"]
    assert job["trainingInput"]["workerCount"] == "2", "int64 is text in public JSON"
    assert job["trainingOutput"]["consumedMLUnits"] > 0
    assert job["labels"] == {"team": "red"}
    for replica, role, index in (
        ("workerpool0-0", "master", 0),
        ("workerpool1-1", "worker", 1),
    ):
        lines = service.lines(ref("census_1"), replica)
        if not any(line.startswith("TF_CONFIG ") for line in lines):
            # The master may be done before a worker says anything: then it is stopped
            # (spec/lifecycle#success).
            assert role == "worker"
            continue
        assert said(lines, "ARGV") == ["--job-dir", f"gs://{BUCKET}/census"]
        for variable in ("CLUSTER_SPEC", "TF_CONFIG"):
            spec = said(lines, variable)
            assert {role: len(hosts) for role, hosts in spec["cluster"].items()} == {
                "master": 1,
                "worker": 2,
            }
            assert (spec["task"]["type"], spec["task"]["index"]) == (role, index)


def test_without_a_token(service: Service) -> None:
    """No token at all: httplib2 reads the challenge of a 401 before the library sees the answer."""
    options = untyped("google.api_core.client_options").ClientOptions(api_endpoint=service.rest)
    http = untyped("httplib2").Http()
    ml = discovery.build("ml", "v1", static_discovery=True, client_options=options, http=http)
    with pytest.raises(HttpError) as refused:
        ml.projects().jobs().list(parent=PARENT).execute()
    assert refused.value.status_code == 401
    assert refused.value.reason


def test_the_served_discovery_document(finished: dict[str, Any], service: Service) -> None:
    """It names this host, so that a client built from it needs no endpoint."""
    url = f"{service.rest}/$discovery/rest?version={{apiVersion}}"
    fetched = discovery.build(
        "ml", "v1", discoveryServiceUrl=url, credentials=credentials(service.token)
    )
    with urllib.request.urlopen(f"{service.rest}/discovery/v1/apis/ml/v1/rest") as response:
        document = response.read().decode()
    loaded = discovery.build_from_document(document, credentials=credentials(service.token))
    for ml in (fetched, loaded):
        job = ml.projects().jobs().get(name=f"{PARENT}/jobs/other").execute()
        assert job["jobId"] == "other"
    with pytest.raises(urllib.error.HTTPError) as missing:
        urllib.request.urlopen(f"{service.rest}/$discovery/rest?api=pubsub&version=v1")
    assert missing.value.code == 404
    missing.value.close()


def test_log_entries(finished: dict[str, Any], service: Service) -> None:
    """spec/clients#log-pages: pages of a job's log in strict order, through the public client."""
    entries = built(service, "logging", "v2").entries()
    body = {
        "resourceNames": [PARENT],
        "filter": 'resource.type="ml_job" AND resource.labels.job_id="census_2"',
        "orderBy": "timestamp asc",
        "pageSize": 3,
    }
    found: list[dict[str, Any]] = []
    request = entries.list(body=body)
    while request is not None:
        answer = request.execute()
        found += answer.get("entries", ())
        request = entries.list_next(request, answer)
    places = [(entry["timestamp"], entry["insertId"]) for entry in found]
    assert places == sorted(set(places))
    assert "two" in [entry.get("textPayload") for entry in found]
    assert found[-1]["textPayload"] == "Job completed successfully."
    with pytest.raises(HttpError) as refused:
        entries.list(body=body | {"filter": "timestamp>("}).execute()
    assert "filter" in refused.value.reason
