"""Output of a hostile job on the operator's terminal (escape sequence injection): every command, on a
terminal and piped (docs/security.md).
"""

import contextlib
import json
import os
import pty
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import fork_server
from tests.e2e.running import PROJECT, REGION, Service, container_job, environment, running, submit
from tests.e2e.tuning_programs import study_spec

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[H\x9b2J\x9d0;x\x9c\u202etxt\u2066\x1bP1$r\x1b\\\x1b[31m"
PASSING = re.compile(
    r"\x1b\[[0-9;]*m"  # colors
    r"|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]"  # characters of the live tables
)
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PROGRAM = f"""
import os, sys
hostile = {HOSTILE!r}
print("line " + hostile, flush=True)
print("\\x1b[32mgreen stays on", flush=True)
print(" 1%\\r 2%\\r 3%", flush=True)
print('{{"message": "json ' + "\\\\u001b]0;x\\\\u0007" + '", "severity": "WARNING"}}', flush=True)
os.makedirs("kept", exist_ok=True)
open("kept/" + hostile.replace("/", ""), "w").close()
raise RuntimeError("failed " + hostile)
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A service with a finished hostile job, and its ID."""
    with running(tmp_path_factory.mktemp("hostile")) as service:
        job = submit(service, container_job(PROGRAM, name="name " + HOSTILE))
        service.finish(job)
        where = f"/v1/projects/{PROJECT}/locations/{REGION}/studies"
        study = {"displayName": "study " + HOSTILE, "studySpec": study_spec()}
        service.call("POST", where, study)
        yield service, job


def output_of(data: Path, words: list[str], directory: Path | None = None) -> str:
    variables = environment(data) | {"GCLOUD_PROJECT": PROJECT, "GOOGLE_CLOUD_REGION": REGION}
    done = fork_server.services().run(["-m", "trainshed", *words], variables, cwd=directory)
    return (done.stdout + done.stderr).decode()


def on_a_terminal(data: Path, words: list[str], directory: Path | None = None) -> str:
    """Return the output on a terminal as text."""
    ours, theirs = pty.openpty()
    surroundings = environment(data) | {"GCLOUD_PROJECT": PROJECT, "TERM": "xterm-256color"}
    process = fork_server.services().fork(
        ["-m", "trainshed", *words], surroundings, stdin=theirs, stdout=theirs, stderr=theirs, cwd=directory
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # Linux reports this way that no writer remains.
        while more := os.read(ours, 1 << 16):
            seen += more
    process.wait(60)
    os.close(ours)
    return seen.decode()


COMMANDS = (
    "jobs list",
    "jobs list --format json",
    "jobs describe JOB",
    "jobs describe JOB --format json",
    "jobs timeline JOB",
    "jobs timeline JOB --format json",
    "jobs logs JOB",
    "jobs logs JOB --follow",
    "jobs logs JOB --format json",
    "jobs watch JOB",
    "jobs watch JOB --format json",
    "describe usage JOB",
    "describe curves JOB",
    "drill JOB",
    "jobs cancel JOB",
    "jobs shell JOB",
    "jobs describe NAME",
    "studies list",
    "studies describe STUDY",
    "nodes list",
    "quotas list",
    "secrets list",
    "drill JOB --at-line NAME",
    "doctor",
)

DRAWN = {
    "jobs list",
    "jobs describe JOB",
    "jobs timeline JOB",
    "jobs logs JOB",
    "jobs logs JOB --follow",
    "jobs watch JOB",
}
"""Commands with colors or redrawing on a terminal."""


@pytest.mark.parametrize(
    ("show", "line"),
    [(output_of, line) for line in COMMANDS]
    # JSON, errors, and tables without hostile contents are the same on a terminal.
    + [
        pytest.param(on_a_terminal, line, marks=[] if line in DRAWN else [pytest.mark.soak])
        for line in COMMANDS
    ],
)
def test_only_text_and_colors_of_hostile_output_reach_the_terminal(
    hostile: tuple[Service, str], line: str, show: Any
) -> None:
    service, job = hostile
    names = {"JOB": job, "NAME": "name", "STUDY": "study"}
    words = [names.get(word, word) for word in line.split()]
    data = Path(service.extra["data"])
    if words[0] in ("studies", "quotas", "secrets"):
        words += ["--project", PROJECT]
    if words[0] == "studies":
        words += ["--region", REGION]
    seen = show(data, words)
    assert seen.strip()
    assert "src/trainshed/" not in seen  # No traceback of Trainshed.
    left = PASSING.sub("", seen.replace("\r\n", "\n"))
    if line == "jobs watch JOB" and show is on_a_terminal:
        left = left.replace("\r", "")  # The table is redrawn.
    assert not CONTROL.search(left), re.findall(r".{20}" + CONTROL.pattern, left)[:3]
    assert "\r" not in left
    if "--format json" in line:
        for text in seen.replace("\r\n", "\n").splitlines() if "logs" in line else [seen]:
            if text.strip() and "watch" not in line:
                json.loads(text)


def test_colors_of_a_log_line_end_at_the_end_of_the_line(hostile: tuple[Service, str]) -> None:
    service, job = hostile
    seen = on_a_terminal(Path(service.extra["data"]), ["jobs", "logs", job])
    # The second time in the job's error, which follows its log.
    green, again = (line for line in seen.splitlines() if "green stays on" in line)
    assert again.startswith("\\x1b[32m")
    assert "\x1b[32mgreen stays on" in green
    assert green.rstrip("\r").endswith("\x1b[0m")
    assert "\\x1b]0;owned\\x07" in seen
    assert "\\u202etxt" in seen
