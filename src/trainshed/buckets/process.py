"""The bucket process: serves a store on unix sockets and, if wanted, a TCP port.

Started by fork from a single-threaded parent, or as ``python -m trainshed.buckets.process``. It
ends on SIGTERM after the requests in progress, and is killed when its parent dies; killed outright it
leaves a consistent tree.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import time
from pathlib import Path
from threading import Thread
from types import FrameType

import uvicorn

from trainshed.access.job_tokens import KEY_FILE, JobTokens
from trainshed.buckets.authentication import Authenticator, Listener, Liveness, TokenFile, protocol
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.metadata import Metadata
from trainshed.buckets.rest.access_log import AccessLog
from trainshed.buckets.rest.app import BucketsApp
from trainshed.buckets.setup import BucketSetup
from trainshed.buckets.stores import open_buckets
from trainshed.eventloop.background import joined
from trainshed.httpd import limits
from trainshed.httpd.protocol import ConnectionGroups
from trainshed.httpd.secure import Certificate, SecureServer, TlsListener
from trainshed.httpd.server import server_config
from trainshed.replica.system import kernel
from trainshed.replica.system.listening import listen_tcp, listen_unix

_GRACE_S = 5
_TAKE_OVER_S = 20
_POLL_S = 0.1
_ORPHAN_CHECK_S = 0.25
ACCESS_LOG = "access.log"


def serve(setup: BucketSetup, ready_fd: int | None = None, *, parent: int | None = None) -> None:
    """Serve the buckets of a setup until SIGTERM or the parent's death; blocks.

    When all of it listens, ``{"port": N, "tls_port": N}`` (null for a port that there is not) and a line feed
    are written to ``ready_fd``, which is then closed. ``parent`` is the process to die with: a parent that is
    killed before we first look would otherwise never be missed. The access log is
    ``<root>.state/access.log``. Raises OSError if an address cannot be bound, TimeoutError if another process
    keeps the store.
    """
    parent = os.getppid() if parent is None else parent
    limits.raise_open_files()
    root = Path(setup.root)
    lock = _take_store(root)
    store = open_buckets(root, rules=setup.rules)
    store.clean()
    tokens = Path(setup.tokens)
    jobs = JobTokens.open(tokens.with_name(KEY_FILE), time.time_ns)
    authenticator = Authenticator(
        TokenFile(tokens, jobs, time.time_ns).read, anonymous=setup.anonymous
    )
    access_log = AccessLog(state_directory(root) / ACCESS_LOG)
    app = BucketsApp(
        store,
        access_log,
        authenticator,
        hosts=setup.hosts,
        metadata=Metadata.of(jobs),
        liveness=_liveness(setup),
    )
    kinds: dict[object, Listener] = {}
    groups = ConnectionGroups(limits.of_this_process())
    config = server_config(app, protocol(kinds, groups), grace=_GRACE_S)
    secure = _secure_listener(setup)
    certificate = Certificate(Path(setup.certificate), Path(setup.key))
    tls = [TlsListener(secure, certificate)] if secure else list[TlsListener]()
    plain = listen_tcp(setup.host, setup.port) if setup.host else None
    if plain is not None and setup.tls:
        tls.append(TlsListener(plain, certificate, plain=True))
    server = SecureServer(config, tls, groups)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # Before anybody can know of us: a signal that comes while the server starts must count. The
    # server also raises it once more when it has stopped, and then finds this handler instead of
    # the default action, so that the process ends with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    listeners: list[socket.socket] = []
    paths = ((setup.gateway, Listener.GATEWAY), (setup.replicas, Listener.REPLICA))
    for path, kind in paths:
        if path:
            listeners.append(listen_unix(Path(path)))
            kinds[listeners[-1].getsockname()] = kind
    bound: int | None = plain.getsockname()[1] if plain else None
    if plain is not None and not setup.tls:
        listeners.append(plain)
    Thread(target=store.complete_records, name="records", daemon=True).start()
    if ready_fd is not None:
        ports = {"port": bound, "tls_port": secure.getsockname()[1] if secure else None}
        os.write(ready_fd, json.dumps(ports).encode() + b"\n")
        os.close(ready_fd)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_run(server, listeners, parent))
    for path, _ in paths:
        if path:
            Path(path).unlink(missing_ok=True)
    os.close(lock)


def _liveness(setup: BucketSetup) -> Liveness | None:
    """None where everybody is let in: a program that is over would come as nobody in particular."""
    return Liveness(Path(setup.service)) if setup.service and not setup.anonymous else None


def _secure_listener(setup: BucketSetup) -> socket.socket | None:
    """Another one, if somebody took the port: nobody asks for it by number."""
    if not (setup.host and setup.certificate):
        return None
    try:
        return listen_tcp(setup.host, setup.tls_port)
    except OSError:
        return listen_tcp(setup.host, 0)


async def _run(server: uvicorn.Server, listeners: list[socket.socket], parent: int) -> None:
    watch = joined(_watch_parent(server, parent))
    try:
        await server.serve(listeners)
    finally:
        watch.cancel()


async def _watch_parent(server: uvicorn.Server, parent: int) -> None:
    """Stop when the parent is gone, where the kernel does not see to that (macOS, a parent that was not
    named)."""
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
    """Command line: ``--setup JSON [--ready-fd N] [--parent PID]``."""
    import argparse  # Only here: a process that was forked is told its setup otherwise.

    parser = argparse.ArgumentParser(prog="trainshed-buckets", description=__doc__)
    parser.add_argument("--setup", type=BucketSetup.decode, required=True)
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--parent", type=int)
    given = parser.parse_args()
    if given.parent is not None:
        kernel.help_parent(given.parent)
    serve(given.setup, given.ready_fd, parent=given.parent)


if __name__ == "__main__":
    main()
