"""Models and their evaluations in SQLite."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import asdict

from trainshed.core.errors import AlreadyExists, FailedPrecondition
from trainshed.core.names import EvaluationName, ModelName
from trainshed.core.pipelines import ModelEvaluation, ModelVersion
from trainshed.store.codec import EVALUATION, VERSION, decode_version
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import Parameters, Port, load_statements, missing
from trainshed.store.sqlite.tables import Resources
from trainshed.store.sqlite.writes import insert_operation

_SQL = load_statements("models.sql")
_EVALUATIONS = load_statements("evaluations.sql")
_DEFAULT = "default"


class Models(Port):
    """Every write is durable when its call returns; a raised error means that nothing happened. Writes take
    their finished operation and store it in the same transaction."""

    async def register(self, version: ModelVersion, operation: Operation) -> None:
        """Store a version: number 1 of a new model, or the one after the newest of a model that exists. It
        takes its aliases from other versions that had them. Raises AlreadyExists (the version exists),
        NotFound (it is a later version, and the model does not exist)."""
        await self._write("register", registering(version), operation)

    async def version(self, name: ModelName, version: str) -> ModelVersion:
        """Return a version by number or alias; "" = the default one. Raises NotFound."""
        return self._snapshots.here(lambda connection: _version(connection, name, version))

    async def models(self, project_id: str, location: str) -> tuple[ModelVersion, ...]:
        """Return the default version of each model, newest model first."""
        place = {"project_id": project_id, "location": location}

        def read(connection: sqlite3.Connection) -> tuple[ModelVersion, ...]:
            rows = connection.execute(_SQL["models"], place).fetchall()
            return tuple(
                [
                    _numbered(connection, ModelName(project_id, location, model_id), number)
                    for model_id, number in rows
                ]
            )

        return await self._snapshots.aside(read)

    async def versions(self, name: ModelName) -> tuple[ModelVersion, ...]:
        """Return all versions, newest first. Raises NotFound."""
        return await self._snapshots.aside(lambda connection: _versions(connection, name))

    async def change(
        self,
        name: ModelName,
        chosen: str,
        change: Callable[[ModelVersion, Sequence[ModelVersion]], Iterable[ModelVersion]],
    ) -> ModelVersion:
        """Replace versions by those that `change`, a pure function, returns for the `chosen` one (`version`)
        and all of them, in one step, and return the chosen one. Raises NotFound, and what `change` raises."""

        def work(connection: sqlite3.Connection) -> ModelVersion:
            target = _version(connection, name, chosen)
            changed = change(target, _versions(connection, name))
            rows = [(version, _parameters(version)) for version in changed]
            for _, parameters in rows:
                connection.execute(_SQL["replace_version"], parameters)
                connection.execute(_SQL["drop_aliases"], parameters)
            for version, parameters in rows:
                _take_aliases(connection, version, parameters)
            return _numbered(connection, name, target.version)

        return await self._writer.run("change", work)

    async def delete_model(self, name: ModelName, operation: Operation) -> None:
        """Delete a model with all its versions. Raises NotFound."""

        def work(connection: sqlite3.Connection) -> None:
            if not _newest(connection, name):
                raise missing(name)
            for statement in ("unmake_model", "delete_versions", "delete_aliases"):
                connection.execute(_SQL[statement], asdict(name))
            connection.execute(_EVALUATIONS["delete_of_model"], asdict(name))

        await self._write("delete_model", work, operation)

    async def delete_version(self, name: ModelName, version: int, operation: Operation) -> None:
        """Raises NotFound, FailedPrecondition (the default version, as a model's only one always is)."""
        parameters = asdict(name) | {"version": version}

        def work(connection: sqlite3.Connection) -> None:
            if _DEFAULT in _numbered(connection, name, version).aliases:
                raise FailedPrecondition(
                    f"{name}@{version} is the default version; give the alias {_DEFAULT!r} to another first, "
                    "or delete the model"
                )
            connection.execute(_SQL["drop_aliases"], parameters)
            connection.execute(_SQL["delete_version"], parameters)
            connection.execute(_EVALUATIONS["delete_of_version"], parameters)

        await self._write("delete_version", work, operation)

    async def _write(
        self, what: str, change: Callable[[sqlite3.Connection], None], operation: Operation
    ) -> None:
        """Make a change and store its finished operation."""

        def work(connection: sqlite3.Connection) -> None:
            change(connection)
            insert_operation(connection, operation)

        await self._writer.run(what, work)


def registering(version: ModelVersion) -> Callable[[sqlite3.Connection], None]:
    """Return the function that stores a new version, which is encoded now; also used in a pipeline's commit.

    The function raises AlreadyExists (that version, or a later one, exists), NotFound (it is a later version,
    and the model does not exist).
    """
    parameters = _parameters(version)

    def store(connection: sqlite3.Connection) -> None:
        newest = _newest(connection, version.name)
        if version.version <= newest:
            raise AlreadyExists(
                f"{version.name}@{version.version} cannot be registered: the newest version is {newest}"
            )
        if not newest:
            if version.version != 1:
                raise missing(version.name)
            connection.execute(_SQL["make_model"], parameters)
        connection.execute(_SQL["insert_version"], parameters)
        _take_aliases(connection, version, parameters)

    return store


def _take_aliases(
    connection: sqlite3.Connection, version: ModelVersion, parameters: Parameters
) -> None:
    """Give a version its aliases, and take them from other versions."""
    connection.executemany(
        _SQL["take_alias"], [parameters | {"alias": alias} for alias in version.aliases]
    )


def _newest(connection: sqlite3.Connection, name: ModelName) -> int:
    """Return the number of the newest version, 0 if there is no such model."""
    (newest,) = connection.execute(_SQL["newest_version"], asdict(name)).fetchone()
    return newest or 0


def _versions(connection: sqlite3.Connection, name: ModelName) -> tuple[ModelVersion, ...]:
    rows = connection.execute(_SQL["versions"], asdict(name))
    if versions := tuple([decode_version(*row) for row in rows]):
        return versions
    raise missing(name)


def _version(connection: sqlite3.Connection, name: ModelName, version: str) -> ModelVersion:
    """Return a version by number or alias, "" = the default one. Raises NotFound."""
    if version.isascii() and version.isdecimal() and len(version) < 10:
        return _numbered(connection, name, int(version))
    alias = {"alias": version or _DEFAULT}
    row = connection.execute(_SQL["version_of_alias"], asdict(name) | alias).fetchone()
    if row is None:
        raise missing(f"{name}@{version}" if version else str(name))
    return _numbered(connection, name, row[0])


def _numbered(connection: sqlite3.Connection, name: ModelName, version: int) -> ModelVersion:
    parameters = asdict(name) | {"version": version}
    row = connection.execute(_SQL["version"], parameters).fetchone()
    if row is None:
        raise missing(f"{name}@{version}")
    return decode_version(*row)


def _parameters(version: ModelVersion) -> Parameters:
    return asdict(version.name) | {
        "version": version.version,
        "made": version.created,
        "record": VERSION.encode(version),
    }


class Evaluations(Resources[EvaluationName, ModelEvaluation]):
    """Evaluations go with their version."""

    sql = _EVALUATIONS
    codec = EVALUATION

    def key(self, name: EvaluationName) -> Parameters:
        return asdict(name.model) | {"evaluation_id": name.evaluation_id}

    def columns(self, record: ModelEvaluation) -> Parameters:
        return super().columns(record) | {"version": record.version}

    def insert(self, connection: sqlite3.Connection, record: ModelEvaluation) -> ModelEvaluation:
        """Raises NotFound (no such version of the model)."""
        # An evaluation of a version that was deleted meanwhile would never be deleted.
        _numbered(connection, record.name.model, record.version)
        return super().insert(connection, record)
