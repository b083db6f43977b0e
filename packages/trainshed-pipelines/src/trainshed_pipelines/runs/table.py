"""Stores pipeline jobs in SQLite: compiled pipelines, tasks, and the outputs that later runs may use."""

import sqlite3
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from trainshed.core.errors import NotFound
from trainshed.core.names import JobName, JobUid
from trainshed.core.units import Nanos
from trainshed.store.codec import Codec
from trainshed.store.port import Write
from trainshed.store.sqlite.connections import Port, load_statements, records
from trainshed_pipelines.runs.records import TaskRun, Values

_SQL = load_statements("runs.sql", Path(__file__).parent)
TASK = Codec("pipeline_tasks", "record", TaskRun)
OUTPUTS = Codec("pipeline_cache", "outputs", Values)
SPEC = Codec("pipeline_specs", "spec", dict[str, Any])

MAX_LISTED_SPEC: Final = 200_000
"""Maximum size in bytes of a compiled pipeline in a list. A page with 100 larger ones could have 1 GB."""


class Cached(Struct, frozen=True):
    """The outputs of a successful task of an earlier run."""

    #: The task, as `PIPELINE_JOB_NAME#NUMBER`.
    source: str
    outputs: Values


def write_spec(run: JobUid, spec: dict[str, Any]) -> Write:
    """Return the write that stores the compiled pipeline of a new run."""
    return Write(_SQL["insert_spec"], {"run": run, "spec": SPEC.encode(spec)})


def write_task(run: JobUid, task: TaskRun) -> Write:
    """Return the write that stores a new or changed task."""
    parameters = {"run": run, "number": task.number, "record": TASK.encode(task)}
    return Write(_SQL["put_task"], parameters)


def write_cached(run: JobName, template: str, task: TaskRun, now: Nanos) -> Write:
    """Return the write that stores the outputs of a successful task for later runs. `template`: the name of
    the compiled pipeline."""
    return Write(
        _SQL["put_cached"],
        {
            "project_id": run.project_id,
            "location": run.location,
            "fingerprint": task.fingerprint,
            "template": template,
            "task": task.name,
            "source": f"{run}#{task.number}",
            "stored": now,
            "outputs": OUTPUTS.encode(task.outputs),
        },
    )


class Runs(Port):
    """Reads the stored parts of pipeline jobs."""

    async def spec(self, run: JobUid) -> dict[str, Any]:
        """Return the compiled pipeline of a run as JSON. Raises NotFound."""

        def read(connection: sqlite3.Connection) -> dict[str, Any]:
            for spec in records(connection, _SQL["spec"], {"run": run}, SPEC):
                return spec
            raise NotFound(f"The compiled pipeline of the run {run} was deleted or is unreadable.")

        return await self._snapshots.read_async(read)

    async def listed_spec(self, run: JobUid) -> dict[str, Any] | None:
        """Return the compiled pipeline of a run for a list, or None if it is too large or was deleted."""
        limit = {"run": run, "limit": MAX_LISTED_SPEC}
        specs = await self._records(_SQL["listed_spec"], limit, SPEC)
        return specs[0] if specs else None

    async def tasks(self, run: JobUid) -> tuple[TaskRun, ...]:
        """Return the tasks of a run, sorted by number."""
        return await self._records(_SQL["tasks"], {"run": run}, TASK)

    async def cached(self, run: JobName, fingerprint: str) -> Cached | None:
        """Return the outputs of the newest task with this fingerprint in the project and location of a run,
        or None."""
        key = {"project_id": run.project_id, "location": run.location, "fingerprint": fingerprint}

        def read(connection: sqlite3.Connection) -> Cached | None:
            row = connection.execute(_SQL["cached"], key).fetchone()
            return None if row is None else Cached(row[0], OUTPUTS.decode(row[1]))

        return self._snapshots.read_now(read)
