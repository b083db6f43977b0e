"""Implements `remote`'s `Cluster` for Slurm: one Slurm job for each allocation, and one step for each
agent.

The module is long because it contains the whole interface `Cluster`. The rules are in the modules next to it.
"""

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.held import Leftover
from trainshed.eventloop.background import Crew, begin, joined
from trainshed_cluster.remote.cluster import (
    Allocation,
    AllocationEnd,
    AllocationName,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    NodeNeed,
    Owner,
)
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.client import Output, SlurmClient
from trainshed_cluster.slurm.commands import JobRequest
from trainshed_cluster.slurm.queries import list_jobs, list_limits, list_nodes, list_pending, list_steps
from trainshed_cluster.slurm.records import Gres, Job
from trainshed_cluster.slurm.routes import Routes, SlurmRoute
from trainshed_cluster.slurm.settings import SlurmSettings
from trainshed_cluster.slurm.snapshot import (
    MAX_ADOPTION_AGE,
    Snapshot,
    cause_of_end,
    compile_snapshot,
    own_jobs,
)
from trainshed_cluster.slurm.users import Users, node_directory

log = logging.getLogger(__name__)

_JOB_ID_MAX_AGE = 1.0
"""Seconds for which a job id is reliable after its last confirmation. Within this time, Slurm's controller
cannot crash, restart, and assign the id to another job."""
_PENDING_QUERY_DELAY = 0.5
"""Seconds after which a pending request causes a query of its state."""
_MAX_QUERIES = 3
"""Maximum number of repeated queries of this service's jobs. Queries are repeated until two successive
results are equal."""
_UNSEEN_TIMEOUT = 5.0
"""Seconds after which a request counts as lost if no query finds it. Slurm's controller has then crashed
before it saved the request."""
_STEP_END_DELAY = 1.2
"""Seconds between the end of an agent's srun and the next query. By the time of that query, Slurm has
recorded the end of the step, and the agent has been disconnected for at least `agents._REPORT_MARGIN`."""
_SAVE_INTERVAL = 6.0
"""Seconds until Slurm's controller (slurmctld) has certainly saved a confirmed change: it saves its state
every 5 s. If slurmctld crashes earlier, cancelled jobs reappear."""
_DURABLE_TIMEOUT = 20.0
"""Maximum seconds that the service waits at its end until slurmctld has saved the releases of allocations."""
_RELEASE_MEMORY_SECONDS = 600.0
"""Seconds after which a released allocation can no longer reappear."""
_EXTRA_SECONDS = 2 * MAX_ADOPTION_AGE
"""Seconds that the service adds to a job's time limit. These seconds cover the job's start, and later
attempts that adopt the allocation."""
_MAX_TIME_LIMIT = 365 * 86400
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of the commands that run on nodes."""


QUERY_INTERVAL: Final = 8.0
"""Seconds between two regular queries of the cluster. More frequent queries would burden Slurm's controller.
"""


class _KnownJob(Struct, frozen=True):
    """The id of an allocation's Slurm job, and the time of its last confirmation (monotonic seconds)."""

    job: int
    when: float
    gres: Gres | None


