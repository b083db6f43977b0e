"""Implements evaluations of models and their slices (`store.evaluations.Evaluations`) on SQLite."""

import sqlite3
from collections.abc import Sequence

from msgspec.structs import replace

from trainshed.core.errors import NotFound
from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines.records import EvaluationSlice, ModelEvaluation
from trainshed.store.codec import (
    decode_evaluation,
    decode_slice,
    encode_evaluation,
    encode_slice,
)
from trainshed.store.sqlite.connections import Reading, Writing, load_statements
from trainshed.store.sqlite.rows import ABOVE_ALL_UIDS, Parameters, model_parameters

_SQL = load_statements("evaluations.sql")
_MODELS = load_statements("models.sql")


class SqliteEvaluations:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def add(self, evaluation: ModelEvaluation) -> None:
        parameters = _parameters(evaluation)

        def work(connection: sqlite3.Connection) -> None:
            # An evaluation of a version that was deleted meanwhile would never be deleted.
            if connection.execute(_MODELS["version"], parameters).fetchone() is None:
                model = evaluation.name.model
                raise NotFound(f"{model}@{evaluation.version} does not exist; check the id")
            connection.execute(_SQL["insert"], parameters)

        await self._writer.run("add_evaluation", work)

    async def evaluation(self, name: EvaluationName) -> ModelEvaluation:
        return self._snapshots.here(lambda connection: _evaluation(connection, name))

    async def evaluations(
        self, model: ModelName, version: int, below: int, limit: int
    ) -> tuple[ModelEvaluation, ...]:
        parameters = model_parameters(model) | {
            "version": version,
            "below": below or ABOVE_ALL_UIDS,
            "limit": limit,
        }

        def read(connection: sqlite3.Connection) -> tuple[ModelEvaluation, ...]:
            rows = connection.execute(_SQL["evaluations"], parameters)
            return tuple([decode_evaluation(record) for (record,) in rows])

        return await self._snapshots.aside(read)

    async def add_slices(self, slices: Sequence[EvaluationSlice]) -> None:
        rows = [
            _name_parameters(each.name) | {"slice_id": each.slice_id, "record": encode_slice(each)}
            for each in slices
        ]

        def work(connection: sqlite3.Connection) -> None:
            found = _evaluation(connection, slices[0].name)
            dimensions = (*found.slice_dimensions, *(each.dimension for each in slices))
            known = tuple(dict.fromkeys(filter(None, dimensions)))
            if known != found.slice_dimensions:
                changed = replace(found, slice_dimensions=known)
                connection.execute(_SQL["replace"], _parameters(changed))
            connection.executemany(_SQL["insert_slice"], rows)

        await self._writer.run("add_slices", work)

    async def slice(self, name: EvaluationName, slice_id: int) -> EvaluationSlice:
        parameters = _name_parameters(name) | {"slice_id": slice_id}

        def read(connection: sqlite3.Connection) -> EvaluationSlice:
            row = connection.execute(_SQL["slice"], parameters).fetchone()
            if row is None:
                raise _missing(f"{name}/slices/{slice_id}")
            return decode_slice(row[0])

        return self._snapshots.here(read)

    async def slices(
        self, name: EvaluationName, after: int, limit: int
    ) -> tuple[EvaluationSlice, ...]:
        parameters = _name_parameters(name) | {"after": after, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[EvaluationSlice, ...]:
            _evaluation(connection, name)
            rows = connection.execute(_SQL["slices"], parameters)
            return tuple([decode_slice(record) for (record,) in rows])

        return await self._snapshots.aside(read)


def forget_version(connection: sqlite3.Connection, parameters: Parameters) -> None:
    """Delete the evaluations of a version that is deleted."""
    for statement in ("delete_slices_of_version", "delete_of_version"):
        connection.execute(_SQL[statement], parameters)


def forget_model(connection: sqlite3.Connection, parameters: Parameters) -> None:
    """Delete the evaluations of a model that is deleted."""
    for statement in ("delete_slices_of_model", "delete_of_model"):
        connection.execute(_SQL[statement], parameters)


def _evaluation(connection: sqlite3.Connection, name: EvaluationName) -> ModelEvaluation:
    row = connection.execute(_SQL["evaluation"], _name_parameters(name)).fetchone()
    if row is None:
        raise _missing(str(name))
    return decode_evaluation(row[0])


def _name_parameters(name: EvaluationName) -> Parameters:
    return model_parameters(name.model) | {"evaluation_id": name.evaluation_id}


def _parameters(evaluation: ModelEvaluation) -> Parameters:
    return _name_parameters(evaluation.name) | {
        "version": evaluation.version,
        "record": encode_evaluation(evaluation),
    }


def _missing(what: str) -> NotFound:
    return NotFound(f"{what} does not exist; check the project, the location and the id")
