"""Ray on this machine: one head that uses only a loopback interface, with all files in a temporary directory.

Ray listens on every address that it finds, so it runs in a network namespace that has only a loopback
interface. It also runs in a process namespace, so that all its processes end together. Its environment is
built once, in build/peers/ray.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from math import isnan, nan
from pathlib import Path
from typing import Any

from tests.e2e.running import ROOT

from bench import measures
from bench.measures import Row, median
from bench.peers import programs
from bench.peers.programs import Unavailable

REQUIREMENT = "ray[default]==2.60.0"
VERSION = REQUIREMENT.rpartition("=")[2]
ENVIRONMENT = ROOT / "build" / "peers" / "ray"
DRIVER = Path(__file__).with_name("ray_driver.py")
WARM_UP_ROUNDS = 3
"""Warm-up restarts. They do not count, because they use the workers that Ray starts in advance."""


class Head:
    """A running head, controlled through the pipes of its driver."""

    def __init__(self, driver: subprocess.Popen[bytes], log: Path) -> None:
        self._driver = driver
        self._log = log

    def answer(self) -> dict[str, Any]:
        assert self._driver.stdout is not None
        ready, _, _ = select.select([self._driver.stdout], [], [], 3 * programs.PEER_TIMEOUT)
        if ready and (line := self._driver.stdout.readline()):
            return json.loads(line)
        raise Unavailable(f"its driver does not answer; its log ends: {self._log.read_text()[-500:]}")

    def ask(self, command: str) -> dict[str, Any]:
        assert self._driver.stdin is not None
        # A driver that has exited returns nothing, which is reported below.
        with contextlib.suppress(BrokenPipeError):
            self._driver.stdin.write(f"{command}\n".encode())
            self._driver.stdin.flush()
        return self.answer()


def measure(rounds: int, jobs: int) -> list[Row]:
    """Return the rows of Ray. If Ray cannot run, print a note to stderr and return no rows.

    `jobs`: the number of jobs in Trainshed's row. Ray's own jobs take a second or more each, so only a tenth
    of this number is measured.
    """
    try:
        python = environment()
        with head(python, jobs=False) as ray:
            rows = [restart(ray, rounds), tasks(ray, jobs)]
        with head(python, jobs=True) as ray:
            return [*rows, ray_jobs(ray, max(6, jobs // 10))]
    except Unavailable as reason:
        programs.say(f"the rows of Ray are SKIPPED: {reason}")
        return []


def restart(ray: Head, rounds: int) -> Row:
    """Return the times from the exit of an actor's process to the first statement of the actor's next
    incarnation.

    Only restarts in a new process count. A head's first restart, and a few others, use a waiting worker.
    """

    def again() -> float:
        answer = ray.ask("restart")
        return nan if answer["reused"] else answer["ms"]

    for _ in range(WARM_UP_ROUNDS):
        again()
    bare, ours = measures.measure_interleaved(rounds, measures.bare_first_line, again)
    fresh = [value for value in ours if not isnan(value)]
    if not fresh:
        raise Unavailable("every restart reused an existing worker.")
    what = f"killed actor → first statement of its next incarnation, p50 of {len(fresh)}"
    return measures.medians(f"Ray {VERSION}: {what}", fresh, bare)


def tasks(ray: Head, count: int) -> Row:
    ray.ask(f"tasks {count // 4}")
    return rate(ray, f"tasks that start an interpreter, per second ({count})", f"tasks {count}")


def ray_jobs(ray: Head, count: int) -> Row:
    ray.ask("jobs 1")
    return rate(ray, f"jobs end to end per second ({count})", f"jobs {count}", repeats=1)


def rate(ray: Head, name: str, command: str, repeats: int = 3) -> Row:
    bare, ours = measures.measure_interleaved(
        repeats, lambda: measures.bare_per_second(40), lambda: ray.ask(command)["rate"]
    )
    return Row(
        f"Ray {VERSION}: {name}",
        f"{median(ours):.1f}/s",
        f"{median(bare):.1f}/s",
        median(ours) / median(bare),
    )


def environment() -> Path:
    """Return the interpreter of an environment with Ray. Raises Unavailable if it cannot be built."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / "installed"
    if stamp.exists() and stamp.read_text() == REQUIREMENT:
        return python
    programs.say(f"installing {REQUIREMENT} ...")
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(ENVIRONMENT)],
        [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python), REQUIREMENT],
    ):
        try:
            subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        except subprocess.CalledProcessError as failure:
            raise Unavailable(f"it could not be installed: {failure.stderr[-500:]}") from failure
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise Unavailable(f"it could not be installed: {failure}") from failure
    stamp.write_text(REQUIREMENT)
    return python


@contextlib.contextmanager
def head(python: Path, *, jobs: bool) -> Generator[Head]:
    """Start a head with as many CPUs as the machine has. `jobs`: start Ray's dashboard, which Ray's own jobs
    require."""
    if shutil.which("unshare") is None:
        raise Unavailable("it needs `unshare` to run on its own loopback.")
    with tempfile.TemporaryDirectory(prefix="ray-") as name:
        directory = Path(name)
        log = directory / "driver.log"
        with log.open("wb") as errors:
            driver = subprocess.Popen(
                [*namespaces(), "sh", "-c", '"$@"; exit $?', "sh",
                 str(python), "-P", str(DRIVER), name, sys.executable, "jobs" if jobs else "tasks"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=directory,
                env=variables(directory),
            )  # fmt: skip
        try:
            ray = Head(driver, log)
            ray.answer()
            yield ray
        finally:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                driver.communicate(timeout=programs.PEER_TIMEOUT)
            programs.end(driver)


def namespaces() -> list[str]:
    """Return the command that runs a shell in new namespaces. The shell is their first process and collects
    orphaned processes. All processes end with the shell."""
    own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *own, "--net", "--pid", "--mount-proc", "--fork", "--kill-child", "--"]


def variables(directory: Path) -> dict[str, str]:
    """Return an environment in which Ray sends no reports and leaves no files in the user's home."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, "HOME": str(directory), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
