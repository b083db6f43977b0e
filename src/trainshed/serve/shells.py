"""The engine's terminals and autopsies, as the api asks for them (`api.services.Shells`)."""

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Generator

from trainshed.api.services import Terminal
from trainshed.api.shell.tickets import Links, Tickets
from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import Autopsy, TerminalWish
from trainshed.engines.port import EngineUnavailable
from trainshed.engines.terminals import TerminalRefused, Terminals


class EngineShells:
    """`allowed`: whether shells are opened at all. `idle`: seconds without a byte after which one is hung up, 0 = never."""

    def __init__(
        self, engine: Terminals, tickets: Tickets, links: Links, *, allowed: bool, idle: float
    ) -> None:
        self.tickets = tickets
        self.links = links
        self.allowed = allowed
        self.idle = idle
        self._engine = engine

    async def open(
        self,
        job_uid: JobUid,
        attempt: int,
        replica: ReplicaId,
        incarnation: int,
        wish: TerminalWish,
    ) -> Terminal:
        with _told(f"There is no shell in {replica}"):
            return await self._engine.open_terminal(job_uid, attempt, replica, incarnation, wish)

    def autopsies(self, job_uid: JobUid) -> tuple[Autopsy, ...]:
        return self._engine.autopsies(job_uid)

    async def open_autopsy(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, wish: TerminalWish
    ) -> Terminal:
        with _told(f"There is no shell in what {replica} left"):
            return await self._engine.open_autopsy(job_uid, attempt, replica, wish)

    async def autopsy_files(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId
    ) -> AsyncGenerator[bytes]:
        with _told(f"There are no files of {replica}"):
            files = self._engine.autopsy_files(job_uid, attempt, replica)
            async with contextlib.aclosing(files):
                async for chunk in files:
                    yield chunk

    async def delete_autopsy(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> bool:
        with _told(f"What {replica} left cannot be deleted"):
            return await self._engine.delete_autopsy(job_uid, attempt, replica)


def link_key(owner_token: str) -> bytes:
    """What signs the links of jobs: the same after a restart, another one once the owner's token is another."""
    return hashlib.sha256(b"trainshed web access " + owner_token.encode()).digest()


@contextlib.contextmanager
def _told(what: str) -> Generator[None]:
    try:
        yield
    except TerminalRefused as refused:
        raise FailedPrecondition(f"{what}: {refused}.") from None
    except EngineUnavailable as failure:
        raise Unavailable(f"{what} now: {failure}; try again.") from None