class SlurmCluster:
    """A `Cluster` of Slurm.

    Args:
        service: The part of allocation names that identifies this service.
        query_interval: Seconds between two queries (`QUERY_INTERVAL`).
    """

    def __init__(
        self, settings: SlurmSettings, service: str, *, query_interval: float = QUERY_INTERVAL
    ) -> None:
        self._query_interval = query_interval
        self._settings = settings
        self._routes = Routes(settings)
        self._service = service
        self._client = SlurmClient(settings, self._handle_step_end)
        self._users = Users(settings)
        self._tasks = Crew()
        self._is_detached = False
        self._snapshot: Snapshot | None = None
        #: Start time of the last failed query (monotonic seconds), and its error message. The message is ""
        #: if no query has failed since the last successful query.
        self._failed: tuple[float, str] = (-math.inf, "")
        self._query_done = asyncio.Condition()
        self._query_requested = asyncio.Event()
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()
        #: The requested nodes of each allocation for which an `acquire` call is waiting.
        self._awaited: dict[AllocationName, frozenset[str]] = {}
        #: Allocations that this service process has requested. The result of the last query may not contain
        #: them yet.
        self._requested: set[AllocationName] = set()
        self._known_jobs: dict[AllocationName, _KnownJob] = {}
        #: Maximum time limit of jobs in seconds, by partition. Partitions without a maximum are not in the
        #: dictionary.
        self._limits: dict[str, int] = {}
        #: The shortest time limit that Slurm has rejected although the partition's maximum allows it, by
        #: partition, account, QOS and user.
        self._rejected_limits: dict[tuple[str, ...], int] = {}
        #: Times at which allocations were released (monotonic seconds).
        self._released_at: dict[AllocationName, float] = {}

    async def start(self) -> None:
        try:
            self._settings.require_commands()
        except FileNotFoundError as e:
            raise ClusterRefused(str(e)) from None
        for name in await self._users.load():
            log.warning("slurm: user %s ([engines.slurm.users]) does not exist on this machine", name)
        self._limits = await self._client.query(list_limits())
        await self._query_now()
        self._tasks.keep(self._query_repeatedly, "slurm: looks")

    async def close(self) -> None:
        await self._tasks.close()
        await self._client.close()
        self._reader.put_nowait(None)

    def report(self) -> ClusterReport:
        assert self._snapshot, "the cluster was started"
        return self._snapshot.report

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reader.get()) is not None:
            yield report

    def detach(self) -> None:
        self._is_detached = True

    async def owner(self, project: str) -> Owner:
        return await self._users.owner(project)

    async def acquire(
        self, name: AllocationName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Allocation:
        ask = self._request_for(name, needs)
        if avoid is not None:
            ask = replace(ask, avoid=tuple(sorted(avoid)))
        self._released_at.pop(name, None)
        started_at, queried_at, known_job = (
            time.monotonic(),
            self.report().queried_at,
            self._known_jobs.get(name),
        )
        self._awaited[name] = frozenset(ask.nodes if avoid is None else ())
        try:
            allocation = await self._obtain(name, ask)
        except BaseException:
            # Keep an existing allocation with its programs.
            if self._is_detached or (known_job and known_job.when >= queried_at):
                raise
            # Record the release even if no job exists: a request that was sent to slurmctld may still arrive.
            self._released_at[name] = time.monotonic()
            if name in self._requested:
                withdrawing = begin(self._try_to_cancel(name), f"slurm: withdrawing {name}")
                await asyncio.shield(withdrawing)
            raise
        finally:
            del self._awaited[name]
        if time.monotonic() - started_at > _PENDING_QUERY_DELAY:
            # The last report still contains the reason why the request waited, so query again.
            self._query_soon()
        return allocation

    async def start_agent(self, allocation: Allocation, node: str, argv: Sequence[str], stdin: bytes) -> None:
        try:
            user = await self._users.user_of(allocation.name.user)
        except ClusterRefused as e:
            raise ClusterUnavailable(str(e)) from None
        known_job = await self._confirm_job(allocation, node)
        errors = f"{node_directory(self._settings, user)}.errors/{allocation.name}"
        command = commands.run_agent(
            known_job.job, node, str(allocation.name), argv, path=_PATH, errors=errors, gres=known_job.gres
        )
        try:
            await self._client.start_agent_step(command, stdin, str(allocation.name), node, user)
        except ClusterUnavailable as e:
            raise ClusterUnavailable(
                f"{e} (on that node, {errors} contains the agent's error output)"
            ) from None

    async def allocation_end(self, name: AllocationName) -> AllocationEnd | None:
        jobs = await self._client.query(list_jobs([await self._user(name)], str(name), ended=True))
        over = [job for job in jobs if not job.has_nodes and not job.is_pending]
        if not over:
            return None
        last = max(over, key=lambda job: job.id)
        if last.state == "COMPLETING":
            # Slurm reports the cause of a job's end only when the job's last process has ended.
            raise ClusterUnavailable(f"the Slurm job {last.id} of the allocation {name} is still ending")
        return cause_of_end(last)

    async def pending_end(self, name: AllocationName) -> AllocationEnd | None:
        # The cause is not needed: Slurm kills agents together with their programs, so agents report no ends.
        return None

    async def require_reachable(self, name: AllocationName) -> None:
        await self._granted_job(name)

    async def release(self, name: AllocationName) -> None:
        self._released_at[name] = time.monotonic()
        self._known_jobs.pop(name, None)
        user = await self._user(name)
        await self._client.end_agents(str(name), user)
        await self._client.run(commands.cancel(str(name), user))
        self._released_at[name] = time.monotonic()

    async def wait_durable(self, names: Collection[AllocationName]) -> tuple[Leftover, ...]:
        why = "the service ended before the release was certain"
        try:
            async with asyncio.timeout(_DURABLE_TIMEOUT):
                if names:
                    # Check whether Slurm responds. If it does not, the releases in `names` cannot succeed
                    # either.
                    await self._fresh_query()
                while unsaved := self._unsaved_releases():
                    last = max(self._released_at[name] for name in unsaved)
                    await asyncio.sleep(max(0.0, last + _SAVE_INTERVAL - time.monotonic()))
                    snapshot = await self._fresh_query()
                    for name in unsaved:
                        if name in snapshot.jobs:
                            self._released_at[name] = time.monotonic()
                            await self._try_to_cancel(name)
        except ClusterUnavailable as failure:
            why = str(failure)
        except TimeoutError:
            why = self._failed[1] or why
        unreleased = {*names, *self._unsaved_releases()}
        return tuple(
            [Leftover(str(name), why, await self._manual_command(name)) for name in sorted(unreleased)]
        )

    def _unsaved_releases(self) -> list[AllocationName]:
        """Return the released allocations that would reappear if Slurm's controller crashed now."""
        snapshot = self._snapshot
        return [
            name
            for name, when in self._released_at.items()
            if snapshot is None or name in snapshot.jobs or snapshot.queried_at < when + _SAVE_INTERVAL
        ]

    async def _manual_command(self, name: AllocationName) -> tuple[str, ...]:
        """Return the command with which an operator can release an allocation without this service."""
        try:
            user = await self._user(name)
        except ClusterUnavailable:
            user = os.geteuid()
        scancel, *options = commands.cancel(str(name), user)
        conf = self._settings.conf
        return (
            *(("env", f"SLURM_CONF={conf}") if conf else ()),
            # Do not search this process's PATH for scancel, because only the operator's PATH may contain
            # scancel.
            str(Path(self._settings.commands or "") / scancel),
            *options,
        )

    def _handle_step_end(self, name: str) -> None:
        """Query the cluster soon, because the srun process of an agent has ended, and the agent's step may
        have ended, too."""
        if any(name == str(allocation) for allocation in self._known_jobs):
            asyncio.get_running_loop().call_later(_STEP_END_DELAY, self._query_soon)

    # --- requests ---

    def _request_for(self, name: AllocationName, needs: Sequence[NodeNeed]) -> JobRequest:
        first = needs[0]
        for need in needs:
            same = need.vcpus, need.memory_bytes, need.accelerators, need.machine
            if same != (first.vcpus, first.memory_bytes, first.accelerators, first.machine):
                raise ValueError(
                    f"{name}: all nodes of an allocation must need the same CPUs, memory, accelerators and "
                    "machine type"
                )
        route = self._routes.of(first.machine)
        partitions = route.partition.split(",")
        longest = [self._limits.get(partition, _MAX_TIME_LIMIT) for partition in partitions]
        return JobRequest(
            name=str(name),
            nodes=tuple(need.node for need in needs),
            cpus=max(1, math.ceil(first.vcpus)),
            memory_bytes=first.memory_bytes,
            gres=self._gres(first, route),
            user=name.user,
            partition=route.partition,
            account=first.owner.account or route.account,
            qos=route.qos,
            constraint=route.constraint,
            extra=route.extra,
            seconds=min(first.seconds + _EXTRA_SECONDS, *longest) if first.seconds else None,
        )

    def _gres(self, need: NodeNeed, route: SlurmRoute) -> Gres | None:
        if not need.accelerators:
            return None
        if route.gres:
            return Gres(route.gres.name, route.gres.type, need.accelerators)
        known, wanted = self._settings.accelerators, need.machine.accelerator
        if wanted not in known:
            raise ClusterRefused(
                f"no node of this cluster has {wanted}: [engines.slurm.accelerators] "
                f"contains {', '.join(known) or 'no type'}; choose another accelerator, or add this one"
            )
        return Gres("gpu", known[wanted], need.accelerators)

    async def _obtain(self, name: AllocationName, ask: JobRequest) -> Allocation:
        """Return an allocation. If the allocation does not exist, request it. If the account or QOS rejects
        the time limit, request the allocation again without a time limit."""
        route_key = (ask.partition, ask.account, ask.qos, ask.user)
        if ask.seconds and ask.seconds >= self._rejected_limits.get(route_key, math.inf):
            ask = replace(ask, seconds=None)
        try:
            return await self._find(name, ask) or await self._request(name, ask)
        except (ClusterRefused, ClusterUnavailable) as failure:
            # Slurm's message does not show whether the time limit is never allowed or another limit is
            # reached now. If the message may be about the time limit, request the allocation again without a
            # time limit.
            may_be_time = isinstance(failure, ClusterRefused) or "time limit" in str(failure)
            if not ask.seconds or not may_be_time:
                raise
        await self._try_to_cancel(name)
        allocation = await self._request(name, replace(ask, seconds=None))
        self._rejected_limits[route_key] = ask.seconds
        return allocation

    async def _find(self, name: AllocationName, ask: JobRequest) -> Allocation | None:
        """Return the allocation of that name if it exists. If a service process requested it earlier and the
        request is pending, wait until Slurm grants it. None = neither an allocation nor a request exists."""
        # Only this service uses these names. If this process has not requested the allocation and the last
        # query did not find it, the allocation does not exist.
        if name not in self._requested and self._snapshot and name not in self._snapshot.jobs:
            return None
        snapshot = await self._fresh_query()
        while job := snapshot.jobs.get(name):
            if job.has_nodes:
                return self._record_job(name, job.id, job.nodes, ask.gres)
            self._raise_if_hopeless(name, job, snapshot)
            snapshot = await self._next_snapshot(snapshot)
        return None

    async def _request(self, name: AllocationName, ask: JobRequest) -> Allocation:
        self._requested.add(name)
        started_at, snapshot = time.monotonic(), self._snapshot
        user = await self._users.user_of(name.user)
        request = await self._client.request(commands.allocate(ask), user)
        # If Slurm does not grant the request at once, query the reason soon.
        query_timer = asyncio.get_running_loop().call_later(_PENDING_QUERY_DELAY, self._query_soon)
        next_query: asyncio.Task[Snapshot] | None = None
        unseen = 0
        try:
            while True:
                next_query = joined(self._next_snapshot(snapshot))
                output = await request.wait_for_output(next_query)
                if output and output.code == 0 and ask.avoid is not None:
                    # salloc does not print the nodes, so query them.
                    if existing := await self._granted_job(name):
                        return self._record_job(name, existing.id, existing.nodes, ask.gres)
                    raise ClusterUnavailable(f"{name}: Slurm granted the allocation, but it no longer exists")
                if output:
                    return self._parse_grant(name, ask, output)
                snapshot = next_query.result()
                job = snapshot.jobs.get(name)
                if job and job.has_nodes:
                    # slurmctld usually notifies salloc of the grant, but not if slurmctld has crashed in the
                    # meantime.
                    await request.detach()
                    return self._record_job(name, job.id, job.nodes, ask.gres)
                if job and snapshot.queried_at >= started_at:
                    unseen = 0
                    self._raise_if_hopeless(name, job, snapshot)
                elif snapshot.queried_at > started_at + _UNSEEN_TIMEOUT:
                    unseen += 1
                    if unseen > 1:
                        raise ClusterUnavailable(f"Slurm has lost the request for {name}")
        finally:
            query_timer.cancel()
            if next_query:
                next_query.cancel()
            ending = request.abandon() if self._is_detached else request.withdraw()
            await asyncio.shield(begin(ending, f"slurm: salloc of {name}"))

    def _parse_grant(self, name: AllocationName, ask: JobRequest, output: Output) -> Allocation:
        if output.code == 0:
            try:
                return self._record_job(name, commands.granted_job_id(output.err), ask.nodes, ask.gres)
            except ValueError as e:
                raise ClusterUnavailable(f"{name}: salloc: {e}") from None
        error_text = commands.error_text(output.err) or f"salloc ended with exit code {output.code}"
        if commands.is_permanent_error(output.err):
            raise ClusterRefused(f"Slurm rejects {_describe(ask)}: {error_text}")
        raise ClusterUnavailable(f"Slurm cannot grant {_describe(ask)} now: {error_text}")

    def _raise_if_hopeless(self, name: AllocationName, job: Job, snapshot: Snapshot) -> None:
        """Raise ClusterRefused if Slurm will never grant a pending request, and ClusterUnavailable if a
        requested node is not up."""
        wanted = self._awaited[name]
        if job.never_starts:
            raise ClusterRefused(
                f"Slurm would never start this job ({job.reason}), because of the partition, account or "
                "QOS; choose others in [engines.slurm]"
            )
        nodes_down = [
            f"{report.node.name}: {report.cause}"
            for report in snapshot.report.nodes
            if report.node.name in wanted and report.cause
        ]
        if nodes_down and job.reason.startswith(("ReqNodeNotAvail", "NodeDown")):
            raise ClusterUnavailable(
                f"Slurm does not allocate nodes that are not up: {'; '.join(nodes_down)}"
            )

    def _record_job(
        self, name: AllocationName, job: int, nodes: tuple[str, ...], gres: Gres | None
    ) -> Allocation:
        self._known_jobs[name] = _KnownJob(job, time.monotonic(), gres)
        return Allocation(name, str(job), nodes)

    async def _confirm_job(self, allocation: Allocation, node: str) -> _KnownJob:
        """Return the Slurm job of an allocation. Raises ClusterUnavailable if the job no longer exists or no
        longer includes the node."""
        known_job = self._known_jobs.get(allocation.name)
        if known_job and time.monotonic() - known_job.when < _JOB_ID_MAX_AGE and node in allocation.nodes:
            return known_job
        started_at = time.monotonic()
        job = await self._granted_job(allocation.name, allocation.cluster_id)
        if not job:
            raise ClusterUnavailable(
                f"the Slurm job {allocation.cluster_id} of the allocation {allocation.name} no longer exists"
            )
        if node not in job.nodes:
            raise ClusterUnavailable(
                f"the Slurm job {job.id} of the allocation {allocation.name} no longer includes {node}"
            )
        gres = known_job.gres if known_job else next(iter(job.gres), None)
        self._known_jobs[allocation.name] = _KnownJob(job.id, started_at, gres)
        return self._known_jobs[allocation.name]

    async def _granted_job(self, name: AllocationName, number: str | None = None) -> Job | None:
        """Return the Slurm job of an allocation, or None if the job does not exist or has no nodes. Queries
        only this job, which is cheaper than a full query. `number`: the job's id; None = any job of that
        name."""
        jobs = await self._own_jobs([await self._user(name)], str(name))
        held = (job for job_name, job in jobs if job_name == name and job.has_nodes)
        return next((job for job in held if number in (None, str(job.id))), None)

    async def _own_jobs(
        self, users: Iterable[int], name: str | None = None
    ) -> tuple[tuple[AllocationName, Job], ...]:
        """Query the Slurm jobs of this service that run as one of `users`. `name`: name of the jobs; None =
        all names. Raises ClusterUnavailable if Slurm does not respond."""
        jobs = await self._client.query(list_jobs(users, name))
        return own_jobs(jobs, self._service, self._users.name_of)

    async def _try_to_cancel(self, name: AllocationName) -> None:
        """Cancel the Slurm jobs of an allocation. Ignores failures, because `SlotAllocator` releases the
        allocation later."""
        with contextlib.suppress(ClusterUnavailable):
            await self._client.run(commands.cancel(str(name), await self._user(name)))

    async def _user(self, name: AllocationName) -> int:
        """Return the numeric id of the user of an allocation. Raises ClusterUnavailable if that user does not
        exist."""
        try:
            user = await self._users.user_of(name.user)
        except ClusterRefused as e:
            raise ClusterUnavailable(str(e)) from None
        return user.uid if user else os.geteuid()

    # --- queries ---

    def _query_soon(self) -> None:
        self._query_requested.set()

    async def _fresh_query(self) -> Snapshot:
        """Return the result of a query that starts after this call. Concurrent callers share one query.
        Raises ClusterUnavailable if the query fails."""
        now = time.monotonic()
        self._query_soon()
        async with self._query_done:
            while self._snapshot is None or self._snapshot.queried_at < now:
                when, why = self._failed
                if when >= now:
                    raise ClusterUnavailable(why)
                await self._query_done.wait()
            return self._snapshot

    async def _next_snapshot(self, last: Snapshot | None) -> Snapshot:
        """Wait for a successful query, and return its result. `last`: the result that the caller has."""
        async with self._query_done:
            while (snapshot := self._snapshot) is None or snapshot is last:
                await self._query_done.wait()
            return snapshot

    async def _query_repeatedly(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._query_interval):
                    await self._query_requested.wait()
            self._query_requested.clear()
            started_at = time.monotonic()
            try:
                await self._query_now()
            except ClusterUnavailable as e:
                if not self._failed[1]:
                    log.warning("slurm: no response: %s", e)
                async with self._query_done:
                    self._failed = (started_at, str(e))
                    self._query_done.notify_all()

    async def _query_now(self) -> None:
        started_at = time.monotonic()
        query, users = self._client.query, self._users.uids
        mine = await self._own_jobs(users)
        nodes = await query(list_nodes(self._routes.partitions))
        if mine or self._awaited or self._known_jobs:
            # Check that the same jobs had nodes before and after the query of the nodes. If so, they also had
            # these nodes during the query. Otherwise a job that started in between could be counted twice or
            # not at all.
            for _ in range(_MAX_QUERIES):
                earlier, mine = mine, await self._own_jobs(users)
                if _granted_ids(earlier) == _granted_ids(mine):
                    break
                nodes = await query(list_nodes(self._routes.partitions))
        has_pending = any(job.is_pending for _, job in mine)
        snapshot = await asyncio.to_thread(
            compile_snapshot,
            started_at,
            now=time.time(),
            jobs=mine,
            pending=await query(list_pending()) if has_pending else (),
            steps=await query(list_steps(users)) if mine else (),
            nodes=nodes,
            routes=self._routes,
            known={name: known_job.job for name, known_job in self._known_jobs.items()},
        )
        if self._failed[1]:
            log.info("slurm: the controller responds again")
        before = self._snapshot
        for name, job in snapshot.jobs.items():
            if job.has_nodes:
                known_job = self._known_jobs.get(name)
                gres = known_job.gres if known_job else next(iter(job.gres), None)
                self._known_jobs[name] = _KnownJob(job.id, started_at, gres)
        async with self._query_done:
            self._snapshot, self._failed = snapshot, (-math.inf, "")
            self._query_done.notify_all()
        report = snapshot.report
        if not before or _reported_fields(before.report) != _reported_fields(report):
            self._reader.put_nowait(report)
        await self._clean_up(snapshot)

    async def _clean_up(self, snapshot: Snapshot) -> None:
        """Cancel duplicate jobs of an allocation, and drop the records of old releases."""
        now = time.monotonic()
        for name, when in tuple(self._released_at.items()):
            if name not in snapshot.jobs and now - when > _RELEASE_MEMORY_SECONDS:
                del self._released_at[name]
                self._requested.discard(name)
        for name, job in snapshot.duplicates:
            log.warning("%s: cancelled the duplicate job %d", name, job.id)
            with contextlib.suppress(ClusterUnavailable):
                await self._client.run(commands.cancel(str(name), job.user, job.id))


def _granted_ids(jobs: Iterable[tuple[AllocationName, Job]]) -> set[int]:
    return {job.id for _, job in jobs if job.has_nodes}


def _reported_fields(report: ClusterReport) -> tuple[object, ...]:
    return report.nodes, report.agents, report.delays, report.idle


def _describe(ask: JobRequest) -> str:
    devices = f", {ask.gres.count} GPUs {ask.gres.type}" if ask.gres else ""
    memory = f"{ask.memory_bytes / (1 << 30):.1f} GiB"
    nodes = ", ".join(ask.nodes) if ask.avoid is None else f"{len(ask.nodes)} nodes"
    owner = f" for user {ask.user}" if ask.user else ""
    if ask.account:
        owner += f" on account {ask.account}"
    return f"{ask.cpus} CPUs, {memory}{devices} on each of {nodes}{owner}"
