"""One viewer: TensorBoard in a sandboxed process (`runtimes.confinement`) that listens on a Unix socket.

The process can read only the directories that are mounted for it, and has no network. It ends with its keeper
process, which ends with the service. The socket listens before the process starts, so that early requests
wait.
"""

import asyncio
import collections
import contextlib
import os
import shutil
import socket
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainshed.core.errors import Unavailable
from trainshed.eventloop.background import joined
from trainshed.eventloop.stream_line import StreamLine
from trainshed.httpd.forwarding import RESPONSE_TIMEOUT, NoResponse, Rules, exchange, forward
from trainshed.httpd.messages import Lapse, Request, Response
from trainshed.replica import protocol
from trainshed.replica.system.unix_sockets import reachable
from trainshed.runtimes.confinement import Confinement, InstallationTerms, LentDirectory, read_verdict
from trainshed.runtimes.port import PreparedRuntime
from trainshed.summaries.directories import ShownDirectory

SUBJECT: Final = "TensorBoard"
_PROGRAM: Final = Path(__file__).with_name("program.py")
_LOGS: Final = "logs"
_SOCKET: Final = "socket"
_BACKLOG: Final = 64
_LAST_LINES: Final = 5
_MAX_LINE: Final = 2000
_EXIT_TIMEOUT: Final = 5.0
"""Seconds that a keeper has to end all of its processes. After that, the service kills the keeper."""
_ONE_THREAD: Final = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
_SENT: Final = (b"accept", b"accept-encoding", b"accept-language", b"content-type")
_PASSED: Final = (
    *(b"content-type", b"content-encoding", b"content-length", b"content-disposition", b"vary"),
    b"content-security-policy",
)
RULES: Final = Rules(
    lambda headers: [(b"host", b"viewer"), *(pair for pair in headers if pair[0] in _SENT)],
    lambda headers: [pair for pair in headers if pair[0] in _PASSED],
    max_bytes=1 << 20,
)
"""The rules for forwarded requests and responses. Tokens and cookies never reach a viewer. Headers of a
viewer for cookies, CORS, redirects and workers never reach a browser. Request bodies are limited, but large
enough for the lists of runs and tags that TensorBoard's page sends as forms."""


async def connect(socket: str) -> StreamLine:
    """Return a connection to a viewer's Unix socket. Raises NoResponse."""
    try:
        with reachable(socket) as short:
            return StreamLine(*await asyncio.open_unix_connection(short))
    except OSError as failure:
        raise NoResponse(str(failure)) from None


