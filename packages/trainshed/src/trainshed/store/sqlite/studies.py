"""Studies, trials, measurements, and the operations that wait for suggestions, in SQLite.

Only the requests of its clients decide about a study's trials, so there is no controller's lease here: each
write is guarded by the trial's own generation (docs/adr/0017). Trials of tuning jobs are written by the
controller's commits and only read here.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NoReturn

from msgspec.structs import asdict, replace

from trainshed.core.errors import AlreadyExists, NotFound, Unavailable
from trainshed.core.names import StudyName
from trainshed.core.study.records import Measurement, Study, StudyState, StudyUid, Trial
from trainshed.core.units import Nanos
from trainshed.store.codec import MEASUREMENT, STUDY, TRIAL
from trainshed.store.port import StaleCommit
from trainshed.store.records import Operation, StoredTrial
from trainshed.store.sqlite import writes
from trainshed.store.sqlite.connections import (
    Parameters,
    Port,
    existing,
    load_statements,
    no_collection,
    records,
)
from trainshed.store.sqlite.rows import ABOVE_ALL_UIDS
from trainshed.store.sqlite.writes import (
    add_trial,
    change_trial,
    measurement_parameters,
    put_measurements,
)

_SQL = load_statements("studies.sql")
_TRIALS = load_statements("trials.sql")


class Studies(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened."""

    async def create_study(self, study: Study) -> None:
        """Store a study. Raises AlreadyExists if the location has a study of that display name or name."""
        parameters = asdict(study.name) | {
            "uid": study.uid,
            "display_name": study.display_name,
            "record": STUDY.encode(study),
        }

        def work(connection: sqlite3.Connection) -> None:
            taken = connection.execute(_SQL["taken_by"], parameters).fetchall()
            if taken:
                _refuse(study, taken)
            connection.execute(_SQL["insert_study"], parameters)
            connection.execute(_SQL["begin_numbers"], parameters)

        await self._writer.run("create_study", work)

    async def study(self, name: StudyName) -> Study:
        """Raises NotFound."""
        return self._snapshots.here(lambda connection: _study(connection, name))

    async def study_by_uid(self, uid: StudyUid) -> Study:
        """Raises NotFound."""
        return self._snapshots.here(lambda connection: _study_by_uid(connection, uid))

    async def lookup_study(self, project_id: str, location: str, display_name: str) -> Study:
        """Raises NotFound."""
        parameters = {"project_id": project_id, "location": location, "display_name": display_name}
        what = f"a study called {display_name!r} in projects/{project_id}/locations/{location}"
        return self._snapshots.here(
            lambda connection: existing(connection, _SQL["lookup_study"], parameters, STUDY, what)
        )

    async def studies(
        self, project_id: str, location: str, after: StudyUid, limit: int
    ) -> tuple[Study, ...]:
        """Return at most `limit` studies, newest first, below `after` if that is not 0."""
        parameters = {
            "project_id": project_id,
            "location": location,
            "below": after or ABOVE_ALL_UIDS,
            "limit": limit,
        }
        return await self._records(_SQL["studies"], parameters, STUDY)

    async def set_study_state(self, uid: StudyUid, state: StudyState, reason: str) -> None:
        """Raises NotFound."""

        def work(connection: sqlite3.Connection) -> None:
            study = replace(_study_by_uid(connection, uid), state=state, inactive_reason=reason)
            connection.execute(_SQL["replace_study"], {"uid": uid, "record": STUDY.encode(study)})

        await self._writer.run("set_study_state", work)

    async def delete_study(self, name: StudyName, now: Nanos) -> StudyUid:
        """Delete a study with its trials, measurements and operations. Those of its operations that still run
        fail with NOT_FOUND at `now` (ns), and stay for the clients that wait for them. Raises NotFound."""

        def work(connection: sqlite3.Connection) -> tuple[StudyUid, bool]:
            uid = _study(connection, name).uid
            hide_study(connection, uid, name, now)
            return uid, delete_some(connection, uid)

        uid, is_done = await self._writer.run("delete_study", work)
        # The study is hidden from all requests by now: what cannot be deleted is deleted at the next start.
        with contextlib.suppress(Unavailable):
            while not is_done:
                is_done = await self._writer.run(
                    "delete_rest", lambda connection: delete_some(connection, uid)
                )
        return uid

    async def create_trial(self, trial: Trial, measurements: Sequence[Measurement] = ()) -> Trial:
        """Store a new trial under the next number of its study, and return it with that number; numbers of
        deleted trials are not used again. Raises NotFound (no such study)."""

        def work(connection: sqlite3.Connection) -> Trial:
            numbered = add_trial(connection, trial)
            put_measurements(
                connection,
                [
                    measurement_parameters(numbered.study, numbered.number, measurement)
                    for measurement in measurements
                ],
            )
            return numbered

        return await self._writer.run("create_trial", work)

    async def trial(self, study: StudyUid, number: int) -> StoredTrial:
        """Raises NotFound."""
        parameters = {"study_uid": study, "number": number}

        def read(connection: sqlite3.Connection) -> StoredTrial:
            row = connection.execute(_TRIALS["trial"], parameters).fetchone()
            if row is None:
                raise _no_trial(study, number)
            record, generation = row
            return StoredTrial(TRIAL.decode(record), generation)

        return self._snapshots.here(read)

    async def trials(self, study: StudyUid, after: int, limit: int) -> tuple[Trial, ...]:
        """Return at most `limit` trials, ascending by number, above `after`."""
        parameters = {"study_uid": study, "after": after, "limit": limit}
        return await self._records(_TRIALS["trials"], parameters, TRIAL)

    async def history(self, studies: Sequence[StudyUid]) -> tuple[Trial, ...]:
        """Return all trials of these studies, one study after the other, ascending by number: the trials that
        an algorithm is shown."""

        def read(connection: sqlite3.Connection) -> tuple[Trial, ...]:
            with no_collection():
                return tuple(
                    chain.from_iterable(
                        records(connection, _TRIALS["history"], {"study_uid": study}, TRIAL)
                        for study in studies
                    )
                )

        return await self._snapshots.aside(read)

    async def measurements(
        self, study: StudyUid, numbers: Sequence[int] | None = None
    ) -> dict[int, tuple[Measurement, ...]]:
        """Return measurements by trial, ascending by (step, elapsed); of all trials if `numbers` is None. A
        trial without any is absent."""

        def read(connection: sqlite3.Connection) -> dict[int, tuple[Measurement, ...]]:
            by_trial: dict[int, list[Measurement]] = {}
            for statement, parameters in _asked(study, numbers):
                for number, record in connection.execute(_TRIALS[statement], parameters):
                    by_trial.setdefault(number, []).append(MEASUREMENT.decode(record))
            return {number: tuple(measured) for number, measured in by_trial.items()}

        return await self._snapshots.aside(read)

    async def change_trial(
        self, trial: Trial, expected_generation: int, measurement: Measurement | None = None
    ) -> int:
        """Replace a trial and add a measurement to it (one of the same step and elapsed time is replaced).
        Returns the new generation. Raises StaleCommit (the trial changed since, or was deleted)."""
        measured = (
            []
            if measurement is None
            else [measurement_parameters(trial.study, trial.number, measurement)]
        )

        def work(connection: sqlite3.Connection) -> int:
            generation = change_trial(connection, StoredTrial(trial, expected_generation))
            put_measurements(connection, measured)
            return generation

        return await self._writer.run("change_trial", work)

    async def delete_trial(self, study: StudyUid, number: int) -> None:
        """Raises NotFound."""
        parameters = {"study_uid": study, "number": number}

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_TRIALS["delete_trial"], parameters).rowcount != 1:
                raise _no_trial(study, number)
            connection.execute(_TRIALS["delete_measurements"], parameters)

        await self._writer.run("delete_trial", work)

    async def begin_operation(self, operation: Operation) -> None:
        """Store a RUNNING operation. Raises NotFound (no such study)."""

        def work(connection: sqlite3.Connection) -> None:
            # Nobody would end an operation of a study that was deleted meanwhile.
            _study_by_uid(connection, operation.study)
            writes.insert_operation(connection, operation)

        await self._writer.run("begin_operation", work)

    async def running_operations(self, study: StudyUid | None = None) -> tuple[Operation, ...]:
        """Return the operations that are not done, oldest first; of all studies if `study` is None."""
        return self._snapshots.here(lambda connection: writes.running_operations(connection, study))

    async def delete_operation(self, name: str) -> None:
        """Delete an operation that is done, of any kind. Raises NotFound, FailedPrecondition (it is
        running)."""
        await self._writer.run(
            "delete_operation", lambda connection: writes.delete_operation(connection, name)
        )

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

        def work(connection: sqlite3.Connection) -> Operation:
            for stored in assigned:
                change_trial(connection, stored)
            handed_out = [stored.trial.number for stored in assigned]
            try:
                handed_out += [add_trial(connection, trial).number for trial in suggested]
            except NotFound as gone:
                raise StaleCommit(str(gone)) from gone
            finished = replace(operation, trials=(*operation.trials, *handed_out))
            if not writes.finish_operation(connection, finished):
                raise StaleCommit(f"{operation.name} is done already, or gone")
            return finished

        return await self._writer.run("finish_operation", work)


