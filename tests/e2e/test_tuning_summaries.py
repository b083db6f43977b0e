"""Tuning by TensorFlow summaries: programs that write event files and report in no other way, submitted by
gcloud, the API client and REST. The files are TensorFlow's, byte for byte, without TensorFlow
(`programs/event_writer.py`)."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.e2e.packages import PROGRAMS
from tests.e2e.running import PROJECT, REGION, SKLEARN, Service, running
from tests.e2e.test_apiclient import built
from tests.e2e.tuning_programs import (
    BUCKET,
    final,
    finished,
    integer,
    study_spec,
    tune,
    tuning,
    tuning_job,
)

WRITER = (PROGRAMS / "event_writer.py").read_text()


def ref(project: str, job_id: str) -> str:
    """How paths of ours name a job of `ml` v1."""
    return quote(f"projects/{project}/jobs/{job_id}", safe="")


# --- ml v1, by gcloud

_TASK = """
import argparse, os, signal
from trainer.event_writer import EventWriter

parser = argparse.ArgumentParser()
parser.add_argument("--job-dir")
parser.add_argument("--rate")
place = parser.parse_args().job_dir.replace("gs://", "/gcs/")
trial = int(os.environ["CLOUD_ML_TRIAL_ID"])
training, evaluation = EventWriter(place), EventWriter(place + "/eval_holdout")
for step in range(10, 50, 10):
    training.scalar("accuracy", 0.75, step)
    evaluation.scalar("accuracy", {6: 0}.get(trial, trial / 16 + step / 256), step)
    evaluation.scalar("loss", 1, step)
training.scalar("accuracy", 1, 50)
if trial == 6:
    signal.pause()
"""
"""As an estimator: training and evaluation have the same tag. Trial 6 is far behind and goes on until it is
stopped."""

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


def test_a_job_directory_that_an_earlier_job_has_used(service: Service) -> None:
    """What is left of that one measures nothing."""
    first = ended(service, ml_job("before"))
    assert first["state"] == "SUCCEEDED", first
    again = ml_job("after", maxTrials=1)
    again["trainingInput"]["jobDir"] = f"gs://{BUCKET}/before"
    again["trainingInput"]["masterConfig"]["containerCommand"] = ["true"]
    job = ended(service, again)
    assert job["state"] == "FAILED"
    assert f"write it as a TensorFlow summary below gs://{BUCKET}/before/1" in job["errorMessage"]


def test_a_tag_that_is_spelled_differently_is_named(service: Service) -> None:
    job = ended(service, ml_job("misspelled", hyperparameterMetricTag="accuracy"))
    assert job["state"] == "FAILED"
    told = (
        f"summaries under gs://{BUCKET}/misspelled/1 have the tags 'training/hptuning/metric'; "
        "hyperparameterMetricTag says 'accuracy'"
    )
    assert told in job["errorMessage"]


# --- Vertex

_GATED = (
    WRITER
    + """
directory = os.environ["AIP_TENSORBOARD_LOG_DIR"].replace("gs://", "/gcs/")
writer = EventWriter(directory + "/validation")
for step in (1, 2, 3):
    writer.scalar("score", int(given["n"]) + step, step)
print("half way", flush=True)
while not os.path.exists("/gcs/trainshed/gates/summaries"):
    time.sleep(0.02)
for step in (4, 5):
    writer.scalar("score", int(given["n"]) + step, step)
"""
)


def test_a_kill_loses_and_doubles_no_measurement(data: Path) -> None:
    """Measurements are there while the trial runs; those of after the kill follow, and each step has one."""
    study = study_spec(integer("n", 1, 2), algorithm="GRID_SEARCH")
    body = tuning_job(_GATED, trials=2, parallel=2, study=study)
    base = {"outputUriPrefix": f"gs://{BUCKET}/vertex"}
    body["trialJobSpec"]["baseOutputDirectory"] = base
    with running(data) as service:
        job_id = tune(service, body)
        for _ in service.watch(job_id, 120):
            if measured(tuning(service, job_id)) == ["123", "123"]:
                break
        service.kill()
    with running(data) as service:
        service.put(BUCKET, "gates/summaries", b"")
        job = finished(service, job_id)
        assert job["state"] == "JOB_STATE_SUCCEEDED", job
        assert sorted(final(trial) for trial in job["trials"]) == [6, 7]
        assert measured(job) == ["12345", "12345"]
        curves = service.call("GET", f"/trainshed/v1/jobs/{job_id}/curves")["curves"]
        assert [curve["trial"] for curve in curves] == [1, 2]
        for curve in curves:
            assert [point["step"] for point in curve["points"]] == [1, 2, 3, 4, 5]


def measured(job: dict[str, Any]) -> list[str]:
    """The steps of each trial's measurements."""
    trials = (trial.get("measurements", ()) for trial in job.get("trials", ()))
    return ["".join(each["stepCount"] for each in measurements) for measurements in trials]
