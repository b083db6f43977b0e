"""Starts and supervises the bucket process.

The bucket process only runs while there are callers: the service holds the listening sockets, and starts it
with the first connection. It never outlives the service: the kernel kills it when the service dies, and the
service kills it when it does not end by itself.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from trainshed.buckets.listeners import Listeners, encode
from trainshed.buckets.setup import BucketSetup
from trainshed.eventloop.background import begin, keep
from trainshed.replica.system import unix_sockets

log = logging.getLogger(__name__)

LINGER = 300.0
"""Seconds without a connection after which a bucket process ends: longer than the pauses of a working
program, which would otherwise wait for a new process each time."""
PAUSE = 0.2
"""Seconds before a bucket process that failed is started again; doubled each time, until one has lived for
long."""
_LONGEST_PAUSE = 5.0
"""Callers wait meanwhile."""
LOOK = 5.0
"""Seconds between two checks whether callers wait for a bucket process to accept them."""
_LOOKS = 3
"""Checks in a row that find callers waiting, after which the process is tested with a request."""
ANSWER = 20.0
"""Seconds in which it has to answer that request."""
PATIENCE = 8.0
"""Seconds in which a bucket process has to end after SIGTERM; its requests have five of them. Then it is
killed."""
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawner")
"""Starts child processes. The kernel treats a child as orphaned when the *thread* that started it ends; this
thread lives as long as the process."""


class BucketKeeper:
    """Has a bucket process started whenever there is a caller. The first connection waits for it, and so does
    the first one after it has ended, for whatever reason."""

    def __init__(self, setup: BucketSetup, listeners: Listeners) -> None:
        self._setup = setup
        self._listeners = listeners
        #: The process id; 0: there is no process at the moment.
        self._pid = 0
        self._called = asyncio.Event()
        self._closing = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeping = keep(self._keep, "keeping the bucket process")

    async def close(self) -> None:
        """Ask the process to finish its requests, and wait until it has ended; kill it if that takes too
        long. Then close the listeners."""
        self._closing.set()
        self._called.set()
        self._signal(signal.SIGTERM)
        killing = asyncio.get_running_loop().call_later(PATIENCE, self._kill)
        if self._keeping is not None:
            await self._keeping
        killing.cancel()
        self._listeners.close()

    async def _keep(self) -> None:
        pause = 0.0
        while await self._is_called():
            begun = time.monotonic()
            failure = await self._served()
            lived = time.monotonic() - begun
            pause = min(2 * pause, _LONGEST_PAUSE) if pause and lived < _LONGEST_PAUSE else PAUSE
            if failure and not self._closing.is_set():
                log.warning("bucket process: %s; begun again after %g s", failure, pause)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._closing.wait()
            else:
                pause = 0.0

    async def _is_called(self) -> bool:
        """Wait until there is a caller. Return False if the keeper is closed."""
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

    async def _served(self) -> str | None:
        """Run a process until it ends. Return how it failed, None = it ended as it should."""
        try:
            loop = asyncio.get_running_loop()
            self._pid = await loop.run_in_executor(
                _SPAWNER, spawn_buckets, self._setup, self._listeners
            )
        except OSError as failure:  # No memory, for instance, or too many processes.
            return f"it cannot be started: {failure}"
        if self._closing.is_set():
            self._signal(signal.SIGTERM)
        watching = begin(self._watch(), "watching the bucket process")
        status = await asyncio.to_thread(_wait, self._pid)
        watching.cancel()
        self._pid = 0
        # Callers that have come since wait at a listener.
        self._called.clear()
        return f"it ended with status {status}" if status else None

    async def _watch(self) -> None:
        """Kill the process when it hangs, in whatever way: nothing else would report it. It is checked from
        outside, and sent a request only when callers keep waiting, so that an idle process sleeps on."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK)
            waited_at = _waited_at(self._listeners.sockets())
            looks = looks + 1 if waited_at else 0
            if waited_at and looks >= _LOOKS and not await self._answers(waited_at[0]):
                log.warning("bucket process: it takes no callers any more, killing it")
                self._signal(signal.SIGKILL)
                return

    async def _answers(self, name: str) -> bool:
        """Whether a new connection to the listener of that name gets any answer in time, even a refusal."""
        paths = {"gateway": self._setup.gateway, "replicas": self._setup.replicas}
        try:
            async with asyncio.timeout(ANSWER):
                if name in paths:
                    # The socket itself does not know a path that is too long for the kernel.
                    with unix_sockets.reachable(paths[name]) as short:
                        reader, writer = await asyncio.open_unix_connection(short)
                else:
                    address = self._listeners.sockets()[name].getsockname()
                    reader, writer = await asyncio.open_connection(*address[:2])
                try:
                    writer.write(b"GET / HTTP/1.0\r\n\r\n")
                    return bool(await reader.read(1))
                finally:
                    writer.close()
        except OSError:  # Includes TimeoutError; the listener's queue may be full.
            return False

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


def _waited_at(listeners: Mapping[str, socket.socket]) -> list[str]:
    """Return the names of the listeners with connections that are not accepted yet."""
    poll = select.poll()
    for listener in listeners.values():
        poll.register(listener, select.POLLIN)
    called = {handle for handle, _ in poll.poll(0)}
    return [name for name, listener in listeners.items() if listener.fileno() in called]


def _wait(pid: int) -> int:
    """Wait for the end of a child, and return its exit status, negative for a signal; blocks."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


def spawn_buckets(setup: BucketSetup, listeners: Listeners) -> int:
    """Start a bucket process as a new interpreter, since this process has threads. Return its id. Raises
    OSError."""
    sockets = listeners.sockets()
    # With numbers that none of them has here: if both numbers are equal, some systems do not pass the socket
    # on.
    first = max((listener.fileno() for listener in sockets.values()), default=2) + 1
    descriptors = {name: first + place for place, name in enumerate(sockets)}
    handing = [
        (os.POSIX_SPAWN_DUP2, listener.fileno(), descriptors[name])
        for name, listener in sockets.items()
    ]
    command = [
        # Without the working directory on the import path: a file there is no library.
        *(sys.executable, "-P", "-m", "trainshed.buckets"),
        *(str(os.getpid()), setup.encode(), encode(descriptors)),
    ]
    return os.posix_spawn(
        sys.executable, command, dict(os.environ), setpgroup=0, file_actions=handing
    )
