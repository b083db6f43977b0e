"""What tests give an agent's process on its standard input."""

from trainshed.engines.remote.cluster import AgentInput, ProcessFacts


class Given(AgentInput):
    """Text that is known, and may begin at once."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    async def parcel(self, process: ProcessFacts) -> bytes:
        return self._text

    async def permission(self) -> None:
        """At once."""