class ViewerProcess:
    def __init__(self, process: Process, line: socket.socket, workspace: Path) -> None:
        self._process = process
        self._line = line
        self._workspace = workspace
        self._is_asked = False
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._listening = joined(self._listen())
        self._ended = joined(self._end())

    @property
    def is_alive(self) -> bool:
        return not self._ended.done()

    async def ready(self) -> None:
        """Wait until the viewer responds to requests. Raises Unavailable."""
        asking = joined(self._status())
        try:
            await asyncio.wait((asking, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done() or isinstance(asking.exception(), NoResponse):
                raise Unavailable(await self._end_message())
            if (status := asking.result()) >= 500:
                raise Unavailable(f"{SUBJECT} responded with status {status}. {' '.join(self._last)}")
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def forward(self, request: Request, closing: asyncio.Event, lapse: Lapse) -> Response:
        """Forward a request to the viewer, and return the viewer's response. The transfer ends when `closing`
        is set or `lapse` returns. Raises Unavailable, BodyTooLarge."""
        try:
            return await forward(await self._connect(), request, RULES, closing, lapse)
        except NoResponse as failure:
            raise Unavailable(f"{SUBJECT} does not respond: {failure}. Open it again.") from None

    async def wait_ended(self) -> str | None:
        """Wait until the viewer has ended. Return the cause of its end, or None if `close` stopped it."""
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """Stop the viewer, and wait until it has ended."""
        self._is_asked = True
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await self.wait_ended()
                return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self.wait_ended()

    async def _status(self) -> int:
        request = b"GET /data/environment HTTP/1.1\r\nhost: viewer\r\nconnection: close\r\n\r\n"
        status, _ = await exchange(await self._connect(), request, RESPONSE_TIMEOUT, max_bytes=0)
        return status

    async def _connect(self) -> StreamLine:
        return await connect(str(self._workspace / _SOCKET))

    async def _end_message(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                return await self.wait_ended() or f"{SUBJECT} was stopped."
        return f"{SUBJECT} does not respond. {' '.join(self._last)}"

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            async for line in self._process.stdout:
                if text := line.decode(errors="replace").strip():
                    self._last.append(text[:_MAX_LINE])
        except ValueError:
            return  # Stop reading: the line exceeds the stream's limit, and later lines are not needed.

    async def _end(self) -> str | None:
        code = await self._process.wait()
        self._listening.cancel()
        verdict = read_verdict(self._line)
        self._line.close()
        await asyncio.to_thread(shutil.rmtree, self._workspace, ignore_errors=True)
        if self._is_asked:
            return None
        if verdict:
            return verdict
        lines = " ".join(self._last)
        return f"{SUBJECT} ended with status {code}: {lines or 'it printed nothing'}"


async def start(
    workspace: Path, directories: Sequence[ShownDirectory], runtime: PreparedRuntime, terms: InstallationTerms
) -> ViewerProcess:
    """Start a viewer. `workspace`: the viewer's own directory, which is created here and removed when the
    viewer ends. Raises Unavailable."""
    try:
        logs, lent = await asyncio.to_thread(_prepare, workspace, directories, terms.level)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            with reachable(str(workspace / _SOCKET)) as short:
                listener.bind(short)
            listener.listen(_BACKLOG)
            confinement = Confinement(
                workspace=str(workspace),
                writable=(),
                shown=runtime.read_only,
                terms=terms,
                name=f"trainshed-viewer-{os.getpid()}-{workspace.name}",
                lent=lent,
                handles=(listener.fileno(),),
                network=False,
                subject=SUBJECT,
            )
            await asyncio.to_thread(confinement.prepare)
            process, line = await _spawn(confinement, runtime, logs)
    except OSError as failure:
        await asyncio.to_thread(shutil.rmtree, workspace, ignore_errors=True)
        raise Unavailable(f"{SUBJECT} could not be started: {failure}.") from None
    return ViewerProcess(process, line, workspace)


def _prepare(
    workspace: Path, directories: Sequence[ShownDirectory], level: str
) -> tuple[Path, tuple[LentDirectory, ...]]:
    """Create the workspace. Return the directory for event files and the mounts in it."""
    shutil.rmtree(workspace, ignore_errors=True)
    logs = workspace / _LOGS
    logs.mkdir(parents=True)
    places = [(shown, logs / shown.label if shown.label else logs) for shown in directories]
    if level != protocol.LEVEL_SESSION:
        for _, place in places:
            # Create the mount points here, because the sandbox may not be able to create them.
            place.mkdir(exist_ok=True)
        return logs, tuple(LentDirectory(str(shown.base), shown.below, str(place)) for shown, place in places)
    # Create links instead of mounts. At this isolation level, mounts are impossible, and the process can read
    # all paths anyway.
    for shown, place in places:
        if place == logs:
            logs.rmdir()
        place.symlink_to(shown.base.joinpath(*shown.below))
    return logs, ()


async def _spawn(
    confinement: Confinement, runtime: PreparedRuntime, logs: Path
) -> tuple[Process, socket.socket]:
    """Start the keeper. Return the keeper's process and a connection to it. If the service closes this
    connection, the keeper ends."""
    program = await asyncio.to_thread(_PROGRAM.read_text)
    (listener,) = confinement.handles
    python = f"{runtime.template}/bin/python"
    command = [python, "-I", "-c", program, str(listener), str(logs)]
    line, theirs = socket.socketpair()
    with theirs:
        try:
            process = await asyncio.create_subprocess_exec(
                *confinement.command(command, theirs.fileno()),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                env=confinement.environ({"PATH": os.defpath, **_ONE_THREAD}, offline=True),
                cwd=confinement.workspace,
                pass_fds=(theirs.fileno(), *confinement.handles),
                start_new_session=True,
            )
        except BaseException:
            line.close()
            raise
    return process, line
