"""The optional half of the engine port: shells in running replicas, and the files that are kept of failed
ones.

An engine implements it if its capabilities say `terminals`.
"""

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import Autopsy, Terminal, TerminalRequest

_NONE = "this engine has no shells"
_NOTHING_KEPT = "this engine keeps nothing of failed replicas"


class TerminalRefused(Exception):
    """No shell can be opened there. The message says why."""


@runtime_checkable
class Terminals(Protocol):
    """What such an engine implements besides `engines.port.Engine`."""

    async def open_terminal(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        request: TerminalRequest,
    ) -> Terminal:
        """Open a shell beside the program of one live incarnation, or a connection to a port as the program
        could make it: it has the program's view of the machine, its rights and its limits, and is ended with
        it. It neither keeps the replica alive nor decides how that ends. Raises TerminalRefused."""
        ...

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        """Return what is kept of the job's failed replicas, in order of attempt and replica. Never blocks. A
        replica's files are kept when its slot is released, if it failed and was not stopped, for as long as
        the operator has set."""
        ...

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, request: TerminalRequest
    ) -> Terminal:
        """Open a shell where a failed replica's program ran: with the program's view of the machine, the
        files that it left, and its environment without secrets. Raises TerminalRefused."""
        ...

    def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        """Yield the files as a tar archive. Raises TerminalRefused at the first item."""
        ...

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        """Delete what is kept of a replica; return whether there was any. Raises TerminalRefused if a shell
        is open in it."""
        ...


class NoTerminals:
    """`Terminals` of an engine that has no shells and keeps nothing of failed replicas."""

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
        raise TerminalRefused(_NOTHING_KEPT)

    async def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        raise TerminalRefused(_NOTHING_KEPT)
        yield b""

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        return False
