"""Statements about operations that several doors make within their own transactions."""

import sqlite3
from dataclasses import replace

from trainshed.core.errors import FailedPrecondition, NotFound, Unavailable
from trainshed.core.job.exits import JobError
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.trials import StudyUid
from trainshed.store.codec import decode_operation, encode_operation
from trainshed.store.operations import Operation
from trainshed.store.statements import load_statements

_SQL = load_statements("trainshed.store.sqlite", "operations.sql")
_NOT_FOUND = 5
"""google.rpc.Code."""


def insert_operation(connection: sqlite3.Connection, operation: Operation) -> None:
    """Raises Unavailable (the name is taken)."""
    parameters = {
        "name": operation.name,
        "study_uid": operation.study,
        "created": operation.created,
        "is_running": int(not operation.state.is_final),
        "record": encode_operation(operation),
    }
    if connection.execute(_SQL["insert_operation"], parameters).rowcount != 1:
        raise Unavailable("two operations were given one name; send the request again")


def finish_operation(connection: sqlite3.Connection, operation: Operation) -> bool:
    """False if it is done already, or gone; then nothing is written."""
    parameters = {"name": operation.name, "record": encode_operation(operation)}
    return connection.execute(_SQL["finish_operation"], parameters).rowcount == 1


def running_operations(
    connection: sqlite3.Connection, study: StudyUid | None
) -> tuple[Operation, ...]:
    """Those that are not done, oldest first; of all studies if `study` is None."""
    if study is None:
        rows = connection.execute(_SQL["running_operations"])
    else:
        rows = connection.execute(_SQL["running_operations_of_study"], {"study_uid": study})
    return tuple([decode_operation(record) for (record,) in rows])


def delete_operation(connection: sqlite3.Connection, name: str) -> None:
    """Raises NotFound, FailedPrecondition (it runs)."""
    if connection.execute(_SQL["delete_operation"], {"name": name}).rowcount == 1:
        return
    if connection.execute(_SQL["is_there"], {"name": name}).fetchone() is None:
        raise NotFound(f"{name} does not exist; check the name of the operation")
    raise FailedPrecondition(
        f"{name} is not done yet; cancel it, or wait for its end, before you delete it"
    )


def fail_operations_of(
    connection: sqlite3.Connection, study: StudyUid, name: str, now: int
) -> None:
    """What still runs for the study `name`, which is gone, ends with NOT_FOUND at `now`. It does not go with the study, so
    that who waits for it is told."""
    error = JobError(_NOT_FOUND, f"{name} was deleted while the operation ran")
    for operation in running_operations(connection, study):
        failed = replace(operation, state=OperationState.FAILED, error=error, updated=now)
        finish_operation(connection, failed)
        connection.execute(_SQL["orphan_operation"], {"name": operation.name})
