"""The other half of the engine port: shells in running replicas, and what is kept of failed ones.

An engine offers it if its capabilities say `terminals`.
"""

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import Autopsy, TerminalRequest

_NONE = "this engine has no shells"


class TerminalRefused(Exception):
    """There is no shell to be had there. The message says why."""


class Terminal(Protocol):
    """A shell in a replica, as its caller sees it. One reader and one writer at a time."""

    @property
    def status(self) -> int | None:
        """What the shell ended with, in a shell's own numbers; None while it runs, and if it went with its
        replica."""
        ...

    async def read(self) -> bytes:
        """What it shows next; b"" once it is over."""
        ...

    async def write(self, data: bytes) -> None:
        """Type that. Waits for a shell that does not read; nothing if it is over."""
        ...

    async def end_input(self) -> None:
        """There is no more to be typed."""
        ...

    def resize(self, rows: int, columns: int) -> None:
        """The terminal has another size."""
        ...

    def close(self) -> None:
        """Hang up: the shell ends. Twice is fine."""
        ...


@runtime_checkable
class Terminals(Protocol):
    """What such an engine offers besides `engines.port.Engine`."""

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        request: TerminalRequest,
    ) -> Terminal:
        """A shell beside the program of one live incarnation: in its view of the machine, with its rights and
        within its limits, and ended with it. It neither keeps the replica alive nor decides how it ends.
        Raises TerminalRefused."""
        ...

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        """What is kept of the job's failed replicas, by attempt and replica. Never blocks. A replica's files
        are kept when its slot is released, if it failed and was not stopped; as long as the engine is told
        to."""
        ...

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, request: TerminalRequest
    ) -> Terminal:
        """The same shell where nothing runs any more: in a view as the program had it, over the files that it
        left, with its environment but for secrets. Raises TerminalRefused."""
        ...

    def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        """The files, as a tar archive. Raises TerminalRefused when it is first asked for some."""
        ...

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        """Keep it no longer; whether there was any. Raises TerminalRefused: a shell is open in it."""
        ...


class NoTerminals:
    """The same of an engine that has no shells and keeps nothing of failed replicas."""

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        request: TerminalRequest,
    ) -> Terminal:
        raise TerminalRefused(_NONE)

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        return ()

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, request: TerminalRequest
    ) -> Terminal:
        raise TerminalRefused(_NONE)

    async def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        raise TerminalRefused(_NONE)
        yield b""

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        return False
