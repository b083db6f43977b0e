"""Starts child processes of a large process without copying the tables of its memory.

The event loop's own way (uvloop, by libuv) is fork: in a service of a hundred megabytes it takes ten
milliseconds, in which nothing else is done. `subprocess` lends the child its parent's memory until it runs
another program (vfork), which takes one.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence

_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""The reader and the writer of one socket; only one of the two is used."""


class Child:
    """A child process, with asyncio's streams for its output, its errors and its input."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        streams: Sequence[_Streams],
    ) -> None:
        """`streams` belong to its output, its errors and, if it has one, its input."""
        self.pid = process.pid
        self.stdout, self.stderr = streams[0][0], streams[1][0]
        #: None = the child has no standard input.
        self.stdin = streams[2][1] if len(streams) > 2 else None
        # Held because a writer that is collected as garbage closes its socket.
        self._streams = streams
        self._process = process
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._watch()

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`; None = it runs, or its end was not noticed yet."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait until it has ended. Returns its exit code, or minus the signal that ended it."""
        return await asyncio.shield(self._ended)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Returns everything that it writes to its output and its errors, once it has ended."""
        out, err = await asyncio.gather(self.stdout.read(), self.stderr.read())
        await self.wait()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal; does nothing if it has ended."""
        # Only `_reap` reaps it, so until then no other process can have its number.
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # Linux before 5.3 has no pidfd_open.
            threading.Thread(target=self._wait_for_end, args=(loop,), daemon=True).start()
            return

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._reap()

        loop.add_reader(handle, ended)

    def _wait_for_end(self, loop: asyncio.AbstractEventLoop) -> None:
        # WNOWAIT leaves it unreaped, so that a signal sent meanwhile cannot meet another process of that
        # number.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        if not self._ended.done():
            self._ended.set_result(self._process.wait())


async def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    feeds: bool = False,
    limit: int = 1 << 16,
) -> Child:
    """Run `argv` in a new session. `cwd`: None = this process's directory. `feeds`: the child has a standard
    input; otherwise that is empty. `limit`: the most bytes in a line of its output. Raises OSError."""
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:

        def pair() -> tuple[socket.socket, socket.socket]:
            own, other = socket.socketpair()
            own.setblocking(False)
            return ours.enter_context(own), theirs.enter_context(other)

        pairs = [pair() for _ in range(3 if feeds else 2)]
        process = subprocess.Popen(  # noqa: ASYNC220 - a thread would hold up the loop as long: see above
            argv,
            stdin=pairs[2][1].fileno() if feeds else subprocess.DEVNULL,
            stdout=pairs[0][1].fileno(),
            stderr=pairs[1][1].fileno(),
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        theirs.close()
        try:
            streams = [await _streams(own, limit) for own, _ in pairs]
        except BaseException:
            process.kill()
            process.wait()
            raise
        ours.pop_all()
    return Child(process, streams)


class _UntilEnd(asyncio.StreamReaderProtocol):
    """Closes its socket when the other side has closed its end."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def _streams(own: socket.socket, limit: int) -> _Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    transport, protocol = await loop.create_unix_connection(
        lambda: _UntilEnd(reader, loop=loop), sock=own
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
