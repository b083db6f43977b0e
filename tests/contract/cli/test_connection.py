"""How a command finds its service, and how it tells what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.cli.conftest import Invoke, write_service_file
from tests.contract.cli.fake_service import FakeService, job


def test_without_a_service_it_says_how_to_start_one(trainshed: Invoke, tmp_path: Path) -> None:
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: No Trainshed service is running with its data in {tmp_path}. Start one: trainshed up"
        f" --data {tmp_path}\n"
    )


def test_a_service_that_has_ended_is_not_asked(trainshed: Invoke, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_service_file(tmp_path, "http://127.0.0.1:1", pid=ended.pid)
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert f"process {ended.pid}, has ended" in result.stderr


def test_nothing_answers(trainshed: Invoke, service: FakeService, tmp_path: Path) -> None:
    write_service_file(tmp_path, "http://127.0.0.1:1")
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert "Nothing answers at http://127.0.0.1:1." in result.stderr
    assert "trainshed up" in result.stderr


def test_the_command_line_wins_over_the_environment(
    trainshed: Invoke, service: FakeService
) -> None:
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [], "nextPageToken": ""})
    env = {"TRAINSHED_ENDPOINT": "http://127.0.0.1:1", "TRAINSHED_TOKEN": "tok-en"}
    result = trainshed("jobs", "list", "--url", service.address, "--project", "q", env=env)
    assert result.exit_code == 0, result.stderr
    assert service.sent[0].query["project"] == "q"


def test_a_wrong_token_says_what_to_do(trainshed: Invoke, service: FakeService) -> None:
    result = trainshed("jobs", "list", "--token", "wrong")
    assert result.exit_code == 1
    assert "Who are you?" in result.stderr
    assert "trainshed env --unset" in result.stderr
    assert "wrong" not in result.stderr


def test_every_violation_has_a_line(trainshed: Invoke, service: FakeService) -> None:
    service.refuse(
        "GET", "/trainshed/v1/jobs", 400, "long text", state="'X' is no state.", limit="is odd."
    )
    result = trainshed("jobs", "list", "--state", "X")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: The service refused the request:",
        "  state: 'X' is no state.",
        "  limit: is odd.",
    ]


@pytest.mark.parametrize(
    "arguments",
    [("jobs", "list", "--limit", "0"), ("jobs", "describe"), ("jobs", "nonsense"), ("env", "x")],
)
def test_mistakes_in_the_command_line_exit_with_2(
    trainshed: Invoke, arguments: tuple[str, ...]
) -> None:
    assert trainshed(*arguments).exit_code == 2


def test_a_reader_who_has_enough_is_no_failure(service: FakeService, tmp_path: Path) -> None:
    """As with every command in a shell with `set -o pipefail`: 1 would say that what was asked for failed."""
    jobs = [job(str(number)) for number in range(20_000)]
    service.on("GET", "/trainshed/v1/jobs", {"jobs": jobs, "nextPageToken": ""})
    listing = f"{sys.executable} -m trainshed jobs list --project p --limit 20000"
    result = subprocess.run(
        ["bash", "-c", f"{listing} | head -1; echo ${{PIPESTATUS[0]}}"],
        env={**os.environ, "TRAINSHED_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[1:] == ["141"], result.stderr
    assert not result.stderr
