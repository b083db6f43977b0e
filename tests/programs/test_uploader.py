"""`aiplatform.upload_tb_log`, which needs TensorFlow, with a service (docs/experiments.md)."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, Service, env_variables, json_of, running

pytestmark = pytest.mark.programs

_PROGRAM = ROOT / "tests/e2e/programs/upload_tb_log.py"
_SDK = importlib.metadata.version("google-cloud-aiplatform")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the SDK and the dependencies of its uploader (1.6 GB)."""
    place = tmp_path_factory.mktemp("uploader") / "env"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(place)], check=True)
    wanted = (f"google-cloud-aiplatform=={_SDK}", "tensorflow-cpu", "tensorboard", "setuptools")
    path = str(place / "bin/python")
    subprocess.run([*uv, "pip", "install", "-q", "--python", path, *wanted], check=True)
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("uploads") / "data") as started:
        yield started


@pytest.mark.parametrize("transport", ["rest", "grpc"])
def test_uploader_uploads_every_event_once(
    service: Service, python: str, transport: str, tmp_path: Path
) -> None:
    """facts/experiments#tensorboards: uploaded twice, and during writes, without duplicates."""
    done = subprocess.run(
        [python, str(_PROGRAM), str(tmp_path / "logs"), transport],
        env={**env_variables(service), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json_of(done.stdout.splitlines(), "SEEN")
    assert seen.pop("prefix") == "trainshed/tensorboards/trainshed"
    assert {name: kind for name, (kind, _) in seen.items()} == {
        "train loss": "SCALAR",
        "train weights": "TENSOR",
        "eval loss": "SCALAR",
        "eval weights": "TENSOR",
    }
    assert seen["train loss"][1] == [[1, 1.0], [2, 0.5], [4, 0.25]]
    assert [step for step, _ in seen["train weights"][1]] == [1, 2, 4]
    assert seen["eval loss"][1] == [[1, 1.0], [8, 0.125]]
