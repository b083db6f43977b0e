"""The first process of a machine of the lab. It sets up the machine's view of the files, then reaps
processes, and ends with the lab.

`nodes.Machines` runs it as process 1 of new namespaces. Its standard input is a pipe of the lab's process.
When the pipe is closed, the machine ends with all its processes.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

_BIND, _REC, _PRIVATE, _NODEV_NOSUID_NOEXEC = 4096, 16384, 1 << 18, 14
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result: int = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, flags, options.encode() or None
    )
    if result:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def reap(*_: object) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    view = json.loads(sys.argv[1])
    mount("none", "/", flags=_REC | _PRIVATE)
    mount("proc", "/proc", "proc", _NODEV_NOSUID_NOEXEC)
    socket.sethostname(view["hostname"])
    # The path of a directory may soon be hidden by a mount. Its file descriptor still reaches it.
    opened = [(os.open(path, os.O_PATH), path) for path in view["shown"]]
    for source, target in view["binds"]:
        mount(source, target, flags=_BIND)
    for target in view["empty"]:
        mount("tmpfs", target, "tmpfs", options="mode=755")
    for number, path in opened:
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{number}", path, flags=_BIND | _REC)
        os.close(number)
    signal.signal(signal.SIGCHLD, reap)
    print("up", flush=True)
    os.read(0, 1)


if __name__ == "__main__":
    main()
