"""What the peers run, and the few things that each of their clusters needs. Nothing here knows a peer."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 60.0
"""Seconds that a peer may take to come up, or to say something, before the run is given up."""


class Unavailable(Exception):
    """A peer cannot be measured here: why, and what would help."""


def dying(stamp: Path) -> str:
    """A program that writes the time (ns since the epoch) to `stamp` and kills itself.

    To a file, not to its output: Slurm drops what a killed program wrote last.
    """
    return (
        "import os, pathlib, signal, time; "
        f"pathlib.Path({str(stamp)!r}).write_text(str(time.time_ns())); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )


def say(message: str) -> None:
    print(f"NOTE: {message}", file=sys.stderr)


def install(packages: tuple[str, ...]) -> None:
    """Install Debian packages. Raises Unavailable where this user or machine cannot."""
    if os.geteuid() or shutil.which("apt-get") is None:
        raise Unavailable(
            f"it needs the Debian packages {', '.join(packages)}, and they can only be installed as root "
            "on Debian."
        )
    say(f"installing {', '.join(packages)} ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
    for last, steps in ((False, [command]), (True, [["apt-get", "update"], command])):
        done = [
            subprocess.run(
                step,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=600,
                check=False,
            )
            for step in steps
        ]
        if not done[-1].returncode:
            return
        if last:
            tail = done[-1].stdout.decode(errors="replace").splitlines()[-3:]
            raise Unavailable("apt-get could not install it: " + " ".join(tail))


def until(what: str, ready: Callable[[], bool], pause: float = 0.05) -> None:
    """Wait for something that gives no signal. Raises TimeoutError, naming `what`, after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {PATIENCE:.0f} s")
        time.sleep(pause)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process that we started to end; kill it if it does not within ten seconds."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
