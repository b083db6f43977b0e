"""One run of the installer as a process: overseen by a shell, or kept apart by a keeper; both end with this process."""

import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trainshed.runtimes.confinement import Confinement, Verdict
from trainshed.runtimes.stopping import OVERSEEN, end_by, kill

_LATE = 10.0
"""Seconds beyond its limit that a keeper may take to end everything."""


@dataclass(frozen=True, slots=True)
class Execution:
    """`output`: a handle of all that it says. `line`: one that can be read as soon as nobody is to say more, -1 = there is
    none. `end`: ends it, without waiting. `verdict`: of its keeper, to be asked once, when it is over. `seconds`: when it is
    killed, whatever else should have ended it; None = its caller says."""

    process: subprocess.Popen[bytes]
    output: int
    line: int
    end: Callable[[], None]
    verdict: Callable[[], Verdict]
    seconds: float | None


@contextmanager
def begun(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path, apart: Confinement | None
) -> Generator[Execution]:
    """Begin it; waited for at the end of the block. Raises OSError."""
    if apart is None:
        overseen = ["/bin/sh", "-c", OVERSEEN, "install", *command]
        # Its other end is ours alone: it closes when this process ends, however it ends.
        with _popen(overseen, environ, cwd, stdin=subprocess.PIPE) as process:
            assert process.stdout is not None
            output = process.stdout.fileno()
            yield Execution(process, output, -1, lambda: kill(process), Verdict, None)
        return
    ours, theirs = socket.socketpair()
    inner = apart.environ(dict(environ), offline="--offline" in command)
    handle = theirs.fileno()
    with (
        ours,
        _popen(
            apart.command(command, handle), inner, cwd, stdin=subprocess.DEVNULL, passed=handle
        ) as process,
    ):
        theirs.close()
        assert process.stdout is not None
        left = max(0.0, apart.until - time.monotonic()) + _LATE if apart.until else None
        yield Execution(
            process,
            process.stdout.fileno(),
            ours.fileno(),
            lambda: end_by(ours, process),
            lambda: _verdict(ours),
            left,
        )


def _popen(
    command: list[str], environ: Mapping[str, str], cwd: Path, *, stdin: int, passed: int = -1
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        cwd=cwd,
        pass_fds=(passed,) if passed >= 0 else (),
        # A group of its own: setup scripts start programs, and all of them must be stoppable.
        start_new_session=True,
    )


def _verdict(line: socket.socket) -> Verdict:
    """What a keeper that is over has said."""
    line.setblocking(False)
    data = b""
    try:
        while chunk := line.recv(4096):
            data += chunk
    except OSError:
        return Verdict()  # It was killed, and somebody else holds its end.
    try:
        return msgspec.json.decode(data, type=Verdict) if data else Verdict()
    except msgspec.DecodeError:
        return Verdict()
