"""The buckets of a local run: those of the service on the same data directory, or served by a process of the
run itself.

The first local run serves the buckets, but a service takes precedence over every local run. Programs do not
notice the difference, because the socket's path is the same.
"""

import asyncio
import socket
from pathlib import Path

from trainshed.buckets.listeners import Listeners
from trainshed.buckets.setup import BucketRules, BucketSetup
from trainshed.cli.connection import holder
from trainshed.eventloop.background import keep
from trainshed.replica.system.unix_sockets import reachable
from trainshed.serve.bucket_tables import bucket_rules, cannot_serve
from trainshed.serve.children import LINGER, BucketKeeper
from trainshed.serve.local_run.request import NotRun
from trainshed.serve.settings import Settings

_LOOK_EVERY = 0.5


def socket_of(data: Path) -> Path:
    """Return the socket on which programs of a data directory reach the buckets, whoever serves them."""
    return data / "buckets.sock"


class Storage:
    """Has the buckets served while the run needs them. `rules`: to whom they are open."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotRun for buckets that cannot be served."""
        self._data = settings.data
        root = settings.data / "buckets"
        local = [path.name for path in root.iterdir()] if root.is_dir() else []
        if cause := cannot_serve(settings.buckets, local):
            raise NotRun(cause)
        self._setup = _setup(settings)
        self._keeper: BucketKeeper | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def rules(self) -> BucketRules:
        return self._setup.rules

    async def begin(self) -> None:
        """Start; when this returns, the buckets are served. Raises OSError."""
        if not is_served(self._data):
            self._serve()
        self._watching = keep(self._watch, "watching who serves the buckets")

    async def close(self) -> None:
        """Stop serving the buckets; requests in progress are finished."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if holder(self._data) is not None:
                await self._stop()
            elif self._keeper is None and not is_served(self._data):
                self._serve()

    def _serve(self) -> None:
        self._keeper = BucketKeeper(self._setup, Listeners.opened(self._setup))
        self._keeper.start()

    async def _stop(self) -> None:
        if self._keeper is not None:
            await self._keeper.close()
            self._keeper = None


def is_served(data: Path) -> bool:
    """Whether the buckets of a data directory are being served."""
    with socket.socket(socket.AF_UNIX) as probe, reachable(str(socket_of(data))) as path:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _setup(settings: Settings) -> BucketSetup:
    return BucketSetup(
        root=str(settings.data / "buckets"),
        replicas=str(socket_of(settings.data)),
        tokens=str(settings.data / "tokens.json"),
        rules=bucket_rules(
            settings.project, settings.default_bucket, settings.shared_buckets, settings.buckets
        ),
        linger=LINGER,
    )
