"""The store's port for studies, trials, measurements, and the operations that wait for suggestions.

Only the requests of its clients decide about a study's trials, so there is no controller's lease here: each
write is guarded by the trial's own generation (docs/adr/0017). Trials of tuning jobs are written by the
controller's commits (`store.port.Commit`) and only read here. Contract suite: tests/contract/store.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from trainshed.core.names import StudyName
from trainshed.core.study.records import Measurement, Study, StudyState, StudyUid, Trial
from trainshed.core.units import Nanos
from trainshed.store.records import Operation


class StoredTrial(Struct, frozen=True):
    """A trial with the generation that guards its next change."""

    trial: Trial
    generation: int


class Studies(Protocol):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create_study(self, study: Study) -> None:
        """Store a study. Raises AlreadyExists if the location has a study of that display name or name."""
        ...

    async def study(self, name: StudyName) -> Study:
        """Raises NotFound."""
        ...

    async def study_by_uid(self, uid: StudyUid) -> Study:
        """Raises NotFound."""
        ...

    async def lookup_study(self, project_id: str, location: str, display_name: str) -> Study:
        """Raises NotFound."""
        ...

    async def studies(
        self, project_id: str, location: str, after: StudyUid, limit: int
    ) -> tuple[Study, ...]:
        """Return at most `limit` studies, newest first, below `after` if that is not 0."""
        ...

    async def set_study_state(self, uid: StudyUid, state: StudyState, reason: str) -> None:
        """Raises NotFound."""
        ...

    async def delete_study(self, name: StudyName, now: Nanos) -> StudyUid:
        """Delete a study with its trials, measurements and operations. Those of its operations that still run
        fail with NOT_FOUND at `now` (ns), and stay for the clients that wait for them. Raises NotFound."""
        ...

    async def create_trial(self, trial: Trial, measurements: Sequence[Measurement] = ()) -> Trial:
        """Store a new trial under the next number of its study, and return it with that number; numbers of
        deleted trials are not used again. Raises NotFound (no such study)."""
        ...

    async def trial(self, study: StudyUid, number: int) -> StoredTrial:
        """Raises NotFound."""
        ...

    async def trials(self, study: StudyUid, after: int, limit: int) -> tuple[Trial, ...]:
        """Return at most `limit` trials, ascending by number, above `after`."""
        ...

    async def history(self, studies: Sequence[StudyUid]) -> tuple[Trial, ...]:
        """Return all trials of these studies, one study after the other, ascending by number: the trials that
        an algorithm is shown."""
        ...

    async def measurements(
        self, study: StudyUid, numbers: Sequence[int] | None = None
    ) -> dict[int, tuple[Measurement, ...]]:
        """Return measurements by trial, ascending by (step, elapsed); of all trials if `numbers` is None. A
        trial without any is absent."""
        ...

    async def change_trial(
        self, trial: Trial, expected_generation: int, measurement: Measurement | None = None
    ) -> int:
        """Replace a trial and add a measurement to it (one of the same step and elapsed time is replaced).
        Returns the new generation. Raises StaleCommit (the trial changed since, or was deleted)."""
        ...

    async def delete_trial(self, study: StudyUid, number: int) -> None:
        """Raises NotFound."""
        ...

    async def begin_operation(self, operation: Operation) -> None:
        """Store a RUNNING operation. Raises NotFound (no such study)."""
        ...

    async def running_operations(self, study: StudyUid | None = None) -> tuple[Operation, ...]:
        """Return the operations that are not done, oldest first; of all studies if `study` is None."""
        ...

    async def delete_operation(self, name: str) -> None:
        """Delete an operation that is done, of any kind. Raises NotFound, FailedPrecondition (it is
        running)."""
        ...

    async def finish_operation(
        self,
        operation: Operation,
        *,
        assigned: Sequence[StoredTrial] = (),
        suggested: Sequence[Trial] = (),
    ) -> Operation:
        """Store the operation as it ended, in one transaction with the trials that it hands out: `assigned`
        ones change (guarded by their generations), `suggested` ones are new and get the next numbers. The
        numbers of all, `assigned` first, then `suggested`, are added to `operation.trials`. Returns the
        operation as stored. Raises StaleCommit (a trial changed since, or the operation is done or was
        deleted)."""
        ...
