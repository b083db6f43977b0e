"""google-api-python-client with a real service: `ml` v1 (spec/submit#refusals, facts/resources#ml,
spec/clients#recipes).

The library is untyped: objects from a discovery document are `Any`.
"""

import importlib
from typing import Any
from urllib.parse import quote

from tests.e2e.running import SKLEARN, Service

PARENT = "projects/apiclient"


def import_untyped(name: str) -> Any:
    return importlib.import_module(name)


discovery: Any = import_untyped("googleapiclient.discovery")


def credentials(token: str) -> Any:
    return import_untyped("google.oauth2.credentials").Credentials(token)


def build_client(service: Service, api: str, version: str) -> Any:
    """Return a client from the library's discovery document with this service's address, as in the recipe."""
    options = import_untyped("google.api_core.client_options").ClientOptions(api_endpoint=service.rest)
    return discovery.build(
        api, version, static_discovery=True, client_options=options, credentials=credentials(service.token)
    )


def test_clients_of_every_discovery_document_create_and_read_a_job(service: Service) -> None:
    """The served document contains this host, so that a client built from it needs no endpoint."""
    script = {"imageUri": SKLEARN, "containerCommand": ["python3", "-c", ""]}
    master = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4", "masterConfig": script}
    body = {"jobId": "census", "trainingInput": {**master, "region": "us-central1"}}
    shipped = build_client(service, "ml", "v1")
    answer = shipped.projects().jobs().create(parent=PARENT, body=body).execute()
    assert answer["state"] in ("QUEUED", "PREPARING")
    assert answer["etag"]
    view = service.finish(quote(f"{PARENT}/jobs/census", safe=""))
    assert view["state"] == "SUCCEEDED", view.get("error")
    url = f"{service.rest}/$discovery/rest?version={{apiVersion}}"
    known = credentials(service.token)
    fetched = discovery.build("ml", "v1", discoveryServiceUrl=url, credentials=known)
    document = service.ask("GET", "/discovery/v1/apis/ml/v1/rest", token=None).body.decode()
    loaded = discovery.build_from_document(document, credentials=known)
    for ml in (shipped, fetched, loaded):
        job = ml.projects().jobs().get(name=f"{PARENT}/jobs/census").execute()
        assert job["jobId"] == "census"