def _study(connection: sqlite3.Connection, name: StudyName) -> Study:
    return existing(connection, _SQL["study"], asdict(name), STUDY, name)


def _study_by_uid(connection: sqlite3.Connection, uid: StudyUid) -> Study:
    what = f"the study with number {uid}"
    return existing(connection, _SQL["study_by_uid"], {"uid": uid}, STUDY, what)


def _refuse(study: Study, taken: Sequence[tuple[int, str, str]]) -> NoReturn:
    """Raise AlreadyExists for the name of the new study that another study has."""
    place = f"projects/{study.name.project_id}/locations/{study.name.location}"
    for _, study_id, display_name in taken:
        if display_name == study.display_name:
            raise AlreadyExists(
                f"a study with the display name {display_name!r} exists in {place} (it is {study_id!r}); "
                "look it up, or choose another display name"
            )
        if study_id == study.name.study_id:
            raise AlreadyExists(f"{study.name} exists; choose another id")
    raise Unavailable("two studies were given one number; send the request again")


def _no_trial(study: StudyUid, number: int) -> NotFound:
    return NotFound(
        f"trial {number} of the study with number {study} does not exist; check the number of the trial"
    )


def _asked(study: StudyUid, numbers: Sequence[int] | None) -> Iterator[tuple[str, Parameters]]:
    """Yield the statements that select the measurements of these trials, or of all."""
    if numbers is None:
        yield "measurements", {"study_uid": study}
        return
    for number in dict.fromkeys(numbers):
        yield "measurements_of", {"study_uid": study, "number": number}


