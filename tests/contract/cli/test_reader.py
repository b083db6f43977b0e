"""A command that follows something ends when its reader does (`| head`), not at the next thing to write."""

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.contract.cli.fake_service import JOBS, FakeService, Stream, entry, job, line, replica


@pytest.mark.parametrize(
    "words",
    [
        ("watch", "7"),
        ("watch", "7", "--format", "json"),
        ("logs", "-f", "7"),
    ],
    ids="-".join,
)
def test_a_follower_ends_with_its_reader(
    service: FakeService, tmp_path: Path, words: tuple[str, ...]
) -> None:
    running = job("7", "RUNNING", [replica("workerpool0-0")])
    output, gate = line("workerpool0-0", "hello"), threading.Event()
    service.on("GET", f"{JOBS}/7", running)
    # The second parts never come while the command runs.
    service.on("GET", f"{JOBS}/7/watch", Stream([running, running], gate))
    service.on("GET", f"{JOBS}/7/logs", Stream([output, output], gate))
    service.on("GET", f"{JOBS}/7/timeline", {"entries": [entry("created", "made")]})
    if words[0] == "logs":
        service.on("GET", f"{JOBS}/7/logs", Stream([output]), Stream([output, output], gate))
    environ = {**os.environ, "TRAINSHED_DATA": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "trainshed", "jobs", *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None and command.stderr is not None
        try:
            assert select.select([command.stdout], [], [], 8)[0], "it tells nothing"
            assert command.stdout.readline()
            command.stdout.close()
            assert command.wait(8) == 128 + signal.SIGPIPE, command.stderr.read().decode()
            assert command.stderr.read() == b""
        finally:
            gate.set()
            command.kill()
