"""Curves of a job with a Tensorboard set by the SDK (facts/experiments#curves). The files are those of
PyTorch's SummaryWriter, without PyTorch (`programs/event_writer.py`).
"""

import json

from tests.e2e.packages import PROGRAMS
from tests.e2e.running import SKLEARN, Service, seen_by_sdk
from tests.isolation import needs_view

WRITER = (PROGRAMS / "event_writer.py").read_text()


_SDK = f"""
import logging
from google.api_core.exceptions import GoogleAPICallError

told = []
class Ear(logging.Handler):
    def emit(self, record):
        told.append((record.levelname, record.getMessage()))
for name in ("", "google.cloud.aiplatform.jobs"):
    logging.getLogger(name).addHandler(Ear())

aiplatform.init(api_transport=transport, staging_bucket="gs://trainshed/curves")
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


@needs_view
def test_job_with_a_tensorboard_stores_its_curves(service: Service) -> None:
    """Later calls of the SDK work without warnings."""
    seen = seen_by_sdk(service, _SDK)
    assert seen["points"].keys() == {"default", "eval-1"}, json.dumps(seen)
    for values in seen["points"].values():
        assert [round(value, 3) for value in values] == [1.0, 0.5, 0.333]
    assert seen["states"] == ["COMPLETE", "COMPLETE"]
    assert seen["warnings"] == []
    (link,) = seen["links"]
    assert link.rstrip().endswith(seen["experiment"])
    assert seen["job"] not in seen["experiments"]
    assert "does not exist. Create it first" in seen["refused"]
