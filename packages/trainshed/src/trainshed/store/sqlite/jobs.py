"""Writes jobs, tuning jobs and pipelines to SQLite. `Intake` is for requests, `Ledger` for the controller."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, assert_never

from msgspec.structs import asdict

from trainshed.core.capacity import EACH, QuotaKey
from trainshed.core.catalog.quotas import SHARE
from trainshed.core.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    PermissionDenied,
    RequestError,
    Unavailable,
)
from trainshed.core.lifecycle.events import CancelRequested, DrillOrdered, TimelineEntry
from trainshed.core.lifecycle.records import Drill, Job, person_of
from trainshed.core.names import JobName, JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.pipelines import Pipeline
from trainshed.core.study.records import StudyUid
from trainshed.core.tuning.records import TuningJob
from trainshed.core.units import Nanos
from trainshed.core.usage import Use
from trainshed.core.works import Work
from trainshed.store.audit import RecordedCall, set_subject
from trainshed.store.codec import (
    CANCEL,
    DETAILS,
    DRILL,
    LABELS,
    decode_job,
    encode_job,
    etag,
    name_parameters,
    use_parameters,
    work_parameters,
)
from trainshed.store.port import PERSON, Commit, Intent, LiveJob, NewWork, NodeDrain, StaleCommit, Write
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import (
    Parameters,
    Port,
    Reading,
    Writing,
    decode_readable,
    load_statements,
    missing,
)
from trainshed.store.sqlite.models import version_writer
from trainshed.store.sqlite.resources import put as put_notifications
from trainshed.store.sqlite.studies import (
    measurement_parameters,
    put_measurements,
    put_trials,
    trial_parameters,
)
from trainshed.store.sqlite.tables import insert_operation

_SQL = load_statements("jobs.sql")
_WORKS = load_statements("works.sql")
_USES_KEPT = 400 * 24 * 3600 * 10**9
"""How long the machine use of attempts is kept, in nanoseconds."""
_OF_A_JOB = (
    *("delete_job", "delete_work", "delete_labels", "delete_timeline", "delete_intents"),
    *("delete_trials", "delete_measurements", "orphan_children"),
    *("delete_curve_files", "delete_curve_series", "delete_curve_job", "delete_outputs"),
)


def work_writer(made: NewWork) -> Callable[[sqlite3.Connection], None]:
    """Return a function that stores a new job, tuning job or pipeline in a transaction.

    It is encoded before the function is returned, so that the writer's thread does not have to encode it. The
    function raises AlreadyExists if the name was used before, and Unavailable if the UID is already in use.
    """
    job = made.job
    parameters = work_parameters(job)
    output = job.spec.output if isinstance(job, Job) else None
    # An ID that is the record's own UID needs no reservation. Each UID is used only once, and an ID that a
    # client chooses begins with a letter (facts/limits#ids).
    is_chosen = job.name.job_id != str(job.uid)

    def is_taken(connection: sqlite3.Connection) -> bool:
        return connection.execute(_WORKS["has_name"], parameters).fetchone() is not None

    def store(connection: sqlite3.Connection) -> None:
        if is_chosen and (
            is_taken(connection) or connection.execute(_WORKS["reserve_name"], parameters).rowcount != 1
        ):
            raise _name_taken_error(job)
        if connection.execute(_WORKS["insert_job"], parameters).rowcount != 1:
            if is_taken(connection):
                raise _name_taken_error(job)
            raise Unavailable("two jobs received the same number; send the request again")
        connection.execute(_WORKS["insert_work"], parameters)
        put_labels(connection, job)
        if output:
            connection.execute(_WORKS["insert_output"], parameters | {"uri": output})
        append_timeline(connection, job.uid, made.timeline)
        execute_writes(connection, made.writes)

    return store


def execute_writes(connection: sqlite3.Connection, writes: Iterable[Write]) -> None:
    """Execute the writes of an addition in the current transaction."""
    for write in writes:
        connection.execute(write.sql, write.parameters)


def _name_taken_error(job: Work) -> AlreadyExists:
    return AlreadyExists(
        f"{job.name} exists or existed before; names are never used again. Choose another id"
    )


def put_labels(connection: sqlite3.Connection, work: Work) -> None:
    """Store the labels of a job, tuning job or pipeline, and the address of its responsible user. Filters of
    lists use them."""
    for key, value in (*work.labels, (PERSON, person_of(work.creator))):
        connection.execute(_WORKS["insert_label"], {"uid": work.uid, "key": key, "value": value})


def append_timeline(connection: sqlite3.Connection, uid: JobUid, entries: Iterable[TimelineEntry]) -> None:
    """Add entries to the timeline of a job, tuning job or pipeline. Does not check whether it exists."""
    rows = [
        {
            "uid": uid,
            "at": entry.at,
            "kind": entry.kind,
            "message": entry.message,
            "details": DETAILS.encode(entry.details),
        }
        for entry in entries
    ]
    connection.executemany(_WORKS["append_timeline"], rows)


class Intake(Port):
    """The writes that requests cause."""

    async def create(self, *made: NewWork) -> None:
        """Store all of these new jobs, tuning jobs and pipelines with generation 1, or none. Raise
        AlreadyExists if a name was ever used in the project, even by a job that was deleted. Raise
        Unavailable if a UID is already in use."""
        stores = tuple(map(work_writer, made))

        def work(connection: sqlite3.Connection) -> None:
            for store in stores:
                store(connection)

        if made:
            first = made[0].job
            if (call := set_subject(first.name.project_id, str(first.name))) is not None:
                call.describe(name=first.display_name)
        await self._writer.run("create", work)

    async def request_cancel(self, name: JobName, cancel: CancelRequested) -> JobUid:
        """Append a cancel intent, unless the job already has a cancel intent. Raise NotFound, or
        FailedPrecondition if the job has finished."""
        intent = CANCEL.encode(cancel)

        call = set_subject(name.project_id, str(name))

        def work(connection: sqlite3.Connection) -> JobUid:
            uid = _live(connection, name, "there is nothing to cancel", call)
            connection.execute(_SQL["append_cancel"], {"uid": uid, "intent": intent})
            return uid

        return await self._writer.run("request_cancel", work)

    async def order_drill(self, name: JobName, drill: Drill) -> JobUid:
        """Store a user's order of a drill, a fault in the job, as an intent. A job may have several such
        intents. Raise NotFound, or FailedPrecondition if the job has finished."""
        intent = DRILL.encode(DrillOrdered(drill))

        call = set_subject(name.project_id, str(name))

        def work(connection: sqlite3.Connection) -> JobUid:
            uid = _live(connection, name, "order the drill for a running or waiting job", call)
            connection.execute(_SQL["append_drill"], {"uid": uid, "intent": intent})
            return uid

        return await self._writer.run("order_drill", work)

    async def add_timeline_entry(self, uids: Sequence[JobUid], entry: TimelineEntry) -> None:
        """Add a timeline entry to these jobs, tuning jobs and pipelines, whatever their state. The entry
        describes an action that does not change them. Those that no longer exist are skipped."""

        def work(connection: sqlite3.Connection) -> None:
            for uid in uids:
                # Skip a job that another request has deleted together with its timeline.
                if connection.execute(_SQL["is_there"], {"uid": uid}).fetchone():
                    append_timeline(connection, uid, (entry,))

        await self._writer.run("add_timeline_entry", work)

    async def replace_labels(
        self, name: JobName, labels: tuple[tuple[str, str], ...], etag: str, now: Nanos
    ) -> Work:
        """Set the labels of a job, whatever its state, and return the job. Its `updated` becomes `now`.
        `etag`: the expected etag; "" = any. Raise NotFound, or Aborted if the etag differs."""
        encoded = LABELS.encode(labels)

        call = set_subject(name.project_id, str(name))

        def work(connection: sqlite3.Connection) -> Work:
            uid, _, _, current = _existing(connection, name, call)
            if etag not in ("", current):
                raise Aborted(
                    f"{name} changed since it was read (etag {etag!r} is now {current!r}); read it again "
                    "and repeat the change"
                )
            (row,) = connection.execute(
                _SQL["replace_labels"], {"uid": uid, "labels": encoded, "now": now}
            ).fetchall()
            connection.execute(_SQL["delete_labels"], {"uid": uid})
            record, current, updated, kind = row
            work = decode_job(record, current, updated, kind)
            put_labels(connection, work)
            return work

        return await self._writer.run("replace_labels", work)

    async def delete_job(self, name: JobName, operation: Operation) -> JobUid:
        """Delete a finished job with its trials, and store the finished operation, in one transaction. Raise
        NotFound. Raise FailedPrecondition if the job is unfinished, or if its tuning job or pipeline has not
        yet processed the end of the job."""

        call = set_subject(name.project_id, str(name))

        def work(connection: sqlite3.Connection) -> JobUid:
            uid, _, is_live, _ = _existing(connection, name, call)
            if is_live:
                # The message does not contain the state, because each API has its own names for states.
                raise FailedPrecondition(
                    f"{name} has not finished; cancel it, and delete it after it has finished"
                )
            if parent := _waiting_parent(connection, uid):
                raise FailedPrecondition(
                    f"{name} belongs to {parent.name}, which has not yet processed the end of {name}; "
                    f"delete {name} in a moment, or after the end of {parent.name}"
                )
            for statement in _OF_A_JOB:
                connection.execute(_SQL[statement], {"uid": uid})
            insert_operation(connection, operation)
            return uid

        return await self._writer.run("delete_job", work)

    async def drain_node(self, drain: NodeDrain) -> None:
        """Put a node under maintenance. If the node is already under maintenance, `since` stays unchanged,
        and the new reason replaces the old one."""
        await self._execute("drain_node", asdict(drain))

    async def undrain_node(self, node: str) -> None:
        """End the maintenance of a node. Has no effect if the node is not under maintenance."""
        await self._execute("undrain_node", {"node": node})

    async def set_quota(self, key: QuotaKey, limit: float | None, *, by_service: bool = True) -> None:
        """Set the limit of a quota. None removes the limit. `by_service`: whether an owner of the service
        makes the change. An owner of the project can neither exceed nor remove a limit that was set by an
        owner of the service: in these cases, PermissionDenied is raised."""
        most = limit if by_service else None
        # If the quota is a user's own quota, also check the limit for each user (EACH). This is not necessary
        # for a share, because the share for each user applies only to users without a share of their own.
        fallback = EACH if key.person and key.metric != SHARE else key.person
        parameters = asdict(key) | {"limit": limit, "most": most, "each": fallback}

        def work(connection: sqlite3.Connection) -> None:
            if not by_service:
                for person, bound in connection.execute(_SQL["quota_of_service"], parameters):
                    _refuse_looser(key, limit, person, bound)
            statement = "clear_quota" if limit is None else "set_quota"
            connection.execute(_SQL[statement], parameters)

        await self._writer.run("set_quota", work)

    async def _execute(self, statement: str, parameters: Parameters) -> int:
        """Execute an SQL statement in a transaction, and return the number of changed rows. `statement`: the
        name of the SQL statement, which is also the name of the calling method."""
        return await self._writer.run(
            statement, lambda connection: connection.execute(_SQL[statement], parameters).rowcount
        )


def _refuse_looser(key: QuotaKey, limit: float | None, person: str, most: float) -> None:
    """Raise PermissionDenied if an owner of a project would raise or remove a limit that an owner of the
    service has set. `most`: that limit. `person`: the user to whom it applies."""
    # The removal of a user's own limit is allowed, because the service's limit for each user still applies.
    is_kept = limit is None and person != key.person
    if is_kept or (limit is not None and limit <= most and key.metric != SHARE):
        return
    may = "" if key.metric == SHARE else f" An owner of the project can set at most {most:g}."
    raise PermissionDenied(
        f"An owner of the service limits {key.metric} to {most:g} for {person or 'the project'}, and only an "
        f"owner of the service can raise or remove that limit.{may}"
    )


def _live(connection: sqlite3.Connection, name: JobName, advice: str, call: RecordedCall | None) -> JobUid:
    """Return the uid of an unfinished job. Raise NotFound, or FailedPrecondition if the job has finished."""
    uid, state, is_live, _ = _existing(connection, name, call)
    if not is_live:
        raise FailedPrecondition(f"{name} has already ended ({state}); {advice}")
    return uid


def _waiting_parent(connection: sqlite3.Connection, uid: JobUid) -> Work | None:
    """Return the parent of a job (its tuning job or pipeline) if the parent has not yet processed the end of
    the job. If the job were deleted then, the parent could never learn how the job ended."""
    row = connection.execute(_SQL["live_parent"], {"uid": uid}).fetchone()
    if row is None:
        return None
    record, labels, updated, kind = row
    parent = decode_job(record, labels, updated, kind)
    match parent:
        case TuningJob():
            return parent if any(trial.job == uid for trial in parent.running) else None
        case Pipeline() | PipelineJob():
            return parent
        case Job():
            return None
        case _:
            assert_never(parent)


def _existing(
    connection: sqlite3.Connection, name: JobName, call: RecordedCall | None
) -> tuple[JobUid, str, bool, str]:
    """Return (UID, state, whether it is unfinished, etag) of a job. `call`: the call whose audit record
    receives the display name. Raise NotFound."""
    row = connection.execute(_SQL["job_by_name"], name_parameters(name)).fetchone()
    if row is None:
        raise missing(name)
    uid, state, is_live, generation, labels_version, display_name = row
    if call is not None:
        call.describe(name=display_name)
    return JobUid(uid), state, bool(is_live), etag(generation, labels_version)


class Ledger(Port):
    """The writes that only the controller performs."""

    def __init__(
        self, writer: Writing, snapshots: Reading, acquired: Callable[[int], None] = lambda _: None
    ) -> None:
        super().__init__(writer, snapshots)
        #: Called with each epoch that a leader has acquired. May raise OSError.
        self._acquired = acquired

    async def acquire(self, owner: str) -> int:
        """Become the leader, and return a new epoch. It is higher than all earlier epochs. Controllers with
        an earlier epoch can no longer commit."""

        def work(connection: sqlite3.Connection) -> int:
            # Use fetchall instead of fetchone: the COMMIT would fail while rows of a RETURNING statement are
            # unread.
            ((epoch,),) = connection.execute(_SQL["acquire"], {"owner": owner}).fetchall()
            return epoch

        epoch = await self._writer.run("acquire", work)
        # Ignore a failure to record the epoch in the lock file, for example on a full disk. The only
        # consequence is that the next start of the service has less information.
        with contextlib.suppress(OSError):
            self._acquired(epoch)
        return epoch

    async def create_admitted(self, epoch: int, made: NewWork) -> None:
        """Store a new job with generation 1 together with its first step: `Intake.create` and a commit in one
        transaction. Raises the errors of `Intake.create`, and StaleCommit if a newer epoch was acquired."""
        store = work_writer(made)

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute(_SQL["is_leader"], {"epoch": epoch}).fetchone() is None:
                raise StaleCommit(
                    f"cannot store the new job {made.job.uid}: a newer controller has replaced this one "
                    f"(epoch {epoch}), so this controller must stop"
                )
            store(connection)

        set_subject(made.job.name.project_id, str(made.job.name))
        await self._writer.run("create_admitted", work)

    async def load(self, uid: JobUid) -> LiveJob[Work] | None:
        """Return the job with its unprocessed intents. Return None if the job is finished, does not exist or
        is unreadable."""

        def read(connection: sqlite3.Connection) -> LiveJob[Work] | None:
            intents = tuple(map(_intent, connection.execute(_SQL["load_intents"], {"uid": uid})))
            rows = connection.execute(_SQL["load_job"], {"uid": uid})
            return next(decode_readable(rows, lambda row: _live_job(row, intents)), None)

        return self._snapshots.read_now(read)

    async def load_live(self) -> tuple[LiveJob[Work], ...]:
        """Return all readable unfinished jobs, oldest first. The duration of this call does not depend on the
        number of finished jobs."""

        def read(connection: sqlite3.Connection) -> tuple[LiveJob[Work], ...]:
            intents: dict[int, list[Intent]] = {}
            for uid, *row in connection.execute(_SQL["load_all_intents"]):
                intents.setdefault(uid, []).append(_intent(row))
            return tuple(
                decode_readable(
                    connection.execute(_SQL["load_live"]),
                    lambda row: _live_job(row[1:], tuple(intents.get(row[0], ()))),
                )
            )

        return await self._snapshots.read_async(read)

    async def commit(self, epoch: int, commit: Commit) -> int:
        """Store one step, and return the new generation. Raise StaleCommit and store nothing if the step is
        out of date. The caller then loads the job again and repeats the step. A step is out of date in these
        cases:

        - The generation is not the expected one.
        - A newer epoch was acquired.
        - The job was deleted.
        - The step would leave a final state.
        - The model's version already exists.
        - The step ends the job, but has not processed a stored intent. An accepted cancel is therefore never
          lost.
        """
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
        stores = [work_writer(made) for made in commit.made]
        if commit.model is not None:
            stores.append(version_writer(commit.model))

        def work(connection: sqlite3.Connection) -> int:
            rows = connection.execute(_SQL["commit_job"], parameters).fetchall()
            if not rows:
                raise StaleCommit(
                    f"job {job.uid}, step to {job.state}: the step is out of date. The job's generation is "
                    f"no longer {commit.expected_generation}, a new request has arrived, or a newer "
                    f"controller has replaced this one (epoch {epoch}). Load the job again"
                )
            connection.execute(_SQL["move_work"], parameters)
            if commit.consumed_intents:
                connection.execute(
                    _SQL["consume_intents"], {"uid": job.uid, "consumed": commit.consumed_intents}
                )
            append_timeline(connection, job.uid, commit.timeline)
            put_notifications(connection, commit.notifications)
            put_uses(connection, commit.uses)
            put_trials(connection, trials)
            put_measurements(connection, measurements)
            execute_writes(connection, commit.writes)
            try:
                for store in stores:
                    store(connection)
            except RequestError as taken:
                raise StaleCommit(f"job {job.uid}, step to {job.state}: {taken}") from taken
            return rows[0][0]

        return await self._writer.run("commit", work)


def _live_job(row: Sequence[Any], intents: tuple[Intent, ...]) -> LiveJob[Work]:
    """Return the live job from a row with the columns record, labels, labels_updated, kind, generation."""
    record, labels, labels_updated, kind, generation = row
    job = decode_job(record, labels, labels_updated, kind)
    return LiveJob(job, generation, intents)


def _intent(row: Sequence[Any]) -> Intent:
    seq, kind, encoded = row
    codec = {"cancel": CANCEL, "drill": DRILL}.get(kind)
    events = decode_readable([encoded], codec.decode) if codec is not None else iter(())
    return Intent(seq, next(events, None))


def put_uses(connection: sqlite3.Connection, uses: Iterable[Use]) -> None:
    """Store machine-use records, and delete expired ones."""
    for use in uses:
        connection.execute(_SQL["put_use"], use_parameters(use))
        connection.execute(_SQL["forget_use"], {"before": use.ended - _USES_KEPT})
