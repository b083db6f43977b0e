"""How far a job is, from end to end: what programs print, and what they report by Kubeflow Trainer's protocol
with a real HTTPS client (spec/program#progress)."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import shown
from tests.e2e.running import (
    CUSTOM_JOBS,
    PROJECT,
    SKLEARN,
    Service,
    container_job,
    submit,
    trainshed,
)
from tests.e2e.stories import at, make_pipe, until

PROGRAM = Path(__file__).parent / "programs" / "reports_progress.py"

EPOCHS = """
import time
for epoch in range(1, 5):
    time.sleep(0.3)
    print(f"epoch {epoch}/8 loss {1 / epoch:.3f}", flush=True)
"""


def reporting(gate: Path, **labels: str) -> dict[str, Any]:
    body = container_job("")
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"] = {
        "imageUri": SKLEARN,
        "command": ["python3", "-c", PROGRAM.read_text()],
        "args": [str(gate)],
    }
    return body | {"labels": labels}


def test_what_a_program_prints_says_how_far_it_is(service: Service, commons: Path) -> None:
    def said(*words: str) -> str:
        return trainshed("jobs", *words, data=service.data).stdout

    gate = make_pipe(commons / "prints")
    job = submit(service, container_job(EPOCHS + "print('READY', flush=True)\n" + at(gate)))
    until(service.follow(job), "READY")
    told = service.call("GET", f"/trainshed/v1/jobs/{job}")["progress"]
    assert (told["text"], told["done"], told["source"]) == ("epoch 4 of 8", 0.5, "output")
    assert 0.2 < told["remainingSeconds"] < 10
    assert told["marginSeconds"] > 0
    jobs = service.call("GET", "/trainshed/v1/jobs?project=-&glance=true&state=RUNNING")["jobs"]
    (glance,) = (each["glance"] for each in jobs if each["jobId"] == job)
    assert glance["progress"] == "epoch 4 of 8"
    assert glance["remainingSeconds"] is not None
    assert "50 %, epoch 4 of 8, " in said("list", "--project", PROJECT)
    assert "50 %, epoch 4 of 8, " in said("describe", job)
    gate.write_text("")
    assert service.finish(job)["state"] == "SUCCEEDED"


def test_a_program_reports_by_kubeflow_trainers_protocol(service: Service, commons: Path) -> None:
    status = service.call("GET", "/trainshed/v1/status")
    if status["engine"]["isolation"] == "session":
        pytest.skip("no host leads to the endpoint at this level: it is NOT tested")
    gate = make_pipe(commons / "reports")
    job = submit(service, reporting(gate))
    lines = until(service.follow(job), "READY")
    (seen,) = (line for line in lines if line.startswith("SEEN "))
    assert json.loads(seen.removeprefix("SEEN ")) == [401, 422, 413, 200], lines
    assert any("trainerStatus.progressPercentage" in line for line in lines)
    told = service.call("GET", f"/trainshed/v1/jobs/{job}/progress")
    assert (told["source"], told["text"], told["done"]) == ("report", "step 120 of 400", 0.3)
    assert 700 < told["remainingSeconds"] <= 840
    assert told["metrics"] == {"loss": "0.25", "current_step": "120", "total_steps": "400"}
    described = trainshed("jobs", "describe", job, data=service.data).stdout
    assert "30 %, step 120 of 400, about 14 min left" in described
    assert "loss 0.25" in described
    gate.write_text("")
    assert service.finish(job)["state"] == "SUCCEEDED"
    kept = service.call("GET", f"/trainshed/v1/jobs/{job}")["progress"]
    assert (kept["metrics"], kept["remainingSeconds"]) == (told["metrics"], None)


def test_a_label_turns_the_variables_off_and_the_guides_function_reports(service: Service) -> None:
    if service.call("GET", "/trainshed/v1/status")["engine"]["isolation"] == "session":
        pytest.skip("there are none at this level: it is NOT tested")
    (block,) = (block.text for block in shown() if block.key == "docs/console.md#How far a job is")
    script = f"""{block}
print(names := sorted(name for name in os.environ if 'KUBEFLOW' in name))
if names:
    report(75, 60, loss=0.5)
"""
    jobs = [
        submit(service, container_job(script) | {"labels": {"trainshed-progress-reports": said}})
        for said in ("off", "on")
    ]
    for job in jobs:
        assert service.finish(job)["state"] == "SUCCEEDED"
    off, on = (service.lines(job)[-1] for job in jobs)
    assert off == "[]"
    assert on.count("KUBEFLOW_TRAINER_SERVER_") == 3
    told = service.call("GET", f"/trainshed/v1/jobs/{jobs[1]}/progress")
    assert (told["done"], told["metrics"]) == (0.75, {"loss": "0.5"})
    wrong = container_job("") | {"labels": {"trainshed-progress-reports": "maybe"}}
    said = service.call("POST", CUSTOM_JOBS, wrong, expect=400)
    assert "labels.trainshed-progress-reports" in json.dumps(said)
