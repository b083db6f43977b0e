"""Whose buckets a job's program reaches, by every way there is from inside (spec/program#isolation, "no
access to other projects' buckets")."""

import json
from urllib.parse import urlencode

from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, container_job, submit
from tests.isolation import needs_view

_LENT = """
import os, sys, time, urllib.request
address = os.environ["GCE_METADATA_HOST"]
url = "http://" + address + "/computeMetadata/v1/instance/service-accounts/default/token"
request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
print("TOKEN " + urllib.request.urlopen(request, timeout=60).read().decode(), flush=True)
while True:
    time.sleep(0.2)
"""


def test_a_programs_token_ends_at_the_storage_port_with_its_job(service: Service) -> None:
    """Given away, it works while the job runs, and is refused after that, in exchange too."""
    service.call("POST", f"/storage/v1/b?project={PROJECT}", {"name": "buckets-lent"})
    service.put("buckets-lent", "x", b"content")
    job = submit(service, container_job(_LENT))
    printed = next(line for line in service.follow(job) if line.startswith("TOKEN "))
    token = json.loads(printed.removeprefix("TOKEN "))["access_token"]

    def read() -> tuple[int, bytes]:
        path = "/storage/v1/b/buckets-lent/o/x?alt=media"
        answer = service.ask("GET", path, place="storage", token=token)
        return answer.status, answer.body

    def exchange() -> int:
        form = urlencode({"grant_type": "refresh_token", "refresh_token": token}).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        path = "/oauth2/token"
        return service.ask("POST", path, form, place="storage", token=None, headers=kind).status

    assert read() == (200, b"content")
    assert exchange() == 200
    service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    service.finish(job)
    status, text = read()
    assert status == 401
    assert b"which is over" in text
    assert exchange() == 401


_STORAGE = """
import os, pathlib
from google.cloud import storage

bucket = storage.Client().bucket("trainshed")
here = pathlib.Path("/gcs/trainshed")
(here / "deep/er").mkdir(parents=True)
(here / "deep/er/one.txt").write_text("by file")
bucket.blob("deep/er/two.txt").upload_from_string("by client")
print("READ", bucket.blob("deep/er/one.txt").download_as_text(), "+", (here / "deep/er/two.txt").read_text())
print("LIST", sorted(blob.name for blob in bucket.list_blobs(prefix="deep/")))
model = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
model.mkdir(parents=True)
(model / "model.txt").write_text("weights")
pathlib.Path("/var/hypertune/output.metrics").write_text("{}")
print("METRICS", [name for name in os.listdir("/var/hypertune") if name[0] != "."])
"""


@needs_view
def test_buckets_and_metrics_from_inside(service: Service) -> None:
    """spec/program#metrics-file: gs:// by google-cloud-storage and /gcs/BUCKET are one and the same;
    /var/hypertune is writable."""
    body = container_job(_STORAGE)
    body["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": "gs://trainshed/inside"}
    job_id = submit(service, body)
    view = service.finish(job_id)
    printed = service.lines(job_id)
    assert view["state"] == "SUCCEEDED", (view.get("error"), printed)
    assert printed[-3:] == [
        "READ by file + by client",
        "LIST ['deep/er/one.txt', 'deep/er/two.txt']",
        "METRICS ['output.metrics']",
    ]
    # What a job wrote as a file is an object for everybody.
    objects = service.call("GET", "/storage/v1/b/trainshed/o?prefix=inside/")
    assert [item["name"] for item in objects["items"]] == ["inside/model/model.txt"]
