"""Implements evaluations of models (`store.evaluations.Evaluations`) on SQLite."""

import sqlite3

from trainshed.core.errors import NotFound
from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines.records import ModelEvaluation
from trainshed.store.codec import decode_evaluation, encode_evaluation
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


def forget_version(connection: sqlite3.Connection, parameters: Parameters) -> None:
    """Delete the evaluations of a version that is deleted."""
    connection.execute(_SQL["delete_of_version"], parameters)


def forget_model(connection: sqlite3.Connection, parameters: Parameters) -> None:
    """Delete the evaluations of a model that is deleted."""
    connection.execute(_SQL["delete_of_model"], parameters)


def _evaluation(connection: sqlite3.Connection, name: EvaluationName) -> ModelEvaluation:
    row = connection.execute(_SQL["evaluation"], _name_parameters(name)).fetchone()
    if row is None:
        raise NotFound(f"{name} does not exist; check the project, the location and the id")
    return decode_evaluation(row[0])


def _name_parameters(name: EvaluationName) -> Parameters:
    return model_parameters(name.model) | {"evaluation_id": name.evaluation_id}


def _parameters(evaluation: ModelEvaluation) -> Parameters:
    return _name_parameters(evaluation.name) | {
        "version": evaluation.version,
        "record": encode_evaluation(evaluation),
    }
