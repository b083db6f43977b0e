"""What the controller's carrier works through: the engine, the runtimes, datasets, a job's buckets and its
log."""

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.core.lifecycle.events import Event
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.datasets.port import SplitFiles
from trainshed.engines.port import Engine
from trainshed.runtimes.port import Runtimes


class JobBuckets(Protocol):
    """What is asked about the buckets of a job. Blocking; called from a worker thread, but for `shown`."""

    def shown(self, project: str) -> tuple[tuple[str, str], ...]:
        """(name, directory) of the buckets that a project's programs may see. Answers at once. Raises
        EngineUnavailable."""
        ...

    def write_probe(self, uri: str) -> None:
        """Raises OSError or ValueError saying why a program could not write there."""
        ...

    def last_written(self, uri: str) -> Nanos | None:
        """When something below it was last written, 0 = there is nothing, None = it cannot be known."""
        ...


class PreparationLog(Protocol):
    """The service's own part of a job's log (`store.logs.service_log.ServiceLog`)."""

    async def begin(self, uid: JobUid, attempt: int, notices: Sequence[str]) -> None:
        """Have an attempt's log begin with the notices, unless it has begun. Raises OSError."""
        ...

    async def append(self, uid: JobUid, attempt: int, lines: Sequence[str]) -> None:
        """Write lines, which can be read when it returns. Raises OSError."""
        ...


class Ports(Struct, frozen=True):
    """All that instructions are carried out through."""

    engine: Engine
    runtimes: Runtimes
    #: Writes what programs read of datasets.
    datasets: SplitFiles
    buckets: JobBuckets
    #: Takes the lines of preparations.
    log: PreparationLog
    launch_defaults: LaunchDefaults
    #: Gives an event back to the control loop.
    report: Callable[[JobUid, Event], None]
    #: What a program that is stopped is given to end by itself, in ns.
    grace: int
