"""A service with fake shells. They record the user's input and show output that the test sets."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.contract.api.api_service import ApiService
from trainshed.access.permissions import PROGRAM as PROGRAM_MAY
from trainshed.access.principals import Principal, Rights
from trainshed.api.rest import ApiApplication
from trainshed.core.errors import Unauthenticated
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import Autopsy, TerminalRefused, TerminalRequest
from trainshed.serve.issuers import Issuers

PROGRAM = Principal("job@p1.example", Rights(projects={"p1": PROGRAM_MAY}))


class FakeTerminal:
    """Implements `core.terminals.Terminal`. It echoes the input, or returns `answer` if it is set."""

    def __init__(self, answer: bytes = b"") -> None:
        self._answer = answer
        self.status: int | None = None
        self.typed = b""
        self.ended = False
        self.sizes: list[tuple[int, int]] = []
        self.closed = False
        self._shown: asyncio.Queue[bytes] = asyncio.Queue()

    def show(self, data: bytes) -> None:
        self._shown.put_nowait(data)

    def end(self, status: int | None) -> None:
        self.status = status
        self._shown.put_nowait(b"")

    async def read(self) -> bytes:
        return await self._shown.get()

    async def write(self, data: bytes) -> None:
        self.typed += data
        self.show(self._answer or data)

    async def end_input(self) -> None:
        self.ended = True
        self.end(0)

    def resize(self, rows: int, columns: int) -> None:
        self.sizes.append((rows, columns))

    def close(self) -> None:
        self.closed = True
        self._shown.put_nowait(b"")


class FakeShells:
    """Implements `core.terminals.Terminals`."""

    def __init__(self) -> None:
        self.opened: list[tuple[JobUid, int, ReplicaId, int, TerminalRequest]] = []
        self.terminals: list[FakeTerminal] = []
        self.kept: dict[tuple[JobUid, int, ReplicaId], Autopsy] = {}
        self.refusal = ""
        #: The response of every port of a program.
        self.answer = b""

    async def open_terminal(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, incarnation: int, wish: TerminalRequest
    ) -> FakeTerminal:
        if self.refusal:
            raise TerminalRefused(self.refusal)
        self.opened.append((job_uid, attempt, replica, incarnation, wish))
        self.terminals.append(FakeTerminal(self.answer if wish.port else b""))
        return self.terminals[-1]

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        return tuple(self.kept[key] for key in sorted(self.kept) if key[0] == job_uid)

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, wish: TerminalRequest
    ) -> FakeTerminal:
        return await self.open_terminal(job_uid, attempt, replica, 0, wish)

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        return self.kept.pop((job_uid, attempt, replica), None) is not None


class Socket:
    """A client's end of a WebSocket: records received messages and sends the test's messages."""

    def __init__(self) -> None:
        self.accepted = False
        self.close_code = 0
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._came: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        return await self.sent.get()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.accept":
            self.accepted = True
        else:
            self._came.put_nowait(message)

    def send_text(self, **order: Any) -> None:
        self.sent.put_nowait({"type": "websocket.receive", "text": json.dumps(order)})

    def type(self, data: bytes) -> None:
        self.sent.put_nowait({"type": "websocket.receive", "bytes": data})

    def hang_up(self) -> None:
        self.sent.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def next(self) -> Any:
        """Return the next message: bytes, or the value of a text message. Return None when the
        socket is closed."""
        message = await asyncio.wait_for(self._came.get(), 60)
        if message["type"] == "websocket.close":
            self.close_code = message["code"]
            return None
        data = message.get("bytes")
        return data if data is not None else json.loads(message["text"])


class ApiServiceWithShells(ApiService):
    """A service with shells, and with a program that has a token of its own."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.shells = FakeShells()
        self.services = replace(self.services, shells=self.shells, allows_shells=True)
        self.app = self.application(authenticate=_with_program(self.issuers))


@asynccontextmanager
async def connect(app: ApiApplication) -> AsyncGenerator[Socket]:
    """Open a WebSocket to the address of shells."""
    socket = Socket()
    headers = [(b"host", b"trainshed.example")]
    scope = {"type": "websocket", "path": "/shell/connect", "headers": headers, "query_string": b""}
    socket.sent.put_nowait({"type": "websocket.connect"})
    task = asyncio.create_task(app(scope, socket.receive, socket.send))
    try:
        yield socket
    finally:
        socket.hang_up()
        await asyncio.wait_for(task, 60)


def _with_program(known: Issuers) -> Any:
    async def authenticate(header: str | None) -> Principal:
        try:
            return await known.authenticate(header)
        except Unauthenticated:
            if header == "Bearer of-a-program":
                return PROGRAM
            raise

    return authenticate
