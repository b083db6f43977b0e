"""Where the controller writes state (`store.port.Ledger`), on SQLite."""

import sqlite3

from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.store.codec import decode_job, encode_job
from trainshed.store.port import Commit, Intent, LiveJob, StaleCommit
from trainshed.store.sqlite.execution import Reading, Writing
from trainshed.store.sqlite.rows import append_timeline, intent
from trainshed.store.statements import load_statements

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

    async def load(self, uid: JobUid) -> LiveJob | None:
        def read(connection: sqlite3.Connection) -> LiveJob | None:
            row = connection.execute(_SQL["load_job"], {"uid": uid}).fetchone()
            if row is None:
                return None
            record, labels, labels_updated, generation = row
            intents = tuple(map(intent, connection.execute(_SQL["load_intents"], {"uid": uid})))
            return LiveJob(decode_job(record, labels, labels_updated), generation, intents)

        return self._snapshots.here(read)

    async def load_live(self) -> tuple[LiveJob, ...]:
        def read(connection: sqlite3.Connection) -> tuple[LiveJob, ...]:
            intents: dict[int, list[Intent]] = {}
            for uid, *row in connection.execute(_SQL["load_all_intents"]):
                intents.setdefault(uid, []).append(intent(row))
            return tuple(
                LiveJob(
                    decode_job(record, labels, labels_updated),
                    generation,
                    tuple(intents.get(uid, ())),
                )
                for uid, record, labels, labels_updated, generation in connection.execute(
                    _SQL["load_live"]
                )
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

        def work(connection: sqlite3.Connection) -> int:
            rows = connection.execute(_SQL["commit_job"], parameters).fetchall()
            if not rows:
                raise StaleCommit(_why_stale(connection, epoch, commit))
            if commit.consumed_intents:
                connection.execute(
                    _SQL["consume_intents"], {"uid": job.uid, "consumed": commit.consumed_intents}
                )
            append_timeline(connection, _SQL["append_timeline"], job.uid, commit.timeline)
            return rows[0][0]

        return await self._writer.run("commit", work)


def _why_stale(connection: sqlite3.Connection, epoch: int, commit: Commit) -> str:
    """For the controller's log: what the guard of `commit_job` met."""
    leader, generation, state = connection.execute(
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
    if JobState(state).is_final:
        return f"{step}: the job is already {state}"
    return f"{step}: an intent came in that the step did not consume; load it again"
