"""Runs the bucket process: it serves a store on Unix sockets and, if wanted, a TCP port.

Whoever holds the listening sockets starts it (`python -m trainshed.buckets`) when somebody connects. It
ends on SIGTERM after the requests in progress, and is killed when its parent dies; killed at any moment it
leaves a consistent tree.
"""

import asyncio
import os
import signal
import socket
import time
from pathlib import Path
from types import FrameType

from trainshed.access.job_tokens import KEY_FILE, JobTokens
from trainshed.buckets.authentication import Authenticator, Listener, Liveness, TokenFile, protocol
from trainshed.buckets.disk.catalog import state_directory
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.listeners import Listeners
from trainshed.buckets.metadata import Metadata
from trainshed.buckets.notices import Notices
from trainshed.buckets.rest.app import BucketsApp
from trainshed.buckets.setup import BucketSetup
from trainshed.eventloop.background import joined
from trainshed.eventloop.memory import settle
from trainshed.httpd import connections
from trainshed.httpd.protocol import ConnectionGroups, server_config
from trainshed.httpd.secure import Certificate, SecureServer, TlsListener
from trainshed.replica.system import durable
from trainshed.replica.system.listening import raise_open_files

_GRACE_S = 5
_TAKE_OVER_S = 20
_POLL_S = 0.1
_ORPHAN_CHECK_S = 0.25


def serve(setup: BucketSetup, listeners: Listeners, parent: int) -> None:
    """Serve the buckets of a setup until SIGTERM or the parent's death; blocks.

    `parent` is the process to die with: naming it catches a parent that was killed before this process
    looked. Raises TimeoutError if another process keeps the store.
    """
    raise_open_files()
    root = Path(setup.root)
    lock = _take_store(root)
    store = ObjectStore(root, rules=setup.rules)
    store.clean()
    tokens = Path(setup.tokens)
    jobs = JobTokens.open(tokens.with_name(KEY_FILE), time.time_ns)
    liveness = Liveness(Path(setup.service)) if setup.service else None
    known = TokenFile(tokens, jobs, time.time_ns, setup.hosts, liveness)
    authenticator = Authenticator(known.read, known.authenticate)
    notices = Notices()
    metadata = Metadata(jobs, authenticator.check, notices)
    app = BucketsApp(store, authenticator, hosts=setup.hosts, metadata=metadata)
    kinds: dict[object, Listener] = {}
    groups = ConnectionGroups(connections.of_this_process())
    config = server_config(app, protocol(kinds, groups, notices), grace=_GRACE_S)
    sockets = listeners.sockets()
    tls: list[TlsListener] = []
    if "secure" in sockets and setup.certificate is not None and setup.key is not None:
        certificate = Certificate(Path(setup.certificate), Path(setup.key))
        tls.append(TlsListener(sockets["secure"], certificate))
        if setup.tls:
            tls.append(TlsListener(sockets["plain"], certificate, plain=True))
    server = SecureServer(config, tls, groups, notices.close)

    def stop(number: int, frame: FrameType | None) -> None:
        server.should_exit = True

    # Installed before anybody can connect: a signal that comes while the server starts must count. The server
    # also raises the signal once more when it has stopped, and then finds this handler instead of the default
    # action, so that the process ends with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for name, kind in (("gateway", Listener.GATEWAY), ("replicas", Listener.REPLICA)):
        if name in sockets:
            kinds[sockets[name].getsockname()] = kind
    spoken = {listener.socket for listener in tls}
    taken = [listener for listener in sockets.values() if listener not in spoken]
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_run(server, taken, parent))
    listeners.close()
    os.close(lock)


async def _run(server: SecureServer, listeners: list[socket.socket], parent: int) -> None:
    settle()
    watching = joined(_watch_parent(server, parent))
    try:
        await server.serve(listeners)
    finally:
        watching.cancel()


async def _watch_parent(server: SecureServer, parent: int) -> None:
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
    while not durable.try_lock(fd):
        if time.monotonic() > deadline:
            os.close(fd)
            raise TimeoutError(
                f"The bucket store {root} is served by another process, which does not end. "
                "Stop that service first, or give this one a directory of its own."
            )
        time.sleep(_POLL_S)
    return fd


def main(parent: int, setup: str, listeners: str) -> None:
    """As `serve`, with the texts that `BucketSetup.encode` and `listeners.encode` returned."""
    serve(BucketSetup.decode(setup), Listeners.inherited(listeners), parent)
