"""The buckets of a local run: those of the service on the same data directory, or served by a process of the
run's own.

Who comes first serves; a service goes before every local run. Programs do not notice who it is: the socket's
path is the same.
"""

import asyncio
import logging
import os
import socket
from pathlib import Path

from trainshed.buckets.setup import BucketRules, BucketSetup
from trainshed.eventloop.background import keep
from trainshed.replica.system.unix_sockets import reachable
from trainshed.serve.bucket_tables import bucket_rules, cannot_serve
from trainshed.serve.children import ForkedBuckets, end, spawn_buckets
from trainshed.serve.local_run.request import NotRun
from trainshed.serve.settings import Settings

log = logging.getLogger(__name__)

_LOOK_EVERY = 0.5
_SERVICE_LOCK = "trainshed.lock"


def socket_of(data: Path) -> Path:
    """Where programs of a data directory reach the buckets, whoever serves them."""
    return data / "buckets.sock"


class Storage:
    """Made before there are threads: it forks, if nobody serves the buckets now. `rules`: whose they are."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotRun."""
        self._data = settings.data
        root = settings.data / "buckets"
        local = [path.name for path in root.iterdir()] if root.is_dir() else []
        if cause := cannot_serve(settings.buckets, local):
            raise NotRun(cause)
        self._setup = _setup(settings)
        self._pid = 0
        self._forked = None if is_served(settings.data) else ForkedBuckets()
        self._watching: asyncio.Task[None] | None = None

    @property
    def rules(self) -> BucketRules:
        return self._setup.rules

    async def begin(self) -> None:
        """Returns when the buckets are served; from then on they are. Raises OSError."""
        if self._forked is not None:
            self._pid = self._forked.pid
            await asyncio.to_thread(self._forked.serve, self._setup)
        self._watching = keep(self._watch, "watching the bucket process")

    def close(self) -> None:
        """Serve them no longer; requests that are on their way are finished."""
        if self._watching is not None:
            self._watching.cancel()
        elif self._forked is not None:
            self._forked.dismiss()
            return
        self._stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._pid and _has_ended(self._pid):
                log.warning("bucket process: ended, starting again")
                self._pid = 0
            if self._pid and _service_waits(self._data):
                await asyncio.to_thread(self._stop)
                self._pid = 0
            elif not self._pid and not is_served(self._data) and not _service_waits(self._data):
                self._pid = spawn_buckets(self._setup)

    def _stop(self) -> None:
        """Waits for it: it dies with this process."""
        if self._pid:
            end(self._pid)


def is_served(data: Path) -> bool:
    """Whether somebody serves the buckets of a data directory now."""
    with socket.socket(socket.AF_UNIX) as probe, reachable(str(socket_of(data))) as path:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _service_waits(data: Path) -> bool:
    """Whether a service runs on the data directory, or is about to. Without touching its lock, which it may
    be about to take."""
    try:
        inode = (data / _SERVICE_LOCK).stat().st_ino
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    return any(f":{inode} " in line and " FLOCK " in line for line in locks.splitlines())


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _setup(settings: Settings) -> BucketSetup:
    return BucketSetup(
        root=str(settings.data / "buckets"),
        replicas=str(socket_of(settings.data)),
        tokens=str(settings.data / "tokens.json"),
        rules=bucket_rules(
            settings.project, settings.default_bucket, settings.shared_buckets, settings.buckets
        ),
    )
