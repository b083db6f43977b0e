"""The README's first command and what it promises, as a newcomer runs it."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e import running
from tests.e2e.running import command, environment


def trainshed(data: Path, *args: str, expect: int = 0) -> str:
    """What a command says of the demo's service."""
    done = running.trainshed(*args, data=data, status=expect)
    return done.stdout + done.stderr


def demo(data: Path, *args: str) -> str:
    """As a newcomer runs it, in a process of its own."""
    done = subprocess.run(
        command("demo", "--keep", *args),
        env=environment(data),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A data directory in which the demo ran, its service still up, and what the demo said."""
    data = tmp_path_factory.mktemp("demo")
    return data, demo(data)


def test_the_demo_trains_a_model_and_says_where_it_lies(demonstrated: tuple[Path, str]) -> None:
    data, output = demonstrated
    assert re.search(r"SUCCEEDED after", output)
    accuracy = re.search(r"final accuracy (0\.\d+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9, "it learned"
    for replica in ("workerpool0-0", "workerpool1-0", "workerpool1-1", "workerpool3-0"):
        assert replica in output
    where = re.search(r"On disk +(\S+)", output)
    assert where is not None
    model = Path(where[1])
    assert model.is_relative_to(data)
    assert (model / "model.npz").stat().st_size > 1000
    assert json.loads((model / "metrics.json").read_text())["accuracy"] == pytest.approx(
        float(accuracy[1]), abs=0.001
    )


def test_down_stops_the_service_and_what_comes_then_says_so(demonstrated: tuple[Path, str]) -> None:
    data, _ = demonstrated
    trainshed(data, "down")
    output = trainshed(data, "jobs", "list", expect=1)
    assert "No Trainshed service is running" in output
    assert "trainshed up" in output
