"""The store's ports for what is beside jobs, studies and metadata: operations, notifications, secrets,
models, evaluations, datasets, tensorboards and curves. Contract suite: tests/contract/store.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.datasets.records import Dataset, DatasetName
from trainshed.core.names import EvaluationName, JobUid, ModelName
from trainshed.core.notifications import BudgetNotice, Notification
from trainshed.core.pipelines.records import ModelEvaluation, ModelVersion
from trainshed.core.secrets import SecretRef
from trainshed.core.tensorboards.curves import CurveSeries
from trainshed.core.tensorboards.records import BoardName, BoardResource, Level
from trainshed.core.units import Nanos
from trainshed.store.records import Operation, OperationKind
from trainshed.summaries.reading import FileProgress


class Operations(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def begin(self, operation: Operation) -> None:
        """Store a RUNNING operation. Raises Unavailable (its name is taken)."""
        ...

    async def running(self, kind: OperationKind) -> tuple[Operation, ...]:
        """Return the operations of a kind that are not done, oldest first."""
        ...

    async def finish(self, operation: Operation) -> bool:
        """Store the operation as it ended. Returns False, and writes nothing, if it is done already or was
        deleted."""
        ...


class Outgoing(Struct, frozen=True):
    """A notification that is not delivered yet."""

    id: int
    notification: Notification
    #: The earliest time of the next try; ns since the epoch.
    due: Nanos
    #: How often it was tried without success.
    tries: int = 0


class Notifications(Protocol):
    """Every write is durable when its call returns; it does nothing if the notification was removed
    meanwhile."""

    async def waiting(self, limit: int) -> tuple[Outgoing, ...]:
        """Return the notifications that are to be tried next, ascending by `due`."""
        ...

    async def count(self) -> tuple[int, int]:
        """Return how many notifications wait, and how many of these were tried without success."""
        ...

    async def put_budgets(self, notices: Sequence[BudgetNotice]) -> None:
        """Put into the outbox what targets have not heard yet of budgets."""
        ...

    async def put_off(self, id_: int, due: Nanos) -> None:
        """Record that a try failed, and that the next one is at `due`."""
        ...

    async def remove(self, id_: int) -> None:
        """Remove a notification that was delivered or given up."""
        ...


class SecretVersion(Struct, frozen=True):
    """The public facts of one version. `created`, `used`: ns since the epoch; `used` 0 = no program was given
    it yet."""

    name: str
    version: int
    created: Nanos
    used: Nanos = 0


class Sealed(Struct, frozen=True):
    """A sealed value with its version number."""

    version: int
    content: bytes


class Stored(Struct, frozen=True):
    """A sealed value with its project, name and version."""

    project_id: str
    name: str
    version: int
    content: bytes


class Secrets(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def add(
        self, project_id: str, name: str, created: Nanos, seal: Callable[[int], bytes]
    ) -> SecretVersion:
        """Store the next version of a secret, or the first one of a new secret. `seal` is called with its
        number and returns what is stored; it runs in the writer's thread, and its exceptions are raised here.
        Numbers of deleted versions are not used again."""
        ...

    async def versions(self, project_id: str) -> tuple[SecretVersion, ...]:
        """Return all versions of a project's secrets, by name, newest version first."""
        ...

    async def find(self, project_id: str, refs: Iterable[SecretRef]) -> Mapping[SecretRef, Sealed]:
        """Return those of `refs` that exist. Cheap: a point lookup each."""
        ...

    async def has_any(self) -> bool:
        """Whether any project has a secret."""
        ...

    async def reseal(
        self, seal: Callable[[Stored], bytes | None]
    ) -> tuple[int, tuple[Stored, ...]]:
        """Replace every sealed value, of all projects, by what `seal` returns for it, all or none; None
        leaves a value as it is. Returns how many were replaced, and those that were left. `seal` runs in the
        writer's thread, so that nothing is added meanwhile, and its exceptions are raised here."""
        ...

    async def note_use(self, project_id: str, used: Sequence[tuple[str, int]], at: Nanos) -> None:
        """Record that programs were given these (name, version) at `at` (ns since the epoch); deleted ones
        are skipped."""
        ...

    async def delete(self, project_id: str, name: str, version: int = 0) -> None:
        """Delete one version, or all with `version` 0. Raises NotFound."""
        ...


