"""The bucket process: serves a store on a unix socket and, if wanted, a TCP port.

Started by fork from a single-threaded parent, or as ``python -m trainshed.buckets.process``. It
ends on SIGTERM after the requests in progress, and when its parent dies; killed outright it leaves
a consistent tree.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import socket
import time
from pathlib import Path
from types import FrameType

import uvicorn

from trainshed.buckets.access_log import AccessLog
from trainshed.buckets.catalog import state_directory
from trainshed.buckets.http import BucketsApp
from trainshed.buckets.objects import ObjectStore
from trainshed.buckets.sockets import listen_tcp, listen_unix

_GRACE_S = 5
_KEEP_ALIVE_S = 75
_TAKE_OVER_S = 20
_POLL_S = 0.1
_ORPHAN_CHECK_S = 0.25
ACCESS_LOG = "access.log"


def serve(
    root: Path,
    uds: Path,
    host: str | None = None,
    port: int | None = None,
    ready_fd: int | None = None,
    *,
    parent: int | None = None,
    auto_create: bool = False,
) -> None:
    """Serve the store below ``root`` until SIGTERM or the parent's death; blocks.

    ``uds`` is where the gateway finds us; ``host`` and ``port`` open a direct door as well. When
    both listen, ``{"port": N}`` (null without the direct door) and a line feed are written to
    ``ready_fd``, which is then closed. ``parent`` is the process to die with: a parent that is
    killed before we first look would otherwise never be missed. The access log is ``<root>.state/access.log``.
    Raises OSError if an address cannot be bound, TimeoutError if another process keeps the store.
    """
    parent = os.getppid() if parent is None else parent
    lock = _take_store(root)
    store = ObjectStore(root, auto_create=auto_create)
    store.clean()
    app = BucketsApp(store, AccessLog(state_directory(root) / ACCESS_LOG))
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = uvicorn.Server(config)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # Before anybody can know of us: a signal that comes while the server starts must count. The
    # server also raises it once more when it has stopped, and then finds this handler instead of
    # the default action, so that the process ends with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    listeners = [listen_unix(uds)]
    bound: int | None = None
    if host is not None:
        listeners.append(listen_tcp(host, port or 0))
        bound = listeners[-1].getsockname()[1]
    if ready_fd is not None:
        os.write(ready_fd, json.dumps({"port": bound}).encode() + b"\n")
        os.close(ready_fd)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_run(server, listeners, parent))
    uds.unlink(missing_ok=True)
    os.close(lock)


async def _run(server: uvicorn.Server, listeners: list[socket.socket], parent: int) -> None:
    watch = asyncio.create_task(_watch_parent(server, parent))
    try:
        await server.serve(listeners)
    finally:
        watch.cancel()


async def _watch_parent(server: uvicorn.Server, parent: int) -> None:
    """Stop when the parent is gone. By its id, since the kernel's own signal for this comes when
    the thread ends that forked us, not the process."""
    while os.getppid() == parent:  # noqa: ASYNC110 nothing but the id tells of it
        await asyncio.sleep(_ORPHAN_CHECK_S)
    server.should_exit = True


def _take_store(root: Path) -> int:
    """Lock the store for this process; the returned descriptor holds the lock until we end.

    Waits for a predecessor that is still finishing its requests: two processes would tidy away
    each other's unfinished uploads. Raises TimeoutError if it does not end.
    """
    path = state_directory(root) / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _TAKE_OVER_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(fd)
                raise TimeoutError(
                    f"The bucket store {root} is served by another process, which does not end. "
                    "Stop that service first, or give this one a directory of its own."
                ) from error
            time.sleep(_POLL_S)
        else:
            return fd


def main() -> None:
    """Command line: ``--root DIR --uds PATH [--host H --port N] [--ready-fd N] [--parent PID] [--auto-create]``."""
    parser = argparse.ArgumentParser(prog="trainshed-buckets", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--uds", type=Path, required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--parent", type=int)
    parser.add_argument("--auto-create", action="store_true")
    given = parser.parse_args()
    serve(
        given.root,
        given.uds,
        given.host,
        given.port,
        given.ready_fd,
        parent=given.parent,
        auto_create=given.auto_create,
    )


if __name__ == "__main__":
    main()
