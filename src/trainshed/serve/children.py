"""The bucket process, as the service that starts it sees it; and memory that goes back to the system.

It is there only while somebody calls: the service holds the sockets, and starts it with the first connection.
It ends with the service whatever it does: the kernel kills it when the service dies, and the service kills it
when it does not end by itself.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor

from trainshed.buckets.listeners import Listeners, encode
from trainshed.buckets.setup import BucketSetup
from trainshed.eventloop.background import begin, keep

log = logging.getLogger(__name__)

LINGER = 300.0
"""Seconds without a connection after which a bucket process ends: longer than the pauses of a program that is
at work, which would wait for a new one each time."""
PAUSE = 0.2
"""Seconds before a bucket process that died is started again; twice as many each time, until one has lived
for long."""
_LONGEST_PAUSE = 30.0
_SHORT = 1.0
"""Seconds that callers can wait without being told."""
LOOK = 5.0
"""Seconds between two looks at whether callers wait for a bucket process to take them."""
_LOOKS = 3
"""In a row, that find somebody waiting: then it is asked whether it hangs."""
ANSWER = 20.0
"""Seconds in which it has to answer that."""
PATIENCE = 8.0
"""Seconds in which a bucket process may end that was asked to; its requests have five. Then it is killed."""
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawner")
"""The kernel takes a child for orphaned when the *thread* ends that started it: this one lives as long as the
process."""


class BucketKeeper:
    """Has a bucket process begin when somebody calls: the first connection waits for it, and so does the next
    one after it has ended, by itself or otherwise."""

    def __init__(self, setup: BucketSetup, listeners: Listeners) -> None:
        self._setup = setup
        self._listeners = listeners
        #: 0: there is none at the moment.
        self._pid = 0
        self._called = asyncio.Event()
        self._closing = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._keeping = keep(self._keep, "keeping the bucket process")

    def expect(self) -> None:
        """Have it begin now, since somebody is likely to call soon. From any thread."""
        if self._loop is not None and not self._pid:
            self._loop.call_soon_threadsafe(self._called.set)

    async def close(self) -> None:
        """Ask it to finish its requests and wait until it is gone; kill it if that takes too long. Then
        nobody listens any more."""
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
                await self._paused(pause)
            else:
                pause = 0.0

    async def _is_called(self) -> bool:
        """Wait until somebody calls, or is expected; False: it is closed."""
        if not self._closing.is_set():
            with self._heeding(lambda _: self._called.set()):
                await self._called.wait()
        return not self._closing.is_set()

    async def _served(self) -> str:
        """Have one serve until it ends; how it failed, "" = it ended as it should."""
        try:
            loop = asyncio.get_running_loop()
            self._pid = await loop.run_in_executor(
                _SPAWNER, spawn_buckets, self._setup, self._listeners
            )
        except OSError as failure:  # No memory, say, or too many processes.
            return f"it cannot be started: {failure}"
        if self._closing.is_set():
            self._signal(signal.SIGTERM)
        watching = begin(self._watch(), "watching the bucket process")
        status = await asyncio.to_thread(_wait, self._pid)
        watching.cancel()
        self._pid = 0
        # Whoever was expected has come; who has come since then waits at a listener.
        self._called.clear()
        return f"it ended with status {status}" if status else ""

    async def _watch(self) -> None:
        """Kill the one that serves when it hangs, whatever it hangs in: nobody else would tell. It is looked
        at from outside, and asked only when callers keep waiting, so that one that is idle sleeps on."""
        looks = 0
        while True:
            await asyncio.sleep(LOOK)
            waited_at = _waited_at(self._listeners.sockets().values())
            looks = looks + 1 if waited_at else 0
            if waited_at and looks >= _LOOKS and not await _answers(waited_at[0]):
                log.warning("bucket process: it takes no callers any more, killing it")
                self._signal(signal.SIGKILL)
                return

    async def _paused(self, seconds: float) -> None:
        """Wait before the next one. Who calls meanwhile is told so at once, unless it will not take long."""
        with contextlib.ExitStack() as stack, contextlib.suppress(TimeoutError):
            if seconds > _SHORT:
                stack.enter_context(self._heeding(_turn_away))
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    @contextlib.contextmanager
    def _heeding(self, come: Callable[[socket.socket], None]) -> Generator[None]:
        """Have `come` told of each listener at which somebody waits."""
        loop, listeners = asyncio.get_running_loop(), self._listeners.sockets().values()
        for listener in listeners:
            loop.add_reader(listener.fileno(), come, listener)
        try:
            yield
        finally:
            for listener in listeners:
                loop.remove_reader(listener.fileno())

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


def _waited_at(listeners: Iterable[socket.socket]) -> list[socket.socket]:
    """Those at which somebody waits who has not been taken yet."""
    by_handle = {listener.fileno(): listener for listener in listeners}
    poll = select.poll()
    for handle in by_handle:
        poll.register(handle, select.POLLIN)
    return [by_handle[handle] for handle, _ in poll.poll(0)]


async def _answers(listener: socket.socket) -> bool:
    """Whether one more caller there gets a word in time, be it a refusal."""
    address = listener.getsockname()
    if isinstance(address, str):
        connecting = asyncio.open_unix_connection(address)
    else:
        connecting = asyncio.open_connection(*address[:2])
    try:
        async with asyncio.timeout(ANSWER):
            reader, writer = await connecting
            try:
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                return bool(await reader.read(1))
            finally:
                writer.close()
    except OSError:  # Among them TimeoutError; nobody can wait any more, say.
        return False


def _turn_away(listener: socket.socket) -> None:
    """Close the connections that wait at a listener: their callers try again, or say what is wrong."""
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


def _wait(pid: int) -> int:
    """The exit status of a child, negative for a signal; blocks. If somebody stops it, it is woken: callers
    would wait for it without end."""
    try:
        while os.WIFSTOPPED(status := os.waitpid(pid, os.WUNTRACED)[1]):
            wake(pid, os.WSTOPSIG(status))
        return os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return 0


def wake(pid: int, stopped_by: int) -> None:
    """Have a child go on that a signal has stopped."""
    name = signal.Signals(stopped_by).name
    log.warning("bucket process: it was stopped by %s; it is told to go on", name)
    os.kill(pid, signal.SIGCONT)


def spawn_buckets(setup: BucketSetup, listeners: Listeners) -> int:
    """Start a bucket process as a new interpreter, since this process has threads; its id. Raises OSError."""
    sockets = listeners.sockets()
    # By numbers that none of them has here: where the numbers are equal, some systems do not hand it on.
    first = max((listener.fileno() for listener in sockets.values()), default=2) + 1
    given = {name: first + place for place, name in enumerate(sockets)}
    handing = [
        (os.POSIX_SPAWN_DUP2, listener.fileno(), given[name]) for name, listener in sockets.items()
    ]
    command = [
        # Without the working directory on the import path: a file there is no library.
        *(sys.executable, "-P", "-m", "trainshed.buckets"),
        *(str(os.getpid()), setup.encode(), encode(given)),
    ]
    return os.posix_spawn(
        sys.executable, command, dict(os.environ), setpgroup=0, file_actions=handing
    )


def settle() -> None:
    """Give back what importing and starting left behind, and spare what stays from the collector. Takes a few
    milliseconds."""
    gc.freeze()
    trim()


def trim() -> None:
    """Give memory that was freed back to the system; nothing where the C library cannot."""
    trimming = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trimming is not None:
        trimming(0)