class Models(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened. Writes take
    their finished operation and store it in the same transaction."""

    async def register(self, version: ModelVersion, operation: Operation) -> None:
        """Store a version: number 1 of a new model, or the one after the newest of a model that exists. It
        takes its aliases from other versions that had them. Raises AlreadyExists (the version exists),
        NotFound (it is a later version, and the model does not exist)."""
        ...

    async def version(self, name: ModelName, version: str) -> ModelVersion:
        """Return a version by number or alias; "" = the default one. Raises NotFound."""
        ...

    async def models(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[ModelVersion, ...]:
        """Return the default version of each model, newest model first, after the model id `after` if that is
        not ""."""
        ...

    async def versions(self, name: ModelName) -> tuple[ModelVersion, ...]:
        """Return all versions, newest first. Raises NotFound."""
        ...

    async def replace(self, versions: Sequence[ModelVersion]) -> None:
        """Replace existing versions by these, with their new labels, names and aliases, all or none. Raises
        NotFound."""
        ...

    async def delete_model(self, name: ModelName, operation: Operation) -> None:
        """Delete a model with all its versions. Raises NotFound."""
        ...

    async def delete_version(self, name: ModelName, version: int, operation: Operation) -> None:
        """Raises NotFound, FailedPrecondition (the default version of a model that has others)."""
        ...


class Evaluations(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def add(self, evaluation: ModelEvaluation) -> None:
        """Store an evaluation. Raises NotFound (no such version of the model)."""
        ...

    async def evaluation(self, name: EvaluationName) -> ModelEvaluation:
        """Raises NotFound."""
        ...

    async def evaluations(
        self, model: ModelName, version: int, below: int, limit: int
    ) -> tuple[ModelEvaluation, ...]:
        """Return the evaluations of one version, newest first, with ids below `below` if that is not 0."""
        ...


class Datasets(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create(self, dataset: Dataset, operation: Operation) -> None:
        """Store a dataset with the finished operation of its creation. Raises AlreadyExists."""
        ...

    async def dataset(self, name: DatasetName) -> Dataset:
        """Raises NotFound."""
        ...

    async def datasets(
        self, project_id: str, location: str, after: str, limit: int
    ) -> tuple[Dataset, ...]:
        """Return datasets, newest first, after the dataset id `after` if that is not ""."""
        ...

    async def change(
        self,
        name: DatasetName,
        change: Callable[[Dataset], Dataset],
        operation: Operation | None = None,
    ) -> Dataset:
        """Replace a dataset by what `change`, a pure function, returns for it, in one step, and store the
        finished operation of the change. Raises NotFound, and what `change` raises."""
        ...

    async def delete(self, name: DatasetName, operation: Operation) -> None:
        """Delete a dataset's record; its files stay. Raises NotFound."""
        ...


class Tensorboards(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create(
        self, resources: Sequence[BoardResource], operation: Operation | None = None
    ) -> tuple[BoardResource, ...]:
        """Store resources, all or none, each below a parent that exists. If a series with the same display
        name, type and plug-in exists, it is returned in place of the new one, because clients create series
        again without looking. A tensorboard that is the default replaces the former default of its location.
        Raises AlreadyExists, NotFound (a parent), InvalidRequest (another series of the run has that display
        name)."""
        ...

    async def resource(self, name: BoardName) -> BoardResource:
        """Raises NotFound."""
        ...

    async def below(
        self, parent: str, level: Level, after: str, limit: int
    ) -> tuple[BoardResource, ...]:
        """Return resources ascending by id, after the id `after` if that is not ""; `parent` may be a
        location. Raises NotFound (the parent does not exist)."""
        ...

    async def runs(
        self, names: Sequence[BoardName]
    ) -> tuple[tuple[BoardResource, tuple[BoardResource, ...]], ...]:
        """Return those of these runs that exist, each with at most a thousand of its series, ordered by
        id."""
        ...

    async def change(
        self,
        name: BoardName,
        change: Callable[[BoardResource], BoardResource],
        operation: Callable[[BoardResource], Operation] | None = None,
    ) -> BoardResource:
        """Replace a resource by what `change`, a pure function, returns for it, in one step. Raises NotFound,
        InvalidRequest (as `create`), and what `change` raises."""
        ...

    async def delete(self, name: BoardName, operation: Operation) -> tuple[int, ...]:
        """Delete a resource and everything below it. Returns the uids of the deleted runs. Raises
        NotFound."""
        ...


class Curves(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def put(self, job: JobUid, progress: FileProgress, series: Sequence[CurveSeries]) -> bool:
        """Store how far a file was read, and some series of it, each replacing what is stored of it, in one
        transaction. From then on the job may have files that were not read to their ends. Returns False if
        the job was deleted; then nothing is stored."""
        ...

    async def files(self, job: JobUid) -> tuple[FileProgress, ...]:
        """Return the files by path; none for a job that does not exist."""
        ...

    async def series(self, job: JobUid) -> tuple[CurveSeries, ...]:
        """Return the series by run and tag; none for a job that does not exist."""
        ...

    async def finish(self, job: JobUid) -> None:
        """Record that a job is over and its files were read to their ends."""
        ...

    async def unfinished(self) -> tuple[JobUid, ...]:
        """Return the jobs that are over and have files that may not have been read to their ends."""
        ...
