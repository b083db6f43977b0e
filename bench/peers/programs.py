"""The programs that the other systems run, and helpers for their clusters. This module does not depend on any
of the systems."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PEER_TIMEOUT = 60.0
"""Seconds after which a system that does not start or respond is skipped."""


class Unavailable(Exception):
    """A system cannot be measured on this machine. The message contains the reason and a remedy."""


def dying(stamp: Path) -> str:
    """Return a program that writes the time (ns since the epoch) to the file `stamp`, and then kills itself.
    It writes to a file because Slurm drops the last output of a killed program."""
    return (
        "import os, pathlib, signal, time; "
        f"pathlib.Path({str(stamp)!r}).write_text(str(time.time_ns())); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )


def say(message: str) -> None:
    print(f"NOTE: {message}", file=sys.stderr)


def install(packages: tuple[str, ...]) -> None:
    """Install Debian packages. Raises Unavailable if this user or this machine cannot install them."""
    if os.geteuid() or shutil.which("apt-get") is None:
        raise Unavailable(
            f"it requires the Debian packages {', '.join(packages)}, and they can only be installed as root "
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
    """Poll for a condition that has no notification. Raises TimeoutError with `what` after PEER_TIMEOUT."""
    deadline = time.monotonic() + PEER_TIMEOUT
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {PEER_TIMEOUT:.0f} s")
        time.sleep(pause)


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a child process. Kill it if it does not exit within ten seconds."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
