"""Small chaos runs. `./dev chaos` is the large one (tests/chaos)."""

import os

import pytest

from tests.e2e import fork_server
from tests.e2e.running import ROOT

_PLAIN = ("--faults", "--tunings", "0")
"""Only kills."""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            ("--jobs", "12", "--kills", "6", "--seed", "7", *_PLAIN), id="any moment", marks=pytest.mark.soak
        ),
        # tests/engines/conformance kills at every step of a start and a stop, tests/sim at every commit.
        pytest.param(("--jobs", "3", "--kills", "1", "--seed", "7", *_PLAIN), id="a few"),
        pytest.param(
            ("--jobs", "12", "--kills", "6", "--seed", "10"), id="with faults", marks=pytest.mark.soak
        ),
        pytest.param(
            ("--jobs", "14", "--kills", "4", "--seed", "8", "--nodes", "2", "--strict"),
            id="with drains",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            ("--jobs", "16", "--kills", "6", "--seed", "9", "--at-ends", *_PLAIN),
            id="at ends of programs",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_jobs_end_correctly_while_the_service_is_killed(options: tuple[str, ...]) -> None:
    """spec/lifecycle#end, spec/failures, spec/logs#durability, spec/operations;
    spec/invariants#one-incarnation, spec/invariants#durability, spec/invariants#last-lines-first. On failure
    the output contains the errors and a command to repeat the run.
    """
    words = ("-m", "tests.chaos", *options, "--life", "0.2", "0.6")
    run = fork_server.services().run(words, os.environ, cwd=ROOT, seconds=240)
    assert run.returncode == 0, (run.stdout + run.stderr).decode()
