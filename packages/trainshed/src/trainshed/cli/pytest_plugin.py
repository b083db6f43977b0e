"""The pytest plug-in of this package, with the fixture `trainshed_vertex`. It imports little, because every
run of pytest in the environment loads it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest


class Emulator:
    """An emulator for the tests of one session. The environment variables of its clients are set."""

    def __init__(self, variables: Mapping[str, str], plan: Path, capture: Path) -> None:
        #: The variables of `trainshed env`, such as TRAINSHED_ENDPOINT.
        self.variables = variables
        self._plan = plan
        self._capture = capture

    def plan(self, *rules: Mapping[str, Any]) -> None:
        """Set the results of jobs that are created after this call (docs/emulator.md). Without rules, jobs
        run their programs."""
        self._plan.write_text(json.dumps(rules))

    def requests(self) -> list[dict[str, Any]]:
        """Return the recorded requests, oldest first. Each has `method`, `path`, `query` and `body`."""
        return [json.loads(line) for line in self._capture.read_text().splitlines()]


@pytest.fixture(scope="session")
def trainshed_vertex(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """An emulator of Vertex AI and AI Platform Training. Every job succeeds, unless a test plans another
    result."""
    from trainshed.cli.emulate import emulator

    directory = tmp_path_factory.mktemp("trainshed")
    plan, capture = directory / "plan.json", directory / "requests.jsonl"
    plan.write_text('[{"job": "*"}]')
    with emulator(0, plan, capture) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield Emulator(variables, plan, capture)
