"""The processes that the service starts beside itself: the zygote and the bucket process.

Both are forked before the service has threads, an event loop or a database, and share its imports. The zygote
outlives it on purpose. The bucket process ends with it whatever it does: the kernel kills it when the service
dies, and the service kills it when it does not end by itself.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from msgspec.structs import replace

from trainshed.buckets.setup import BucketSetup
from trainshed.eventloop.background import keep
from trainshed.loading import compiled
from trainshed.replica.system import kernel

log = logging.getLogger(__name__)

RESTART_DELAY = 0.2
"""Seconds before a bucket process that died is started again; twice as many each time, until one has lived
for long."""
_LONGEST_DELAY = 30.0
PATIENCE = 8.0
"""Seconds in which a bucket process may end that was asked to; its requests have five. Then it is killed."""
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawner")
"""The kernel takes a child for orphaned when the *thread* ends that started it: this one lives as long as the
process."""


class ForkedBuckets:
    """A bucket process that was forked early, while there was one thread, and waits to be let go."""

    def __init__(self) -> None:
        settle()
        orders, our_orders = os.pipe()
        our_reports, reports = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _be_buckets(orders, reports, parent)
        os.close(orders)
        os.close(reports)
        self._orders = os.fdopen(our_orders, "w")
        self._reports = os.fdopen(our_reports)

    def serve(self, setup: BucketSetup) -> BucketSetup:
        """Let it serve; returns the setup with the TCP ports it got, 0 = none was asked for. Raises OSError
        if it cannot."""
        with self._orders as orders:
            orders.write(setup.encode())
        with self._reports as reports:
            line = reports.readline()
        if not line:
            raise OSError(f"the bucket process could not start on {setup.host}:{setup.port}")
        ports = json.loads(line)
        return replace(setup, port=ports["port"] or 0, tls_port=ports["tls_port"] or 0)

    def dismiss(self) -> None:
        """It is not needed: the service does not start. Waits for its end."""
        self._orders.close()
        self._reports.close()
        end(self.pid)


def _be_buckets(orders: int, reports: int, parent: int) -> NoReturn:
    """In the child: wait for orders, serve until told to stop, and end."""
    status = 1
    try:
        kernel.help_parent(parent)
        compiled.release()
        # Nothing else that was open here: a copy of the zygote's connection would keep the zygote alive.
        keep = {0, 1, 2, orders, reports}
        kernel.close_all(handle for handle in kernel.open_handles() if handle not in keep)
        # Ctrl-C at a terminal is for the service, which then tells its children.
        os.setpgid(0, 0)
        gc.enable()
        from trainshed.buckets.process import serve

        with os.fdopen(orders) as file:
            text = file.read()
        if text:
            serve(BucketSetup.decode(text), reports, parent=parent)
        status = 0
    except Exception:
        # Broad on purpose: this is the process's outermost frame, whatever fails ends it with status 1. The
        # service learns only that there is no bucket process; whoever reads its log learns why.
        traceback.print_exc()
    finally:
        os._exit(status)


class BucketKeeper:
    """Keeps a bucket process alive: started anew, at the same places, whenever it ends unasked."""

    def __init__(self, setup: BucketSetup, pid: int) -> None:
        self._setup = setup
        self._pid = pid
        """0: there is none at the moment."""
        self._closing = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = keep(self._keep, "keeping the bucket process")

    async def close(self) -> None:
        """Ask it to finish its requests and wait until it is gone; kill it if that takes too long."""
        self._closing.set()
        self._signal(signal.SIGTERM)
        killing = asyncio.get_running_loop().call_later(PATIENCE, self._kill)
        if self._keeping is not None:
            await self._keeping
        killing.cancel()

    async def _keep(self) -> None:
        delay = RESTART_DELAY
        while True:
            if self._pid:
                begun = time.monotonic()
                status = await asyncio.to_thread(_wait, self._pid)
                self._pid = 0
                if time.monotonic() - begun > _LONGEST_DELAY:
                    delay = RESTART_DELAY
                if not self._closing.is_set():
                    log.warning("bucket process: ended with status %s, starting again", status)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._closing.wait()
            if self._closing.is_set():
                return
            delay = min(2 * delay, _LONGEST_DELAY)
            try:
                loop = asyncio.get_running_loop()
                self._pid = await loop.run_in_executor(_SPAWNER, spawn_buckets, self._setup)
            except OSError as failure:  # No memory, say, or too many processes.
                text = "bucket process: cannot be started: %s; once more in %g s"
                log.error(text, failure, delay)
            if self._closing.is_set():
                self._signal(signal.SIGTERM)

    def _kill(self) -> None:
        if self._pid:
            log.warning("bucket process: still running after %g s, killing it", PATIENCE)
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if not self._pid:
            return
        try:
            os.kill(self._pid, number)
        except ProcessLookupError:
            log.debug("bucket process: ended already")


def end(pid: int) -> None:
    """Ask a bucket process to finish its requests, and kill it if that takes too long; blocks until it is
    gone."""
    killing = threading.Timer(PATIENCE, os.kill, (pid, signal.SIGKILL))
    killing.daemon = True
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    killing.start()
    _wait(pid)
    killing.cancel()


def _wait(pid: int) -> int:
    """The exit status of a child, negative for a signal; blocks."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


def spawn_buckets(setup: BucketSetup) -> int:
    """Start a bucket process as a new interpreter: this process has threads by now."""
    command = [
        # Without the working directory on the import path: a file there is no library.
        *(sys.executable, "-P", "-m", "trainshed.buckets.process"),
        *("--setup", setup.encode(), "--parent", str(os.getpid())),
    ]
    return os.posix_spawn(sys.executable, command, dict(os.environ), setpgroup=0)


def settle() -> None:
    """Give back what importing and starting left behind, and spare what stays from the collector, so that its
    pages stay shared with forked children. Takes a few milliseconds."""
    gc.freeze()
    trim()


def trim() -> None:
    """Give memory that was freed back to the system; nothing where the C library cannot."""
    trimming = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trimming is not None:
        trimming(0)