_DELETING = load_statements("deleting.sql")
CHUNK: Final = 4_000
"""Rows that one transaction deletes, in some 20 ms."""


def hide_study(connection: sqlite3.Connection, uid: StudyUid, name: StudyName, now: Nanos) -> None:
    """Hide a study from all requests. Its names become free, and its running operations fail."""
    connection.execute(_DELETING["hide_study"], {"uid": uid})
    writes.fail_operations_of(connection, uid, str(name), now)


def delete_some(connection: sqlite3.Connection, uid: StudyUid) -> bool:
    """Delete up to CHUNK rows of a hidden study. Return whether nothing is left of it."""
    left = CHUNK
    # Trials first: as long as a trial exists, a client may still store a measurement of it.
    for statement in ("delete_trials", "delete_measurements", "delete_operations"):
        left -= connection.execute(_DELETING[statement], {"uid": uid, "most": left}).rowcount
        if left <= 0:
            return False
    connection.execute(_DELETING["delete_numbers"], {"uid": uid})
    return True


def finish_deleting(connection: sqlite3.Connection) -> None:
    """Delete what a crash has left of hidden studies. Blocks. If the disk fails, the rest is left for the
    next start."""
    for (uid,) in connection.execute(_DELETING["hidden_studies"]).fetchall():
        is_done = False
        while not is_done:
            connection.execute("BEGIN IMMEDIATE")
            try:
                is_done = delete_some(connection, uid)
                connection.execute("COMMIT")
            except sqlite3.OperationalError:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                return
