"""Starts and supervises the bucket process. The service holds the listening sockets, and starts the bucket
process at the first connection.

The bucket process never survives the service: if the service is killed, the kernel kills the bucket process
too. If the bucket process does not exit when it is stopped, the service kills it.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from trainshed.buckets.listeners import Listeners, encode
from trainshed.buckets.setup import BucketSetup
from trainshed.eventloop.background import keep

log = logging.getLogger(__name__)

RESTART_DELAY = 0.2
"""Seconds before a failed bucket process is restarted. The delay doubles after each failure, until a process
has run for `_MAX_RESTART_DELAY` seconds."""
_MAX_RESTART_DELAY = 5.0
"""Maximum delay in seconds. Clients wait during the delay."""
STOP_TIMEOUT = 8.0
"""Maximum seconds for a bucket process to exit after SIGTERM. Its open requests have five of these seconds.
Then it is killed."""
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawner")
"""Starts child processes. A child process is killed when the *thread* that started it ends. This thread lives
as long as the service."""


class BucketKeeper:
    """Starts a bucket process when a client connects and no bucket process runs. The connection waits until
    the new process accepts it."""

    def __init__(self, setup: BucketSetup, listeners: Listeners) -> None:
        self._setup = setup
        self._listeners = listeners
        #: None = no bucket process runs.
        self._process: subprocess.Popen[bytes] | None = None
        self._called = asyncio.Event()
        self._closing = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = keep(self._keep, "keeping the bucket process")

    async def close(self) -> None:
        """Send SIGTERM to the process, and wait until it has finished its requests and exited. Kill it after
        `STOP_TIMEOUT`. Then close the listeners."""
        self._closing.set()
        self._called.set()
        if self._process is not None:
            self._process.terminate()
        killing = asyncio.get_running_loop().call_later(STOP_TIMEOUT, self._kill)
        if self._keeping is not None:
            await self._keeping
        killing.cancel()
        self._listeners.close()

    async def _keep(self) -> None:
        pause = 0.0
        while await self._wait_for_connection():
            begun = time.monotonic()
            failure = await self._run_process()
            lived = time.monotonic() - begun
            pause = (
                min(2 * pause, _MAX_RESTART_DELAY) if pause and lived < _MAX_RESTART_DELAY else RESTART_DELAY
            )
            if failure and not self._closing.is_set():
                log.warning("bucket process: %s; restarted after %g s", failure, pause)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closing.wait()
            else:
                pause = 0.0

    async def _wait_for_connection(self) -> bool:
        """Wait for a connection. Return False if the keeper is closed."""
        if not self._closing.is_set():
            loop, listeners = asyncio.get_running_loop(), self._listeners.sockets().values()
            for listener in listeners:
                loop.add_reader(listener.fileno(), self._called.set)
            try:
                await self._called.wait()
            finally:
                for listener in listeners:
                    loop.remove_reader(listener.fileno())
        return not self._closing.is_set()

    async def _run_process(self) -> str | None:
        """Run a bucket process until it exits. Return its failure, or None if it exited normally."""
        try:
            loop = asyncio.get_running_loop()
            process = await loop.run_in_executor(_SPAWNER, spawn_buckets, self._setup, self._listeners)
        except OSError as failure:  # For example, no memory is available.
            return f"it cannot be started: {failure}"
        self._process = process
        if self._closing.is_set():
            process.terminate()
        status = await asyncio.to_thread(process.wait)
        self._process = None
        # Do not start another process before a connection arrives. The listening sockets hold new connections
        # until the next process accepts them.
        self._called.clear()
        return f"it ended with status {status}" if status else None

    def _kill(self) -> None:
        if self._process is not None:
            log.warning("bucket process: still running after %g s, killing it", STOP_TIMEOUT)
            self._process.kill()


def spawn_buckets(setup: BucketSetup, listeners: Listeners) -> "subprocess.Popen[bytes]":
    """Start a bucket process as a new interpreter, because this process has threads and cannot fork safely.
    Raises OSError."""
    handles = {name: listener.fileno() for name, listener in listeners.sockets().items()}
    command = [
        # The import path does not contain the working directory, whose files are untrusted.
        *(sys.executable, "-P", "-m", "trainshed.buckets"),
        *(str(os.getpid()), setup.encode(), encode(handles)),
    ]
    return subprocess.Popen(command, pass_fds=tuple(handles.values()), process_group=0)
