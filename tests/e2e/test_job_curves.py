"""Curves of jobs that log summaries: of one that says nothing of TensorBoard, of one that names a Tensorboard
by the SDK, and over a kill of the service (facts/experiments#curves). The files are those that PyTorch's
SummaryWriter writes, without PyTorch (`programs/event_writer.py`)."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.packages import PROGRAMS
from tests.e2e.running import (
    CUSTOM_JOBS,
    SKLEARN,
    Service,
    container_job,
    given_by_env,
    seen_by,
    submit,
    trainshed,
)

Curves = dict[str, list[tuple[int, float]]]
"""Points by run and tag."""

WRITER = (PROGRAMS / "event_writer.py").read_text()


def logging_job(script: str, output: str) -> dict[str, Any]:
    body = container_job(WRITER + script)
    body["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": f"gs://trainshed/{output}"}
    return body


def curves(service: Service, job_id: str) -> Curves:
    """The points of each curve, by run and tag."""
    answer = service.call("GET", f"/trainshed/v1/jobs/{job_id}/curves")
    return {
        f"{curve['run']}:{curve['tag']}": [
            (point["step"], point["value"]) for point in curve["points"]
        ]
        for curve in answer["curves"]
    }


def until(service: Service, job_id: str, wanted: Callable[[Curves], bool]) -> Curves:
    """The curves as soon as they are as wanted."""
    end, pause = time.monotonic() + 60, threading.Event()
    while not wanted(found := curves(service, job_id)):
        assert time.monotonic() < end, found
        pause.wait(0.1)
    return found


_PLAIN = """
directory = os.environ["AIP_TENSORBOARD_LOG_DIR"].replace("gs://", "/gcs/")
training, evaluation = EventWriter(directory), EventWriter(directory + "/eval")
for step in range(3):
    training.scalar("loss", 1 / (step + 1), step)
while not os.path.exists("/gcs/trainshed/gates/plain"):
    time.sleep(0.02)
evaluation.scalar("accuracy", 0.75, 2)
"""


def test_curves_of_a_job_that_says_nothing_of_them(service: Service) -> None:
    """They are there while it runs, and all of them when its end is told."""
    job_id = submit(service, logging_job(_PLAIN, "plain"))
    loss = [(step, 1 / (step + 1)) for step in range(3)]
    found = until(service, job_id, lambda found: len(found.get(":loss", ())) == 3)
    assert [round(value, 3) for _, value in found[":loss"]] == [round(v, 3) for _, v in loss]
    service.put("trainshed", "gates/plain", b"")
    assert service.finish(job_id, 60)["state"] == "SUCCEEDED"
    assert curves(service, job_id)["eval:accuracy"] == [(2, 0.75)]
    points = trainshed("describe", "curves", job_id, "--format", "json", data=service.data).stdout
    assert {curve["tag"] for curve in json.loads(points)["curves"]} == {"accuracy", "loss"}
    service.call("DELETE", f"{CUSTOM_JOBS}/{job_id}")
    service.call("GET", f"/trainshed/v1/jobs/{job_id}/curves", expect=404)


_SDK = f"""
import json, logging, sys
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import aiplatform
from google.oauth2.credentials import Credentials

told = []
class Ear(logging.Handler):
    def emit(self, record):
        told.append((record.levelname, record.getMessage()))
for name in ("", "google.cloud.aiplatform.jobs"):
    logging.getLogger(name).addHandler(Ear())

endpoint, token = sys.argv[1:]
aiplatform.init(
    project="trainshed",
    location="us-central1",
    api_endpoint=endpoint,
    credentials=Credentials(token),
    staging_bucket="gs://trainshed/curves",
)
board = aiplatform.Tensorboard.create(display_name="board")
script = '''{WRITER}
directory = os.environ["AIP_TENSORBOARD_LOG_DIR"].replace("gs://", "/gcs/")
for run in ("", "/eval_1"):
    writer = EventWriter(directory + run)
    for step in range(1, 4):
        writer.scalar("loss", 1 / step, step)
'''
pool = {{
    "machine_spec": {{"machine_type": "n1-standard-4"}},
    "replica_count": 1,
    "container_spec": {{"image_uri": "{SKLEARN}", "command": ["python3", "-c", script]}},
}}
job = aiplatform.CustomJob("curves", [pool])
job.run(tensorboard=board.resource_name)
runs = aiplatform.TensorboardRun.list(
    tensorboard_experiment_name=job.name, tensorboard_id=board.name
)
points = {{}}
for run in runs:
    for series in run.read_time_series_data().values():
        points[run.name.split("/")[-1]] = [value.scalar.value for value in series.values]
states = [aiplatform.Context(f"{{job.name}}-{{run}}").metadata["_state"] for run in sorted(points)]
try:
    aiplatform.CustomJob("refused", [pool]).run(tensorboard=board.resource_name + "9")
except GoogleAPICallError as error:
    refused = error.message
print("SEEN", json.dumps({{
    "warnings": [message for level, message in told if level in ("WARNING", "ERROR")],
    "links": [message for _, message in told if "tensorboard.googleusercontent.com" in message],
    "experiment": f"experiments+{{job.name}}",
    "points": points,
    "states": states,
    "experiments": [each.name for each in aiplatform.Experiment.list()],
    "job": job.name,
    "refused": refused,
}}))
"""


def test_the_sdk_names_a_tensorboard(service: Service, tmp_path: Path) -> None:
    """What it does after the job works without a word of warning."""
    path = tmp_path / "curves.py"
    path.write_text(_SDK)
    arguments = (str(service.extra["grpc_tls"]), service.token)
    seen = seen_by(path, *arguments, variables=given_by_env(service))
    assert seen["points"].keys() == {"default", "eval-1"}, json.dumps(seen)
    for values in seen["points"].values():
        assert [round(value, 3) for value in values] == [1.0, 0.5, 0.333]
    assert seen["states"] == ["COMPLETE", "COMPLETE"]
    assert seen["warnings"] == []
    (link,) = seen["links"]
    assert link.rstrip().endswith(seen["experiment"])
    assert seen["job"] not in seen["experiments"]
    assert "does not exist; create it first" in seen["refused"]
