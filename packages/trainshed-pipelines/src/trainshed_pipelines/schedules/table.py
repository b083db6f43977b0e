"""Stores schedules in SQLite. Their compiled pipelines are in the table of those of pipeline jobs."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.store.codec import Codec
from trainshed.store.port import Write
from trainshed.store.sqlite.connections import load_statements
from trainshed.store.sqlite.jobs import execute_writes
from trainshed.store.sqlite.tables import Resources
from trainshed_pipelines.runs.table import SPEC
from trainshed_pipelines.schedules.records import Schedule, ScheduleName


class Schedules(Resources[ScheduleName, Schedule]):
    sql = load_statements("schedules.sql", Path(__file__).parent)
    codec = Codec("pipeline_schedules", "record", Schedule)

    def write(self, schedule: Schedule) -> Write:
        """Return the write that stores a new or changed schedule."""
        return Write(self.sql["put"], {**self.columns(schedule), "next_run": schedule.wakes})

    async def store(self, schedule: Schedule, spec: dict[str, Any] | None = None) -> None:
        """Store a new or changed schedule. `spec`: its compiled pipeline; None = unchanged."""
        writes = [self.write(schedule)]
        if spec is not None:
            row = {"run": schedule.uid, "spec": SPEC.encode(spec)}
            writes.append(Write(self.sql["put_spec"], row))
        await self._writer.run("store_schedule", lambda c: execute_writes(c, writes))

    async def due(self, now: Nanos) -> tuple[Schedule, ...]:
        """Return the schedules that need a step, the longest overdue first."""
        return await self._records(self.sql["due"], {"now": now}, self.codec)

    async def next_due(self, now: Nanos) -> Nanos | None:
        """Return the time of the next step of all schedules after `now`, or None."""
        row = {"now": now}
        return self._snapshots.read_now(lambda c: c.execute(self.sql["next"], row).fetchone()[0])

    async def unfinished(self, uids: Sequence[JobUid]) -> tuple[JobUid, ...]:
        """Return those of the pipeline jobs that have not finished."""
        row = {"uids": json.dumps(uids)}
        rows = self._snapshots.read_now(lambda c: c.execute(self.sql["live"], row).fetchall())
        return tuple([JobUid(uid) for (uid,) in rows])

    def remove(self, connection: sqlite3.Connection, record: Schedule) -> tuple[Schedule, ...]:
        connection.execute(self.sql["delete_spec"], {"run": record.uid})
        return super().remove(connection, record)
