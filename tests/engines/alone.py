"""Runs a command like `unshare --pid --fork --kill-child --mount --mount-proc`, so that all its processes end
with the first. A Python module runs in a fork of this fork server and is not loaded again.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from trainshed.replica.system import kernel


def main(argv: list[str]) -> None:
    os.setsid()
    if place := os.environ.pop("TRAINSHED_LAB_PID", None):
        # The process records its ID: its starter may be killed before it can.
        Path(f"{place}.new").write_text(str(os.getpid()))
        Path(f"{place}.new").rename(place)
    kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWNS)
    if child := os.fork():
        os._exit(0 if os.waitpid(child, 0)[1] == 0 else 1)
    kernel.die_with_parent(signal.SIGKILL)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc")
    if argv[:2] != [sys.executable, "-m"]:
        os.execvp(argv[0], argv)
    sys.argv = argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
