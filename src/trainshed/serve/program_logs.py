"""The engine's way into the logs of programs, as the api asks for it (`api.services.ProgramLogs`)."""

from collections.abc import Sequence

from trainshed.core.errors import Unavailable
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import EngineUnavailable


class EngineLogs:
    """Of one engine."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine

    async def write(
        self, job_uid: JobUid, attempt: int, replica: ReplicaId, lines: Sequence[str]
    ) -> None:
        try:
            await self._engine.write_log(job_uid, attempt, replica, lines)
        except EngineUnavailable as failure:
            raise Unavailable(
                f"The log of {replica} takes no lines now: {failure}; try again, or print them."
            ) from None
