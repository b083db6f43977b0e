"""Reads jobs, tuning jobs, pipelines, operations, nodes, quotas and usage from SQLite. All parts of the
service use it."""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobName, JobUid
from trainshed.core.units import Nanos
from trainshed.core.usage import MachineTime
from trainshed.core.works import Work
from trainshed.store.codec import OPERATION, machine_time, name_parameters, quota, timeline_entry, viewed_job
from trainshed.store.port import Condition, Every, JobQuery, Matches, NodeDrain
from trainshed.store.records import Operation
from trainshed.store.sqlite.connections import (
    Parameters,
    Port,
    decode_readable,
    load_statements,
    missing,
    read_existing,
)
from trainshed.store.sqlite.narrowing import filter_works, walk

_SQL = load_statements("reader.sql")

_OF_A_BUCKET: Final = 3
"""Number of parts into which slashes split `gs://BUCKET`."""
_DEEPEST: Final = 64
"""Maximum number of parts of a URI that are compared."""
T = TypeVar("T")


class Reader(Port):
    """Reads from the store. All calls are cheap. A call sees all acknowledged writes."""

    async def job(self, name: JobName) -> tuple[Work, str]:
        """Return a job and its etag. Raise NotFound, or FailedPrecondition if the record is unreadable.
        `job_by_uid` and `find` raise the same errors."""
        return self._one_job("job", name_parameters(name), name)

    async def job_by_uid(self, uid: JobUid, projects: Sequence[str] = ()) -> tuple[Work, str]:
        """Return the job with this UID and its etag. `projects`: the projects to search; () = all projects.
        Raise NotFound."""
        parameters = {"uid": uid, "projects": json.dumps(list(projects))}
        return self._one_job("job_by_uid", parameters, f"the job with number {uid}")

    async def job_of_output(self, project_id: str, uri: str) -> JobUid | None:
        """Return the job of the project whose output directory contains a gs:// URI, or None. The innermost
        directory is used. If several jobs have the same directory, the newest job is returned."""
        parts = uri.rstrip("/").split("/")[:_DEEPEST]
        # Directories that contain the URI, from the innermost to the one directly below the bucket.
        places = ["/".join(parts[:end]) for end in range(len(parts), _OF_A_BUCKET, -1)]

        def read(connection: sqlite3.Connection) -> JobUid | None:
            for place in places:
                parameters = {"project_id": project_id, "uri": place}
                row = connection.execute(_SQL["job_of_output"], parameters).fetchone()
                if row is not None:
                    return JobUid(row[0])
            return None

        return self._snapshots.read_now(read)

    async def find(self, job_id: str, projects: Sequence[str] = ()) -> tuple[Work, str]:
        """Return the newest job with this job ID, of any API, and its etag. `projects`: the projects to
        search; () = all projects. Raise NotFound."""
        parameters = {"job_id": job_id, "projects": json.dumps(list(projects))}
        return self._one_job("find", parameters, f"a job with the id {job_id!r}")

    async def jobs(self, query: JobQuery) -> tuple[tuple[Work, str], ...]:
        """Return at most `limit` jobs with their etags, newest first. `query.after`: return only jobs with
        lower UIDs; 0 = all jobs."""
        return (await self.matching(query, Every(()))).jobs

    async def matching(self, query: JobQuery, where: Condition) -> Matches:
        """Return the jobs of a list that meet a condition. The duration of a call is limited, whatever the
        number of stored jobs."""

        def read(connection: sqlite3.Connection) -> Matches:
            page = filter_works(connection, walk(query), where)
            rows = connection.execute(_SQL["jobs_by_uids"], {"uids": json.dumps(page.uids)})
            return Matches(tuple(decode_readable(rows, viewed_job)), page.next_after)

        return await self._snapshots.read_async(read)

    async def counts(self, project_id: str | None, states: Sequence[str], most: int) -> Mapping[str, int]:
        """Return the number of jobs, tuning jobs and pipelines in each of these states. Only those that
        clients created are counted. The count for each state is at most `most`. `project_id`: None = all
        projects."""
        parameters = {"project_id": project_id, "states": json.dumps(list(states)), "most": most}
        name = "counts" if project_id is None else "counts_of_project"
        return dict(self._all(name, parameters, lambda row: (row[0], row[1])))

    async def projects(self) -> tuple[str, ...]:
        """Return the ids of the projects in which clients have created jobs, tuning jobs or pipelines,
        sorted."""
        return tuple(self._all("projects", {}, lambda row: row[0]))

    async def children(self, parent: JobUid) -> tuple[Work, ...]:
        """Return the jobs and tuning jobs that the tuning job or pipeline `parent` created, oldest first."""

        def read(connection: sqlite3.Connection) -> tuple[Work, ...]:
            rows = connection.execute(_SQL["children"], {"parent": parent})
            return tuple([work for work, _ in decode_readable(rows, viewed_job)])

        return await self._snapshots.read_async(read)

    async def child_states(self, parent: JobUid) -> dict[JobUid, JobState]:
        """Return the states of the works that the work `parent` created. Reads no records."""
        rows = self._all("child_states", {"parent": parent}, lambda row: (row[0], row[1]))
        return {JobUid(uid): JobState(state) for uid, state in rows}

    async def states(self, uids: Sequence[JobUid]) -> dict[JobUid, JobState]:
        """Return the states of these works, without works that do not exist. Reads no records."""
        rows = self._all("states", {"uids": json.dumps(uids)}, lambda row: (row[0], row[1]))
        return {JobUid(uid): JobState(state) for uid, state in rows}

    async def timeline(self, uid: JobUid) -> tuple[TimelineEntry, ...]:
        """Return the job's timeline in the order of writing. It is empty if the job does not exist."""
        return self._all("timeline", {"uid": uid}, timeline_entry)

    async def operation(self, name: str) -> Operation:
        """Return an operation. Raise NotFound."""
        return self._snapshots.read_now(
            lambda c: read_existing(c, _SQL["operation"], {"name": name}, OPERATION, name)
        )

    async def operations(self, parent: str, after: str, limit: int) -> tuple[Operation, ...]:
        """Return up to `limit` operations whose names begin with `parent` + "/operations/", in order of name.
        Start after the name `after`."""
        # "0" is the character after "/". The range therefore contains exactly the names with the prefix.
        first = f"{parent}/operations/"
        parameters = {"after": max(after, first), "before": f"{parent}/operations0", "limit": limit}
        return await self._records(_SQL["operations"], parameters, OPERATION)

    async def drained_nodes(self) -> tuple[NodeDrain, ...]:
        """Return all nodes under maintenance, by name."""
        return self._all("drained_nodes", {}, lambda row: NodeDrain(*row))

    async def quotas(self) -> tuple[tuple[QuotaKey, float], ...]:
        """Return all quotas that an operator has set, ordered by project, region, metric and user."""
        return self._all("quotas", {}, quota)

    async def machine_time(
        self, project_id: str | None, since: Nanos, until: Nanos
    ) -> tuple[MachineTime, ...]:
        """Return the machine use of ended attempts between two times. Entries that differ only in the job are
        added up. `project_id`: None = all projects."""
        parameters = {"project_id": project_id, "since": since, "until": until}
        rows = await self._snapshots.read_async(
            lambda connection: connection.execute(_SQL["machine_time"], parameters).fetchall()
        )
        return tuple(map(machine_time, rows))

    async def past_use(self, since: Nanos, stretch: Nanos) -> tuple[tuple[MachineTime, Nanos], ...]:
        """Return the machine use of ended attempts by project since a given time. It is divided into periods
        of the length `stretch`, each with its start time."""
        rows = await self._snapshots.read_async(
            lambda connection: connection.execute(
                _SQL["past_use"], {"since": since, "stretch": stretch}
            ).fetchall()
        )
        return tuple(
            (MachineTime(project_id, person, (), "", machine, accelerator, *used), number * stretch)
            for project_id, person, machine, accelerator, number, *used in rows
        )

    def _all(
        self, statement: str, parameters: Parameters, made: Callable[[tuple[Any, ...]], T]
    ) -> tuple[T, ...]:
        """Return all results of a statement that selects few rows. Runs on the event loop's thread."""

        def read(connection: sqlite3.Connection) -> tuple[T, ...]:
            return tuple(decode_readable(connection.execute(_SQL[statement], parameters), made))

        return self._snapshots.read_now(read)

    def _one_job(self, statement: str, parameters: Parameters, what: object) -> tuple[Work, str]:
        """Return a job with its etag. Raise NotFound, or FailedPrecondition if it is unreadable."""
        row = self._snapshots.read_now(lambda c: c.execute(_SQL[statement], parameters).fetchone())
        if row is None:
            raise missing(what)
        return viewed_job(row)
