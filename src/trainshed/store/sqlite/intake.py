"""Where requests write (`store.port.Intake`), on SQLite."""

import sqlite3
from collections.abc import Sequence
from typing import assert_never

from trainshed.core.capacity import QuotaKey
from trainshed.core.errors import Aborted, FailedPrecondition, NotFound
from trainshed.core.lifecycle.drills import Drill, DrillPlan
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered, TimelineEntry
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobName, JobUid
from trainshed.core.pipelines.records import Pipeline
from trainshed.core.tuning.records import TuningJob
from trainshed.core.works import Work
from trainshed.store.codec import (
    decode_job,
    encode_cancel,
    encode_drill,
    encode_drills,
    encode_labels,
)
from trainshed.store.port import NewWork, NodeDrain
from trainshed.store.records import ADVICE, Operation
from trainshed.store.sqlite.connections import Writing, load_statements
from trainshed.store.sqlite.rows import Parameters, etag, name_parameters, quota_parameters
from trainshed.store.sqlite.setting_aside import job_set_aside
from trainshed.store.sqlite.writes import append_timeline, insert_operation, storing

_SQL = load_statements("trainshed.store.sqlite", "intake.sql")
_OF_A_JOB = (
    *("delete_job", "delete_work", "delete_timeline", "delete_intents"),
    *("delete_trials", "delete_measurements"),
)


class SqliteIntake:
    def __init__(self, writer: Writing) -> None:
        self._writer = writer

    async def create_job(self, job: Work, timeline: Sequence[TimelineEntry]) -> None:
        await self._writer.run("create_job", storing(NewWork(job, tuple(timeline))))

    async def create_jobs(self, made: Sequence[NewWork]) -> None:
        stores = tuple(map(storing, made))

        def work(connection: sqlite3.Connection) -> None:
            for store in stores:
                store(connection)

        await self._writer.run("create_jobs", work)

    async def request_cancel(self, name: JobName, cancel: CancelRequested) -> JobUid:
        intent = encode_cancel(cancel)

        def work(connection: sqlite3.Connection) -> JobUid:
            uid = _live(connection, name, "there is nothing to cancel")
            connection.execute(_SQL["append_cancel"], {"uid": uid, "intent": intent})
            return uid

        return await self._writer.run("request_cancel", work)

    async def order_drill(self, name: JobName, drill: Drill) -> JobUid:
        intent = encode_drill(DrillOrdered(drill))

        def work(connection: sqlite3.Connection) -> JobUid:
            uid = _live(connection, name, "order the drill for a job that runs or waits")
            connection.execute(_SQL["append_drill"], {"uid": uid, "intent": intent})
            return uid

        return await self._writer.run("order_drill", work)

    async def tell(self, uid: JobUid, entries: Sequence[TimelineEntry]) -> None:
        def work(connection: sqlite3.Connection) -> None:
            # Somebody may have deleted it meanwhile, and its story with it.
            if connection.execute(_SQL["is_there"], {"uid": uid}).fetchone():
                append_timeline(connection, uid, entries)

        await self._writer.run("tell", work)

    async def replace_labels(
        self, name: JobName, labels: tuple[tuple[str, str], ...], etag: str, now: int
    ) -> Work:
        encoded = encode_labels(labels)

        def work(connection: sqlite3.Connection) -> Work:
            uid, _, _, current = _existing(connection, name)
            if etag not in ("", current):
                raise Aborted(
                    f"{name} changed since it was read (etag {etag!r} is now {current!r}); read it again "
                    "and repeat the change"
                )
            (row,) = connection.execute(
                _SQL["replace_labels"], {"uid": uid, "labels": encoded, "now": now}
            ).fetchall()
            record, current, updated, kind = row
            return decode_job(record, current, updated, kind)

        return await self._writer.run("replace_labels", work)

    async def delete_job(self, name: JobName, operation: Operation) -> JobUid:
        def work(connection: sqlite3.Connection) -> JobUid:
            uid, state, is_live, _ = _existing(connection, name)
            if is_live:
                raise FailedPrecondition(
                    f"{name} is {state}; cancel it and delete it when it is over"
                )
            if parent := _waiting_parent(connection, uid):
                raise FailedPrecondition(
                    f"{name} belongs to {parent.name}, which has not taken in yet how it ended; delete it "
                    "in a moment, or when that one is over"
                )
            for statement in _OF_A_JOB:
                connection.execute(_SQL[statement], {"uid": uid})
            insert_operation(connection, operation)
            return uid

        return await self._writer.run("delete_job", work)

    async def drain_node(self, drain: NodeDrain) -> None:
        await self._execute(
            "drain_node", {"node": drain.node, "since": drain.since, "reason": drain.reason}
        )

    async def undrain_node(self, node: str) -> None:
        await self._execute("undrain_node", {"node": node})

    async def set_quota(self, key: QuotaKey, limit: float) -> None:
        await self._execute("set_quota", quota_parameters(key) | {"ceiling": limit})

    async def clear_quota(self, key: QuotaKey) -> None:
        await self._execute("clear_quota", quota_parameters(key))

    async def put_drill_plan(self, plan: DrillPlan) -> None:
        parameters = {"project_id": plan.project_id, "name": plan.name}
        await self._execute("put_drill_plan", parameters | {"drills": encode_drills(plan.drills)})

    async def delete_drill_plan(self, project_id: str, name: str) -> None:
        if not await self._execute("delete_drill_plan", {"project_id": project_id, "name": name}):
            raise NotFound(
                f"the drill plan {name!r} of project {project_id!r} does not exist; nothing was deleted"
            )

    async def _execute(self, statement: str, parameters: Parameters) -> int:
        """Execute one statement, named as the method; how many rows it changed."""
        return await self._writer.run(
            statement,
            lambda connection: connection.execute(_SQL[statement], parameters).rowcount,
        )


def _live(connection: sqlite3.Connection, name: JobName, advice: str) -> JobUid:
    """The job's uid. Raises NotFound, FailedPrecondition (already over)."""
    uid, state, is_live, _ = _existing(connection, name)
    if not is_live:
        raise FailedPrecondition(f"{name} is already over ({state}); {advice}")
    return uid


def _waiting_parent(connection: sqlite3.Connection, uid: JobUid) -> Work | None:
    """What made the job and still waits for its end, which would be lost with it."""
    row = connection.execute(_SQL["live_parent"], {"uid": uid}).fetchone()
    if row is None:
        return None
    record, labels, updated, kind = row
    parent = decode_job(record, labels, updated, kind)
    match parent:
        case TuningJob():
            return parent if any(each.job == uid for each in parent.running) else None
        case Pipeline():
            return parent
        case Job():
            return None
        case _:
            assert_never(parent)


def _existing(connection: sqlite3.Connection, name: JobName) -> tuple[JobUid, str, bool, str]:
    """(uid, state, whether it is not over, etag). Raises NotFound."""
    row = connection.execute(_SQL["job_by_name"], name_parameters(name)).fetchone()
    if row is None:
        label = f"{name.project_id}/{name.job_id}"
        if bad := job_set_aside(connection, lambda bad: bad.label == label):
            raise FailedPrecondition(f"{bad}. It was set aside. {ADVICE}")
        raise NotFound(f"{name} does not exist; check the project, the location and the id")
    uid, state, is_live, generation, labels_version = row
    return JobUid(uid), state, bool(is_live), etag(generation, labels_version)
