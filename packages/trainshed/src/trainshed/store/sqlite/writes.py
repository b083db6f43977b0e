"""Writes that several ports make within their own transactions: new works, timelines, operations, trials."""

import sqlite3
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from trainshed.core.errors import AlreadyExists, FailedPrecondition, NotFound, Unavailable
from trainshed.core.job import JobError
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, person_of
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, StudyUid, Trial
from trainshed.core.units import Nanos
from trainshed.core.works import Work
from trainshed.store.codec import DETAILS, MEASUREMENT, OPERATION, TRIAL
from trainshed.store.port import PERSON, NewWork
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Parameters, load_statements, records
from trainshed.store.sqlite.rows import work_parameters

_WORKS = load_statements("works.sql")


def storing(made: NewWork) -> Callable[[sqlite3.Connection], None]:
    """Return the function that stores a new work. The work is encoded here, on the caller's thread, and not
    on the writer's.

    The function raises AlreadyExists (the name was used before), Unavailable (the uid is taken).
    """
    job = made.job
    parameters = work_parameters(job)
    output = job.spec.output if isinstance(job, Job) else ""
    # An id that is the work's uid needs no reservation: a uid is given once, and ids that clients choose
    # begin with a letter (facts/limits#ids).
    is_chosen = job.name.job_id != str(job.uid)

    def is_taken(connection: sqlite3.Connection) -> bool:
        return connection.execute(_WORKS["has_name"], parameters).fetchone() is not None

    def store(connection: sqlite3.Connection) -> None:
        if is_chosen and (
            is_taken(connection)
            or connection.execute(_WORKS["reserve_name"], parameters).rowcount != 1
        ):
            raise _taken(job)
        if connection.execute(_WORKS["insert_job"], parameters).rowcount != 1:
            if is_taken(connection):
                raise _taken(job)
            raise Unavailable("two jobs were given one number; send the request again")
        connection.execute(_WORKS["insert_work"], parameters)
        put_labels(connection, job)
        if output:
            connection.execute(_WORKS["insert_output"], parameters | {"uri": output})
        append_timeline(connection, job.uid, made.timeline)

    return store


def _taken(job: Work) -> AlreadyExists:
    return AlreadyExists(
        f"{job.name} exists or existed before; names are never used again. Choose another id"
    )


def put_labels(connection: sqlite3.Connection, work: Work) -> None:
    """Add what lists find the work by: its labels, and whose it is."""
    for key, value in (*work.labels, (PERSON, person_of(work.creator))):
        connection.execute(_WORKS["insert_label"], {"uid": work.uid, "key": key, "value": value})


def append_timeline(
    connection: sqlite3.Connection, uid: JobUid, entries: Iterable[TimelineEntry]
) -> None:
    """Add entries to the timeline of a work; does not check that the work exists."""
    rows = [
        {
            "uid": uid,
            "at": entry.at,
            "kind": entry.kind,
            "message": entry.message,
            "details": DETAILS.encode(entry.details),
        }
        for entry in entries
    ]
    connection.executemany(_WORKS["append_timeline"], rows)


_OPERATIONS = load_statements("operations.sql")
_NOT_FOUND = 5
"""A google.rpc.Code."""


def insert_operation(connection: sqlite3.Connection, operation: Operation) -> None:
    """Store a new operation. Raises Unavailable (the name is taken)."""
    parameters = {
        "name": operation.name,
        "study_uid": operation.study,
        "created": operation.created,
        "is_running": int(not operation.state.is_final),
        "record": OPERATION.encode(operation),
    }
    if connection.execute(_OPERATIONS["insert_operation"], parameters).rowcount != 1:
        raise Unavailable("two operations were given one name; send the request again")


def finish_operation(connection: sqlite3.Connection, operation: Operation) -> bool:
    """Store an operation as it ended. Returns False, and writes nothing, if it is done already or was
    deleted."""
    parameters = {"name": operation.name, "record": OPERATION.encode(operation)}
    return connection.execute(_OPERATIONS["finish_operation"], parameters).rowcount == 1


def running_operations(
    connection: sqlite3.Connection, study: StudyUid | None
) -> tuple[Operation, ...]:
    """Return the operations that are not done, oldest first; of all studies if `study` is None."""
    statement = "running_operations" if study is None else "running_operations_of_study"
    return records(connection, _OPERATIONS[statement], {"study_uid": study}, OPERATION)


def delete_operation(connection: sqlite3.Connection, name: str) -> None:
    """Delete an operation that is done. Raises NotFound, FailedPrecondition (it is running)."""
    if connection.execute(_OPERATIONS["delete_operation"], {"name": name}).rowcount == 1:
        return
    if connection.execute(_OPERATIONS["is_there"], {"name": name}).fetchone() is None:
        raise NotFound(f"{name} does not exist; check the name of the operation")
    raise FailedPrecondition(
        f"{name} is not done yet; cancel it, or wait for its end, before you delete it"
    )


def fail_operations_of(
    connection: sqlite3.Connection, study: StudyUid, name: str, now: Nanos
) -> None:
    """End the operations that still run for the deleted study `name` with NOT_FOUND at `now`. They are not
    deleted with the study, so that clients that wait for them are told."""
    error = JobError(_NOT_FOUND, f"{name} was deleted while the operation ran")
    for operation in running_operations(connection, study):
        failed = replace(operation, state=OperationState.FAILED, error=error, updated=now)
        finish_operation(connection, failed)
        connection.execute(_OPERATIONS["orphan_operation"], {"name": operation.name})


_TRIALS = load_statements("trials.sql")


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
    """Store trials, each new or replacing the one of its number, without a guard."""
    connection.executemany(_TRIALS["put_trial"], rows)


def put_measurements(connection: sqlite3.Connection, rows: Iterable[Parameters]) -> None:
    """Store measurements, replacing those of the same step and elapsed time."""
    connection.executemany(_TRIALS["put_measurement"], rows)
