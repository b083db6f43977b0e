"""Tuning by TensorFlow summaries: programs that write event files and report in no other way, submitted by
gcloud, the API client and REST. The files are TensorFlow's, byte for byte, without TensorFlow
(`programs/event_writer.py`)."""

from typing import Any
from urllib.parse import quote

from tests.e2e.packages import PROGRAMS
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service
from tests.e2e.test_apiclient import built
from tests.e2e.tuning_programs import (
    BUCKET,
)

WRITER = (PROGRAMS / "event_writer.py").read_text()


def ref(project: str, job_id: str) -> str:
    """How paths of ours name a job of `ml` v1."""
    return quote(f"projects/{project}/jobs/{job_id}", safe="")


# --- ml v1, by the API client

_UPLOADS = (
    WRITER
    + """
import sys, tempfile, urllib.parse, urllib.request

bucket, _, place = sys.argv[sys.argv.index("--job-dir") + 1].removeprefix("gs://").partition("/")
trial = int(os.environ["CLOUD_ML_TRIAL_ID"])
scratch = tempfile.TemporaryDirectory()
writer = EventWriter(scratch.name)
(path,) = pathlib.Path(scratch.name).iterdir()
name = urllib.parse.quote(place + "/eval/" + path.name, safe="")
address = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
for step in (0, 1, 2):
    writer.scalar("training/hptuning/metric", 8 - trial - step, step)
    urllib.request.urlopen(urllib.request.Request(address, path.read_bytes())).close()
"""
)
"""As TensorFlow writes to gs://: the object is uploaded once more at every flush."""


def ml_job(job_id: str, **more: Any) -> dict[str, Any]:
    parameter = {"parameterName": "n", "type": "INTEGER", "minValue": 1, "maxValue": 9}
    return {
        "jobId": job_id,
        "trainingInput": {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-4",
            "region": REGION,
            "jobDir": f"gs://{BUCKET}/{job_id}",
            "masterConfig": {
                "imageUri": SKLEARN,
                "containerCommand": ["python3", "-c", _UPLOADS],
            },
            "hyperparameters": {"goal": "MINIMIZE", "maxTrials": 2, "params": [parameter], **more},
        },
    }


def ended(service: Service, job: dict[str, Any]) -> dict[str, Any]:
    jobs: Any = built(service, "ml", "v1").projects().jobs()
    jobs.create(parent=f"projects/{PROJECT}", body=job).execute()
    service.finish(ref(PROJECT, job["jobId"]), 120)
    return jobs.get(name=f"projects/{PROJECT}/jobs/{job['jobId']}").execute()


def test_the_default_tag_in_uploaded_objects(service: Service) -> None:
    job = ended(service, ml_job("uploaded"))
    assert job["state"] == "SUCCEEDED", job
    found = {t["trialId"]: t["finalMetric"] for t in job["trainingOutput"]["trials"]}
    assert found == {n: {"trainingStep": "2", "objectiveValue": 6.0 - int(n)} for n in ("1", "2")}
    # An object that is uploaded anew at each flush is read on (facts/experiments#curves).
    path = f"/trainshed/v1/jobs/{ref(PROJECT, 'uploaded')}/curves"
    curves = {
        (curve["trial"], curve["run"], curve["tag"], curve["count"])
        for curve in service.call("GET", path)["curves"]
    }
    assert curves == {(n, "eval", "training/hptuning/metric", 3) for n in (1, 2)}
