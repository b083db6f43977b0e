"""Where the controller writes state (`store.port.Ledger`), on SQLite."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from trainshed.core.errors import RequestError
from trainshed.core.names import JobUid
from trainshed.core.study.records import StudyUid
from trainshed.core.works import Work
from trainshed.store.codec import decode_job, encode_job
from trainshed.store.port import Commit, Intent, LiveJob, StaleCommit
from trainshed.store.sqlite.connections import Reading, Writing, load_statements
from trainshed.store.sqlite.models import registering
from trainshed.store.sqlite.rows import intent
from trainshed.store.sqlite.writes import (
    append_timeline,
    measurement_parameters,
    put_measurements,
    put_trials,
    storing,
    trial_parameters,
)

_SQL = load_statements("trainshed.store.sqlite", "ledger.sql")


class SqliteLedger:
    def __init__(self, writer: Writing, snapshots: Reading) -> None:
        self._writer = writer
        self._snapshots = snapshots

    async def acquire(self, owner: str) -> int:
        def work(connection: sqlite3.Connection) -> int:
            # fetchall, not fetchone: a statement that RETURNING leaves half read would block the COMMIT.
            ((epoch,),) = connection.execute(_SQL["acquire"], {"owner": owner}).fetchall()
            return epoch

        return await self._writer.run("acquire", work)

    async def load(self, uid: JobUid) -> LiveJob[Work] | None:
        def read(connection: sqlite3.Connection) -> LiveJob[Work] | None:
            row = connection.execute(_SQL["load_job"], {"uid": uid}).fetchone()
            if row is None:
                return None
            intents = tuple(map(intent, connection.execute(_SQL["load_intents"], {"uid": uid})))
            return _live_job(row, intents)

        return self._snapshots.here(read)

    async def load_live(self) -> tuple[LiveJob[Work], ...]:
        def read(connection: sqlite3.Connection) -> tuple[LiveJob[Work], ...]:
            intents: dict[int, list[Intent]] = {}
            for uid, *row in connection.execute(_SQL["load_all_intents"]):
                intents.setdefault(uid, []).append(intent(row))
            return tuple(
                _live_job(row, tuple(intents.get(uid, ())))
                for uid, *row in connection.execute(_SQL["load_live"])
            )

        return await self._snapshots.aside(read)

    async def commit(self, epoch: int, commit: Commit) -> int:
        job = commit.job
        parameters = {
            "uid": job.uid,
            "state": job.state.value,
            "is_live": int(not job.state.is_final),
            "record": encode_job(job),
            "expected_generation": commit.expected_generation,
            "epoch": epoch,
            "consumed": commit.consumed_intents,
        }
        trials = [trial_parameters(trial) for trial in commit.trials]
        measurements = [
            measurement_parameters(StudyUid(job.uid), number, measurement)
            for number, measurement in commit.measurements
        ]
        stores = [storing(made) for made in commit.made]
        if commit.model is not None:
            stores.append(registering(commit.model))

        def work(connection: sqlite3.Connection) -> int:
            rows = connection.execute(_SQL["commit_job"], parameters).fetchall()
            if not rows:
                raise StaleCommit(_why_stale(connection, epoch, commit))
            if commit.consumed_intents:
                connection.execute(
                    _SQL["consume_intents"], {"uid": job.uid, "consumed": commit.consumed_intents}
                )
            append_timeline(connection, job.uid, commit.timeline)
            put_trials(connection, trials)
            put_measurements(connection, measurements)
            try:
                for store in stores:
                    store(connection)
            except RequestError as taken:
                raise StaleCommit(f"job {job.uid}, step to {job.state}: {taken}") from taken
            return rows[0][0]

        return await self._writer.run("commit", work)


def _live_job(row: Sequence[Any], intents: tuple[Intent, ...]) -> LiveJob[Work]:
    """From (record, labels, labels_updated, kind, generation)."""
    record, labels, labels_updated, kind, generation = row
    job = decode_job(record, labels, labels_updated, kind)
    return LiveJob(job, generation, intents)


def _why_stale(connection: sqlite3.Connection, epoch: int, commit: Commit) -> str:
    """For the controller's log: what the guard of `commit_job` met."""
    leader, generation, state, is_live = connection.execute(
        _SQL["why_stale"], {"uid": commit.job.uid}
    ).fetchone()
    step = f"job {commit.job.uid}, step to {commit.job.state}"
    if leader != epoch:
        return f"{step}: epoch {epoch} is over, the leader has {leader}; this controller must stop"
    if generation is None:
        return f"{step}: the job was deleted"
    if generation != commit.expected_generation:
        return (
            f"{step}: expected generation {commit.expected_generation}, found {generation} ({state}); "
            "load it again"
        )
    if not is_live:
        return f"{step}: the job is already {state}"
    return f"{step}: an intent came in that the step did not consume; load it again"
