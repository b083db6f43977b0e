"""Stores studies, trials, measurements, and the operations that wait for suggestions, in SQLite.

Only requests of clients change the trials of a study, so these changes do not depend on which controller is
the leader. Each change reads and writes the trial in one transaction. For tuning jobs, the controller's
commits write the trials. This module only reads those trials.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from trainshed.core.errors import AlreadyExists, FailedPrecondition, NotFound
from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import StudyName
from trainshed.core.study import changes
from trainshed.core.study.records import Measurement, Study, StudyUid, Trial
from trainshed.core.units import Nanos
from trainshed.store.codec import MEASUREMENT, OPERATION, STUDY, TRIAL
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import (
    Parameters,
    decode_readable,
    load_statements,
    missing,
    read_existing,
    records,
)
from trainshed.store.sqlite.tables import Resources, insert_operation

_SQL = load_statements("studies.sql")
_TRIALS = load_statements("trials.sql")
_OPERATIONS = load_statements("operations.sql")
_NOT_FOUND = 5
"""The google.rpc.Code NOT_FOUND."""


class Studies(Resources[StudyName, Study]):
    sql = _SQL
    codec = STUDY

    def columns(self, record: Study) -> Parameters:
        return super().columns(record) | {"uid": record.uid, "display_name": record.display_name}

    def insert(self, connection: sqlite3.Connection, record: Study) -> Study:
        """Store a study. Raise AlreadyExists if the location has a study with its display name or name."""
        columns = self.columns(record)
        for other in records(connection, _SQL["called"], columns, STUDY):
            raise AlreadyExists(
                f"a study with the display name {other.display_name!r} already exists "
                f"({other.name}); use it, or choose another display name"
            )
        super().insert(connection, record)
        connection.execute(_SQL["begin_numbers"], columns)
        return record

    async def study_by_uid(self, uid: StudyUid) -> Study:
        """Return a study. Raise NotFound."""
        return self._snapshots.read_now(lambda connection: _study_by_uid(connection, uid))

    async def lookup_study(self, project_id: str, location: str, display_name: str) -> Study:
        """Return the study with this display name. Raise NotFound."""
        parameters = {"project_id": project_id, "location": location, "display_name": display_name}
        what = f"a study with the display name {display_name!r} in projects/{project_id}/locations/{location}"
        return self._snapshots.read_now(
            lambda connection: read_existing(connection, _SQL["called"], parameters, STUDY, what)
        )

    async def delete_study(self, name: StudyName, now: Nanos) -> StudyUid:
        """Delete a study with its trials, measurements and finished operations. Unfinished operations fail
        with NOT_FOUND at the time `now` (ns). They are kept for waiting clients. Raise NotFound."""

        def work(connection: sqlite3.Connection) -> StudyUid:
            uid = self.read(connection, name).uid
            error = JobError(_NOT_FOUND, f"{name} was deleted while the operation ran")
            for operation in _running_operations(connection, uid):
                failed = replace(operation, state=OperationState.FAILED, error=error, updated=now)
                _finish_operation(connection, failed)
                connection.execute(_OPERATIONS["orphan_operation"], {"name": operation.name})
            for statement in ("delete", "delete_numbers", "delete_trials", "delete_measurements"):
                connection.execute(_SQL[statement], {"uid": uid})
            connection.execute(_SQL["delete_operations"], {"uid": uid})
            return uid

        return await self._writer.run("delete_study", work)

    async def create_trial(self, trial: Trial, measurements: Sequence[Measurement] = ()) -> Trial:
        """Store a new trial under the next number of its study. Return the trial with that number. Numbers of
        deleted trials are not used again. Raise NotFound if the study does not exist."""

        def work(connection: sqlite3.Connection) -> Trial:
            numbered = _add_trial(connection, trial)
            rows = [measurement_parameters(numbered.study, numbered.number, m) for m in measurements]
            put_measurements(connection, rows)
            return numbered

        return await self._writer.run("create_trial", work)

    async def trial(self, study: StudyUid, number: int) -> Trial:
        """Return a trial. Raise NotFound."""
        return self._snapshots.read_now(lambda connection: _trial(connection, study, number))

    async def trials(self, study: StudyUid, after: int, limit: int) -> tuple[Trial, ...]:
        """Return at most `limit` trials with numbers above `after`, in ascending order."""
        parameters = {"study_uid": study, "after": after, "limit": limit}
        return await self._records(_TRIALS["trials"], parameters, TRIAL)

    async def history(self, studies: Sequence[StudyUid]) -> tuple[Trial, ...]:
        """Return all trials of these studies, as `studies.port.Algorithm` reads them: ordered by study and
        number."""

        def read(connection: sqlite3.Connection) -> tuple[Trial, ...]:
            return tuple(
                chain.from_iterable(
                    records(connection, _TRIALS["history"], {"study_uid": study}, TRIAL) for study in studies
                )
            )

        return await self._snapshots.read_async(read)

    async def measurements(
        self, study: StudyUid, numbers: Sequence[int] | None = None
    ) -> dict[int, tuple[Measurement, ...]]:
        """Return measurements by trial, ordered by step and elapsed time. `numbers`: the trials; None = all
        trials. The result omits trials without measurements."""

        def read(connection: sqlite3.Connection) -> dict[int, tuple[Measurement, ...]]:
            by_trial: dict[int, list[Measurement]] = {}
            for statement, parameters in _measurement_queries(study, numbers):
                for number, measured in _read_measurements(connection, statement, parameters):
                    by_trial.setdefault(number, []).append(measured)
            return {number: tuple(measured) for number, measured in by_trial.items()}

        return await self._snapshots.read_async(read)

    async def change_trial(
        self,
        study: StudyUid,
        number: int,
        change: Callable[[Trial, Callable[[], Sequence[Measurement]]], Trial],
        measurement: Measurement | None = None,
    ) -> Trial:
        """Replace a trial by the result of `change`, and add a measurement, in one transaction.

        `change`: a pure function that returns the new trial. Its arguments are the stored trial, and a
        function that returns the trial's measurements. `measurement`: replaces a measurement with the same
        step and elapsed time. Raise NotFound, and the errors of `change`.
        """

        def work(connection: sqlite3.Connection) -> Trial:
            def measurements() -> Sequence[Measurement]:
                key = {"study_uid": study, "number": number}
                return [measured for _, measured in _read_measurements(connection, "measurements_of", key)]

            old = _trial(connection, study, number)
            new = change(old, measurements)
            if new != old:
                put_trials(connection, [trial_parameters(new)])
            if measurement is not None:
                put_measurements(connection, [measurement_parameters(study, number, measurement)])
            return new

        return await self._writer.run("change_trial", work)

    async def delete_trial(self, study: StudyUid, number: int) -> None:
        """Delete a trial. Raise NotFound."""
        parameters = {"study_uid": study, "number": number}

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_TRIALS["delete_trial"], parameters).rowcount != 1:
                raise missing(_trial_name(study, number))
            connection.execute(_TRIALS["delete_measurements"], parameters)

        await self._writer.run("delete_trial", work)

    async def begin_operation(self, operation: Operation) -> None:
        """Store a RUNNING operation. Raise NotFound if the study does not exist."""

        def work(connection: sqlite3.Connection) -> None:
            # Check that the study exists. An operation of a deleted study would never finish.
            if operation.study:
                _study_by_uid(connection, operation.study)
            insert_operation(connection, operation)

        await self._writer.run("begin_operation", work)

    async def running_operations(self, study: StudyUid | None = None) -> tuple[Operation, ...]:
        """Return the unfinished operations of a study, oldest first. `study`: None = all studies."""
        return self._snapshots.read_now(lambda connection: _running_operations(connection, study))

    async def delete_operation(self, name: str) -> None:
        """Delete a finished operation of any kind. Raise NotFound, or FailedPrecondition if it is running."""

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_OPERATIONS["delete_operation"], {"name": name}).rowcount == 1:
                return
            if connection.execute(_OPERATIONS["is_there"], {"name": name}).fetchone() is None:
                raise NotFound(f"{name} does not exist; check the name of the operation")
            raise FailedPrecondition(
                f"{name} has not finished; cancel it, or wait until it has finished, before you delete it"
            )

        await self._writer.run("delete_operation", work)

    async def finish_operation(
        self, operation: Operation, *, assigned: Sequence[int] = (), suggested: Sequence[Trial] = ()
    ) -> Operation:
        """Store a finished operation and the trials that it assigns to its client, in one transaction. Return
        the operation in its stored form.

        All trial numbers are added to `operation.trials`, in this order:

        - assigned: requested trials, which now belong to the client.
        - suggested: new trials, which receive the next numbers.

        Raise StaleCommit if a trial of `assigned` is no longer requested, or if the operation has finished or
        was deleted.
        """

        def work(connection: sqlite3.Connection) -> Operation:
            try:
                requested = [_trial(connection, operation.study, number) for number in assigned]
                handed_out = [
                    changes.assign(trial, operation.client, operation.updated) for trial in requested
                ]
                put_trials(connection, map(trial_parameters, handed_out))
                handed_out += [_add_trial(connection, trial) for trial in suggested]
            except (NotFound, FailedPrecondition) as changed:
                # A client has changed the trial since it was read. Nothing is stored.
                raise StaleCommit(str(changed)) from changed
            numbers = [trial.number for trial in handed_out]
            finished = replace(operation, trials=(*operation.trials, *numbers))
            if not _finish_operation(connection, finished):
                raise StaleCommit(f"{operation.name} has already finished, or was deleted")
            return finished

        return await self._writer.run("finish_operation", work)


def _read_measurements(
    connection: sqlite3.Connection, statement: str, parameters: Parameters
) -> Iterator[tuple[int, Measurement]]:
    """Yield measurements, each with the number of its trial."""
    rows = connection.execute(_TRIALS[statement], parameters)
    return decode_readable(rows, lambda row: (row[0], MEASUREMENT.decode(row[1])))


def _trial(connection: sqlite3.Connection, study: StudyUid, number: int) -> Trial:
    key = {"study_uid": study, "number": number}
    return read_existing(connection, _TRIALS["trial"], key, TRIAL, _trial_name(study, number))


def _add_trial(connection: sqlite3.Connection, trial: Trial) -> Trial:
    """Store a new trial of a client under the next number of its study. Return the trial with that number.
    Raise NotFound if the study does not exist."""
    # Use fetchall instead of fetchone: the COMMIT would fail while rows of a RETURNING statement are unread.
    rows = connection.execute(_TRIALS["next_number"], {"study_uid": trial.study}).fetchall()
    if not rows:
        raise NotFound(
            f"the study with number {trial.study} does not exist; it may have been deleted in the meantime"
        )
    numbered = replace(trial, number=rows[0][0])
    connection.execute(_TRIALS["put_trial"], trial_parameters(numbered))
    return numbered


def _study_by_uid(connection: sqlite3.Connection, uid: StudyUid) -> Study:
    what = f"the study with number {uid}"
    return read_existing(connection, _SQL["study_by_uid"], {"uid": uid}, STUDY, what)


def _trial_name(study: StudyUid, number: int) -> str:
    return f"trial {number} of the study with number {study}"


def _measurement_queries(study: StudyUid, numbers: Sequence[int] | None) -> Iterator[tuple[str, Parameters]]:
    """Yield statements that select the measurements of these trials. None = of all trials."""
    if numbers is None:
        yield "measurements", {"study_uid": study}
    for number in dict.fromkeys(numbers or ()):
        yield "measurements_of", {"study_uid": study, "number": number}


def _finish_operation(connection: sqlite3.Connection, operation: Operation) -> bool:
    """Store a finished operation. Return False without any write if it has already finished or was
    deleted."""
    parameters = {"name": operation.name, "record": OPERATION.encode(operation)}
    return connection.execute(_OPERATIONS["finish_operation"], parameters).rowcount == 1


def _running_operations(connection: sqlite3.Connection, study: StudyUid | None) -> tuple[Operation, ...]:
    """Return the unfinished operations of a study, oldest first. `study`: None = all studies."""
    statement = "running_operations" if study is None else "running_operations_of_study"
    return records(connection, _OPERATIONS[statement], {"study_uid": study}, OPERATION)


def trial_parameters(trial: Trial) -> Parameters:
    return {"study_uid": trial.study, "number": trial.number, "record": TRIAL.encode(trial)}


def measurement_parameters(study: StudyUid, number: int, measurement: Measurement) -> Parameters:
    return {
        "study_uid": study,
        "number": number,
        "step": measurement.step,
        "elapsed": measurement.elapsed,
        "record": MEASUREMENT.encode(measurement),
    }


def put_trials(connection: sqlite3.Connection, rows: Iterable[Parameters]) -> None:
    """Store trials without checking a generation. A trial replaces the stored trial with its number."""
    connection.executemany(_TRIALS["put_trial"], rows)


def put_measurements(connection: sqlite3.Connection, rows: Iterable[Parameters]) -> None:
    """Store measurements. A measurement replaces one with the same step and elapsed time."""
    connection.executemany(_TRIALS["put_measurement"], rows)
