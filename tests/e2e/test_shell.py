"""Shells of a real service: by the command line, by a job's link in a browser, and in the files of a failed
job.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.e2e import fork_server
from tests.e2e.job_history import until as until_line
from tests.e2e.running import CUSTOM_JOBS, Service, command, container_job, down, environment, start, submit
from tests.isolation import needs_view

pytestmark = pytest.mark.e2e
WAITS = "import os, time; print('here', flush=True); os.environ['X'] = 'y'; time.sleep(600)"
FAILS = """
import sys
open("notes.txt", "w").write("loss is nan")
print(sys.prefix)
raise SystemExit(3)
"""


def start_job(service: Service) -> str:
    """Start a job with enableWebAccess, and return its ID while it runs."""
    body = container_job(WAITS, name="waits")
    body["jobSpec"]["enableWebAccess"] = True
    job = submit(service, body)
    until_line(service.follow(job), "here")
    # A line may be visible before that.
    next(view for view in service.watch(job, 30) if view["state"] == "RUNNING")
    return job


@pytest.fixture(scope="module")
def waiting(service: Service) -> Iterator[str]:
    job = start_job(service)
    yield job
    service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    service.finish(job, 60)


def run(service: Service, *arguments: str, typed: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    words = ["-m", "trainshed", "jobs", *arguments, "--data", str(service.data)]
    return fork_server.services().run(words, environment(service.data), stdin=typed)


def link(service: Service, job: str) -> dict[str, str]:
    """Return the fragment of the link of a job's primary."""
    uri = service.call("GET", f"{CUSTOM_JOBS}/{job}")["webAccessUris"]["workerpool0-0"]
    assert uri.startswith(f"{service.rest}/shell/#")
    fragment: str = urlsplit(str(uri)).fragment
    return {key: values[0] for key, values in parse_qs(fragment).items()}


@contextlib.contextmanager
def open_shell(service: Service, token: str, **order: Any) -> Generator[ClientConnection]:
    """Open a shell like the page does, and wait for its title."""
    with connect(shell_url(service), origin=Origin(service.rest), open_timeout=60) as connection:
        connection.send(json.dumps({"token": token, "rows": 24, "columns": 80, **order}))
        assert json.loads(connection.recv(30))["title"] == "workerpool0-0, waits"
        yield connection


def shell_url(service: Service) -> str:
    return f"ws{service.rest.removeprefix('http')}/shell/connect"


def test_shell_reads_input_from_a_pipe_and_returns_its_exit_status(service: Service, waiting: str) -> None:
    """spec/operations#shells: `echo ls | trainshed jobs shell JOB`."""
    done = run(service, "shell", waiting, typed=b"echo $CLOUD_ML_JOB_ID; ls /gcs; exit 7\n")
    assert done.returncode == 7, done.stderr
    assert waiting.encode() in done.stdout


def test_terminal_supports_size_and_keys(service: Service, waiting: str) -> None:
    handle, terminal = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command("jobs", "shell", waiting, "--data", str(service.data))],
        env={**os.environ, **environment(service.data), "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen = b""

    def until(wanted: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 30
        while not re.search(wanted, seen):
            assert select.select([handle], [], [], deadline - time.monotonic())[0], seen
            seen += os.read(handle, 4096)
        seen = b""

    until(rb"workerpool0-0[^\n]*work")
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", 41, 119, 0, 0))
    process.send_signal(signal.SIGWINCH)
    # The size arrives separately from the keys: retry. The shell may redraw its line just before.
    os.write(handle, b"until stty size | grep '41 119'; do :; done\r")
    until(rb"41 119\r")
    # The program to interrupt reports that it has the terminal: between two programs an interrupt may reach
    # neither.
    os.write(handle, b"sh -c 'echo here; exec sleep 300'\r")
    until(rb"[\r\n]here\r")
    os.write(handle, b"\x03")
    until(rb"workerpool0-0[^\n]*work")
    os.write(handle, b"echo went on; exit 9\r")
    until(rb"[\r\n]went on\r")
    with contextlib.suppress(OSError):  # The end of a terminal.
        while os.read(handle, 4096):
            pass
    assert process.wait(30) == 9


def test_killed_service_ends_its_shells_but_not_the_job(data: Path) -> None:
    """The link is the same after the restart. The WebSocket library is loaded for the first shell, not
    before.
    """
    service = start(data)
    try:
        job = start_job(service)
        ticket_request = link(service, job)
        maps = Path(f"/proc/{service.pid}/maps")
        if maps.exists():
            assert "/websockets/" not in maps.read_text()
        token = service.call("POST", "/shell/ticket", ticket_request)["token"]
        with open_shell(service, token, terminal=False) as connection:
            connection.send(b"echo $$ > shell.pid; echo noted\n")
            assert connection.recv(30) == b"noted\n"
            typed = subprocess.Popen(
                command("jobs", "shell", job, "-c", "echo in; sleep 600", "--data", str(data)),
                env=environment(data),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            assert typed.stdout is not None and typed.stdout.readline() == b"in\n"
            service.kill()
        assert typed.communicate(timeout=30)[1] == b"The connection broke off.\n"
        assert typed.returncode == 255
        service = start(data)
        assert link(service, job) == ticket_request
        wait = "while kill -0 $(cat shell.pid) 2>/dev/null; do sleep 0.05; done; echo gone"
        done = run(service, "shell", job, "-c", wait)
        assert done.stdout == b"gone\n", done.stderr
    finally:
        down(data)


@needs_view
def test_shell_opens_in_the_files_of_a_failed_job(service: Service, tmp_path: Path) -> None:
    """spec/operations#shells: autopsy: the files, the same shell, a copy. The job's description
    mentions it.
    """
    body = container_job(FAILS, name="fails")
    container = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]
    container["env"] = [
        {"name": "SERVICE_PASSWORD", "value": "not-for-eyes"},
        {"name": "EPOCHS", "value": "3"},
    ]
    job = submit(service, body)
    assert service.finish(job, 120)["state"] == "FAILED"
    service.wait_for_autopsy(job)
    described = run(service, "describe", job)
    assert f"trainshed jobs autopsy {job} workerpool0-0".encode() in described.stdout
    look = "cat notes.txt; echo; echo $EPOCHS $SERVICE_PASSWORD"
    same = "python3 -c 'import sys; print(sys.prefix)'; env | grep -c STORAGE_EMULATOR; exit 6"
    done = run(service, "autopsy", job, "-c", f"{look}; {same}")
    assert done.returncode == 6, done.stderr
    prefix = service.lines(job)[-1]
    assert done.stdout.decode().splitlines() == ["loss is nan", "3 (redacted)", prefix, "1"]
    for status in (0, 1):
        copied = run(service, "autopsy", job, "--copy", str(tmp_path / "copy"))
        assert copied.returncode == status, copied.stderr
    assert b"Pass a new directory to --copy" in copied.stderr
    assert (tmp_path / "copy" / "notes.txt").read_text() == "loss is nan"
