"""Pipeline jobs: runs of compiled pipelines, whose tasks are jobs. Pure.

This module contains only what the service itself must know: the record, which is stored, listed and cancelled
like a job. The addition `trainshed-pipelines` stores the tasks and decides the next step.
"""

from msgspec import Struct

from trainshed.core.failure.messages import INTERNAL
from trainshed.core.job import JobError
from trainshed.core.lifecycle.records import WorkRecord


class TaskCounts(Struct, frozen=True):
    """The numbers of tasks that run programs, by state. Iterations of loops count separately."""

    waiting: int = 0
    running: int = 0
    succeeded: int = 0
    #: Tasks that used the outputs of an earlier run.
    cached: int = 0
    failed: int = 0
    cancelled: int = 0
    not_triggered: int = 0

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in self.__struct_fields__)

    @property
    def finished(self) -> int:
        return self.total - self.waiting - self.running


class PipelineJob(WorkRecord, frozen=True, kw_only=True):
    """A run of a compiled pipeline. Its public JSON omits the compiled pipeline, which is large and stored
    separately."""

    #: Name of the compiled pipeline.
    template: str
    #: The service account of the tasks. None selects the project's default account.
    service_account: str | None = None
    #: The `gs://` directory below which the tasks write.
    root: str
    #: Name of the schedule that started the run, or None.
    schedule: str | None = None
    #: Number of steps that are stored. Each step increases it.
    steps: int = 0
    counts: TaskCounts = TaskCounts()
    #: Notices for the timeline: fields of the request that have no effect.
    notices: tuple[str, ...] = ()


UNSERVED = JobError(
    INTERNAL,
    "Pipeline jobs need the addition trainshed-pipelines, which is not installed. Run pip install "
    "'trainshed[service,pipelines]' and restart the service.",
)
