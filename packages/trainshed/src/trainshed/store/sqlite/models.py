"""Stores models and their evaluations in SQLite."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import asdict, replace

from trainshed.core.errors import AlreadyExists, FailedPrecondition
from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines import ModelEvaluation, ModelVersion
from trainshed.store.codec import EVALUATION, VERSION
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import (
    Parameters,
    Port,
    load_statements,
    missing,
    read_existing,
    records,
)
from trainshed.store.sqlite.tables import Resources, insert_operation

_SQL = load_statements("models.sql")
_EVALUATIONS = load_statements("evaluations.sql")
_DEFAULT = "default"


class Models(Port):
    """Stores models as their versions. Every write is durable when its call returns. If a call raises an
    error, nothing was changed."""

    async def register(
        self, name: ModelName, make: Callable[[int], tuple[ModelVersion, Operation]], *, is_new: bool
    ) -> Operation:
        """Store the next version of a model together with its finished operation. `is_new`: store the first
        version of a new model.

        `make`: a pure function that returns the version and the operation for a version number. Aliases of
        the new version are removed from earlier versions. Raise AlreadyExists if a new model already exists,
        or NotFound if an existing model does not exist.
        """

        def work(connection: sqlite3.Connection) -> Operation:
            version, operation = make(1 if is_new else _versions(connection, name)[0].version + 1)
            version_writer(version)(connection)
            insert_operation(connection, operation)
            return operation

        return await self._writer.run("register", work)

    async def version(self, name: ModelName, version: str) -> ModelVersion:
        """Return a version by number or alias. "" = the default version. Raise NotFound."""
        return self._snapshots.read_now(lambda connection: _version(connection, name, version))

    async def models(self, project_id: str, location: str) -> tuple[ModelVersion, ...]:
        """Return the default version of each model in the location. The newest model is first."""
        place = {"project_id": project_id, "location": location}
        versions = await self._records(_SQL["of_location"], place, VERSION)
        made: dict[ModelName, int] = {}
        for version in versions:
            made[version.name] = min(made.get(version.name, version.created), version.created)
        defaults = [version for version in versions if _DEFAULT in version.aliases]
        defaults.sort(key=lambda version: (made[version.name], version.name), reverse=True)
        return tuple(defaults)

    async def versions(self, name: ModelName) -> tuple[ModelVersion, ...]:
        """Return all versions of a model, newest first. Raise NotFound."""
        return await self._snapshots.read_async(lambda connection: _versions(connection, name))

    async def change(
        self,
        name: ModelName,
        chosen: str,
        change: Callable[[ModelVersion, Sequence[ModelVersion]], Iterable[ModelVersion]],
    ) -> ModelVersion:
        """Replace versions of a model in one transaction. Return the new state of the `chosen` version.
        `change`: a pure function of the chosen version and of all versions. It returns the versions to
        replace. Raise NotFound, and the errors of `change`."""

        def work(connection: sqlite3.Connection) -> ModelVersion:
            target = _version(connection, name, chosen)
            for version in tuple(change(target, _versions(connection, name))):
                _put(connection, version)
            return _version(connection, name, str(target.version))

        return await self._writer.run("change", work)

    async def delete_model(self, name: ModelName, operation: Operation) -> None:
        """Delete a model with all its versions. Raise NotFound."""

        def work(connection: sqlite3.Connection) -> None:
            if not connection.execute(_SQL["delete_model"], asdict(name)).rowcount:
                raise missing(name)
            connection.execute(_EVALUATIONS["delete_of_model"], asdict(name))
            insert_operation(connection, operation)

        await self._writer.run("delete_model", work)

    async def delete_version(self, name: ModelName, version: int, operation: Operation) -> None:
        """Delete a version other than the default version. The only version of a model is always its default
        version. Raise NotFound, or FailedPrecondition for the default version."""
        parameters = asdict(name) | {"version": version}

        def work(connection: sqlite3.Connection) -> None:
            if _DEFAULT in _version(connection, name, str(version)).aliases:
                raise FailedPrecondition(
                    f"{name}@{version} is the default version; assign the alias {_DEFAULT!r} to "
                    "another version first, or delete the model"
                )
            connection.execute(_SQL["delete_version"], parameters)
            connection.execute(_EVALUATIONS["delete_of_version"], parameters)
            insert_operation(connection, operation)

        await self._writer.run("delete_version", work)


def version_writer(version: ModelVersion) -> Callable[[sqlite3.Connection], None]:
    """Return a function that stores a new version in a transaction. A pipeline's commit also uses it. The
    function raises AlreadyExists if this version or a later one exists. It raises NotFound if the version is
    not the first one and the model does not exist."""

    def store(connection: sqlite3.Connection) -> None:
        others = records(connection, _SQL["versions"], asdict(version.name), VERSION)
        newest = others[0].version if others else 0
        if version.version <= newest:
            raise AlreadyExists(
                f"{version.name}@{version.version} cannot be registered: version {newest} already exists. "
                "Send the request again"
            )
        if not newest and version.version != 1:
            raise missing(version.name)
        for other in others:
            kept = tuple(alias for alias in other.aliases if alias not in version.aliases)
            if kept != other.aliases:
                _put(connection, replace(other, aliases=kept))
        _put(connection, version)

    return store


def _put(connection: sqlite3.Connection, version: ModelVersion) -> None:
    columns = {"version": version.version, "record": VERSION.encode(version)}
    connection.execute(_SQL["put"], asdict(version.name) | columns)


def _versions(connection: sqlite3.Connection, name: ModelName) -> tuple[ModelVersion, ...]:
    if versions := records(connection, _SQL["versions"], asdict(name), VERSION):
        return versions
    raise missing(name)


def _version(connection: sqlite3.Connection, name: ModelName, version: str) -> ModelVersion:
    """Return a version by number or alias. "" = the default version. Raise NotFound."""
    if version.isascii() and version.isdecimal() and len(version) < 10:
        key = asdict(name) | {"version": int(version)}
        return read_existing(connection, _SQL["version"], key, VERSION, f"{name}@{version}")
    for record in records(connection, _SQL["versions"], asdict(name), VERSION):
        if (version or _DEFAULT) in record.aliases:
            return record
    raise missing(f"{name}@{version}" if version else name)


class Evaluations(Resources[EvaluationName, ModelEvaluation]):
    """Stores evaluations of models. An evaluation is deleted together with its model version."""

    sql = _EVALUATIONS
    codec = EVALUATION

    def key(self, name: EvaluationName) -> Parameters:
        return asdict(name.model) | {"evaluation_id": name.evaluation_id}

    def columns(self, record: ModelEvaluation) -> Parameters:
        return super().columns(record) | {"version": record.version}

    def insert(self, connection: sqlite3.Connection, record: ModelEvaluation) -> ModelEvaluation:
        """Store an evaluation. Raise NotFound if the model version does not exist."""
        # Check that the version exists. Otherwise the evaluation would never be deleted.
        _version(connection, record.name.model, str(record.version))
        return super().insert(connection, record)
