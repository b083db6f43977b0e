"""The bucket process: serves a store on Unix sockets and optionally on a TCP port.

The process that holds the listening sockets starts the bucket process (`python -m trainshed.buckets`) on the
first connection. After SIGTERM, the bucket process finishes running requests and exits. The kernel kills it
when its parent dies. The directory tree is consistent at any time.
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
from trainshed.eventloop.memory import tune_memory
from trainshed.httpd import connections
from trainshed.httpd.protocol import ConnectionGroups, server_config
from trainshed.httpd.secure import Certificate, SecureServer, TlsListener
from trainshed.replica.system import durable
from trainshed.replica.system.listening import raise_open_files

_GRACE_SECONDS = 5
_LOCK_TIMEOUT = 20
_LOCK_POLL_INTERVAL = 0.1
_ORPHAN_CHECK_INTERVAL = 0.25


def serve(setup: BucketSetup, listeners: Listeners, parent: int) -> None:
    """Serve the buckets of a setup until SIGTERM or the death of the parent. Blocking. `parent`: the parent's
    process ID, so that its death before the first check is detected. Raises TimeoutError if another process
    uses the store."""
    raise_open_files()
    root = Path(setup.root)
    lock = _lock_store(root)
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
    groups = ConnectionGroups(connections.limits_of_process())
    config = server_config(app, protocol(kinds, groups, notices), grace=_GRACE_SECONDS)
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

    # Install the handler before the first connection, so that a signal during startup has an effect. After
    # the server has stopped, it raises the received signal again. This handler then replaces the default
    # action, and the process exits with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for name, kind in (("gateway", Listener.GATEWAY), ("replicas", Listener.REPLICA)):
        if name in sockets:
            kinds[sockets[name].getsockname()] = kind
    tls_sockets = {listener.socket for listener in tls}
    plain = [listener for listener in sockets.values() if listener not in tls_sockets]
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(_run(server, plain, parent))
    listeners.close()
    os.close(lock)


async def _run(server: SecureServer, listeners: list[socket.socket], parent: int) -> None:
    tune_memory()
    watching = joined(_watch_parent(server, parent))
    try:
        await server.serve(listeners)
    finally:
        watching.cancel()


async def _watch_parent(server: SecureServer, parent: int) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 there is no event for it
        await asyncio.sleep(_ORPHAN_CHECK_INTERVAL)
    server.should_exit = True


def _lock_store(root: Path) -> int:
    """Lock the store for this process. Return the file descriptor that holds the lock until the process
    exits. Waits until an earlier process has finished its requests, because two processes would delete each
    other's unfinished uploads. Raises TimeoutError if the earlier process does not exit."""
    path = state_directory(root) / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while not durable.try_lock(fd):
        if time.monotonic() > deadline:
            os.close(fd)
            raise TimeoutError(
                f"The bucket store {root} is in use by another process, which does not exit. Stop the "
                "service of that process first, or start this service with another directory."
            )
        time.sleep(_LOCK_POLL_INTERVAL)
    return fd


def main(parent: int, setup: str, listeners: str) -> None:
    """Decode the outputs of `BucketSetup.encode` and `listeners.encode`, and call `serve`."""
    serve(BucketSetup.decode(setup), Listeners.inherit(listeners), parent)
