"""The plug-in of pytest that the package installs: the fixture `trainshed_vertex`. Every pytest of an
environment loads it, so it imports nothing else."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest


class Emulator:
    """An emulator that serves the tests of a session; clients find it by the variables that are set."""

    def __init__(self, variables: Mapping[str, str], plan: Path, capture: Path) -> None:
        #: What `trainshed env` prints for it, TRAINSHED_ENDPOINT for one.
        self.variables = variables
        self._plan = plan
        self._capture = capture

    def plan(self, *rules: Mapping[str, Any]) -> None:
        """Let jobs that are created from now on end by these rules (docs/emulator.md); without any they
        really run."""
        self._plan.write_text(json.dumps(rules))

    def requests(self) -> list[dict[str, Any]]:
        """Return what clients have sent, oldest first, each with `method`, `path`, `query` and `body`."""
        return [json.loads(line) for line in self._capture.read_text().splitlines()]


@pytest.fixture(scope="session")
def trainshed_vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator of Vertex AI and AI Platform Training, in which every job succeeds until a test plans
    otherwise."""
    from trainshed.cli.emulate import emulator

    directory = tmp_path_factory.mktemp("trainshed")
    plan, capture = directory / "plan.json", directory / "requests.jsonl"
    plan.write_text('[{"job": "*"}]')
    with emulator(0, plan, capture) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield Emulator(variables, plan, capture)
