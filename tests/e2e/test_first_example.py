"""The example programs behave as the pages describe, in their frameworks."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, SKLEARN, Service, command, environment, running, trainshed
from tests.isolation import needs_view


@pytest.mark.soak
def test_first_example_trains_in_pytorch_and_saves_its_model(tmp_path: Path) -> None:
    """Builds the runtime of PyTorch, a gigabyte, unless the tests' cache contains it."""
    words = "run task.py --image pytorch --replicas 2 --requirements pandas --watch -- --epochs 3"
    with running(tmp_path / "data") as service:
        run = subprocess.run(
            command(*words.split()),
            cwd=ROOT / "examples/first",
            env=environment(service.data),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        assert run.returncode == 0, run.stdout
        losses = re.findall(r"workerpool0-0 .*epoch \d/3 loss (\S+)", run.stdout)
        first, _, last = map(float, losses)
        assert last < first / 2, run.stdout
        (directory,) = set(re.findall(r"The model is in gs://(\S+)", run.stdout))
        model = Path(str(service.extra["buckets"])) / directory
        assert {file.name for file in model.iterdir()} == {"model.pt", "history.csv"}


@needs_view
@pytest.mark.parametrize(
    ("program", "image"),
    [
        ("digits.py", SKLEARN),
        pytest.param("images.py", "pytorch", marks=pytest.mark.soak),
        pytest.param("keras_digits.py", "tensorflow", marks=pytest.mark.soak),
    ],
)
def test_documented_examples_resume_from_checkpoints_after_a_kill(
    service: Service, program: str, image: str
) -> None:
    """docs/drills.md; scikit-learn in the small environment that most tests share."""
    words = f"run {program} --image {image} --format json -- --pause 0.2 --epochs 50"
    run = trainshed(*words.split(), data=service.data, cwd=ROOT / "examples/resume")
    job = json.loads(run.stdout)["uid"]
    drill = {"kind": "kill", "atLine": "(?i)^epoch 25/"}  # Long after its order and long before the end.
    service.call("POST", f"/trainshed/v1/jobs/{job}:drill", drill)
    service.finish(job)
    report = service.call("GET", f"/trainshed/v1/jobs/{job}/resumeReport")
    assert report["result"] == "PASS", (report, service.lines(job))
