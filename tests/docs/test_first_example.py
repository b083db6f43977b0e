"""The program that the README begins with learns, in the framework that it is written for."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.e2e.running import command, environment, running


@pytest.mark.soak
def test_the_first_example_learns_in_pytorch_and_leaves_its_model(tmp_path: Path) -> None:
    """Builds the runtime of PyTorch, a gigabyte, unless the tests' cache has it."""
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
