"""The ports through which the controller's carrier works: the engine, the runtimes, datasets, a job's buckets
and its log."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from trainshed.controller.launch_plans import LaunchDefaults
from trainshed.core.lifecycle.events import Event
from trainshed.core.names import JobUid
from trainshed.datasets.port import SplitFiles
from trainshed.engines.port import Engine
from trainshed.runtimes.port import Runtimes
from trainshed.store.logs.service_log import ServiceLog


class JobBuckets(Protocol):
    """Answers questions about the buckets of a job. Blocking, so called from a worker thread, except for
    `shown`."""

    def shown(self, project: str) -> tuple[tuple[str, str], ...]:
        """Return (name, directory) of the buckets that a project's programs may see. Does not block. Raises
        EngineUnavailable."""
        ...

    def write_probe(self, uri: str) -> None:
        """Raise OSError or ValueError, with the reason, if a program could not write there."""
        ...


class Ports(Struct, frozen=True):
    """Everything that instructions are carried out through."""

    engine: Engine
    runtimes: Runtimes
    #: Writes the splits of datasets that programs read.
    datasets: SplitFiles
    buckets: JobBuckets
    #: Takes the output of preparations.
    log: ServiceLog
    launch_defaults: LaunchDefaults
    #: Gives an event back to the control loop.
    report: Callable[[JobUid, Event], None]
    #: How long a stopped program has to end by itself, in ns.
    grace: int
