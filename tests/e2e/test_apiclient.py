"""google-api-python-client against a real service: `ml` v1 and Logging v2 (spec/submit#refusals,
facts/resources#ml, spec/clients#recipes).

The library is untyped: what it builds from a discovery document is `Any` here.
"""

import importlib
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.running import SKLEARN, Service

PROJECT = "apiclient"
PARENT = f"projects/{PROJECT}"
BUCKET = f"trainshed-{PROJECT}"
REGION = "us-central1"
REF = quote(f"{PARENT}/jobs/census", safe="")


def untyped(name: str) -> Any:
    return importlib.import_module(name)


discovery: Any = untyped("googleapiclient.discovery")


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


@pytest.fixture(scope="module")
def finished(ml: Any, service: Service) -> dict[str, Any]:
    """A job in a prebuilt image with a worker, which needs no package, once it has succeeded."""
    jobs = ml.projects().jobs()
    script = "import sys; print(sys.argv[1:])"
    config = {"imageUri": SKLEARN, "containerCommand": ["python3", "-c", script]}
    body = {
        "jobId": "census",
        "labels": {"team": "red"},
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            "masterConfig": config,
            "workerType": "n1-standard-4",
            "workerCount": 1,
            "workerConfig": config,
            "region": REGION,
            "jobDir": f"gs://{BUCKET}/census",
        },
    }
    answer = jobs.create(parent=PARENT, body=body).execute()
    assert answer["state"] in ("QUEUED", "PREPARING")
    assert answer["etag"]
    view = service.finish(REF)
    assert view["state"] == "SUCCEEDED", view.get("error")
    return jobs.get(name=f"{PARENT}/jobs/census").execute()


def test_a_job_with_workers_in_an_image(finished: dict[str, Any], service: Service) -> None:
    """The job directory comes last. What programs are told of their cluster: unit/test_cluster_launch.py."""
    assert finished["trainingInput"]["workerCount"] == "1", "int64 is text in public JSON"
    assert finished["labels"] == {"team": "red"}
    directory = str(["--job-dir", f"gs://{BUCKET}/census"])
    assert directory in service.lines(REF, "workerpool0-0")


def test_the_served_discovery_document(finished: dict[str, Any], service: Service) -> None:
    """It names this host, so that a client built from it needs no endpoint."""
    url = f"{service.rest}/$discovery/rest?version={{apiVersion}}"
    fetched = discovery.build(
        "ml", "v1", discoveryServiceUrl=url, credentials=credentials(service.token)
    )
    document = service.ask("GET", "/discovery/v1/apis/ml/v1/rest", token=None).body.decode()
    loaded = discovery.build_from_document(document, credentials=credentials(service.token))
    for ml in (fetched, loaded):
        job = ml.projects().jobs().get(name=f"{PARENT}/jobs/census").execute()
        assert job["jobId"] == "census"


def test_log_entries(finished: dict[str, Any], service: Service) -> None:
    """spec/clients#log-pages: pages of a job's log in strict order, through the public client."""
    entries = built(service, "logging", "v2").entries()
    body = {
        "resourceNames": [PARENT],
        "filter": 'resource.type="ml_job" AND resource.labels.job_id="census"',
        "orderBy": "timestamp asc",
        "pageSize": 3,
    }
    logged: list[dict[str, Any]] = []
    request = entries.list(body=body)
    while request is not None:
        answer = request.execute()
        logged += answer.get("entries", ())
        request = entries.list_next(request, answer)
    places = [(entry["timestamp"], entry["insertId"]) for entry in logged]
    assert places == sorted(set(places))
    assert any("--job-dir" in entry.get("textPayload", "") for entry in logged)
    assert logged[-1]["textPayload"] == "Job completed successfully."
