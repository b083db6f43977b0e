"""Implements `remote`'s `Cluster` for Slurm: an allocation for each hold, a step for each agent."""

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
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldEnd,
    HoldName,
    NodeNeed,
    Owner,
)
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.client import Output, SlurmClient
from trainshed_cluster.slurm.commands import Ask
from trainshed_cluster.slurm.look import OLD_SECONDS, Look, compile_look, end_of, own_jobs
from trainshed_cluster.slurm.queries import (
    list_jobs,
    list_limits,
    list_nodes,
    list_pending,
    list_steps,
)
from trainshed_cluster.slurm.records import Gres, Job
from trainshed_cluster.slurm.routes import Routes, SlurmRoute
from trainshed_cluster.slurm.settings import SlurmSettings
from trainshed_cluster.slurm.users import Users, node_directory

log = logging.getLogger(__name__)

_FRESH_SECONDS = 1.0
"""For so long after it was seen a job is certainly the one of that number: a controller that crashes, boots
and gives the number to another one takes longer."""
_PATIENT_SECONDS = 0.5
"""After which a request is looked at that was not granted at once."""
_MOST_QUERIES = 3
"""Of this service's jobs after that of the nodes, until they stay the same meanwhile."""
_UNSEEN_SECONDS = 5.0
"""After which a request that no look finds is lost: its controller crashed."""
_ENDED_SECONDS = 1.2
"""Seconds from the end of an agent's srun until the cluster is looked at: Slurm knows of the step's end by
then, and the agent has been silent for long enough to count as gone (`agents._SETTLED`)."""
_SAVED_SECONDS = 6.0
"""After which slurmctld has written down what it has confirmed: it saves its state every 5 s. One that
crashes before comes back with what was cancelled meanwhile."""
_SETTLE_SECONDS = 20.0
"""For which a service that ends waits at most to be certain of that."""
_REMEMBERED_SECONDS = 600.0
"""For which a name that was given back is not to come up again."""
_SPARE_SECONDS = 2 * OLD_SECONDS
"""For which an allocation is requested beyond what its job may run: for what comes before, and for attempts
that adopt it until it is old."""
_LONGEST_SECONDS = 365 * 86400
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""By which commands are found on nodes."""


LOOK_EVERY: Final = 8.0
"""Seconds between two looks at the cluster, unless something asks for one sooner: more often is load for
Slurm's controller."""


class _Seen(Struct, frozen=True):
    """The id of a hold's Slurm job, and when that was last confirmed (monotonic seconds)."""

    job: int
    when: float
    gres: Gres | None


class SlurmCluster:
    """A `Cluster` of Slurm. `service`: the part of hold names that tells this service from others.
    `look_every`: as `LOOK_EVERY`."""

    def __init__(
        self, settings: SlurmSettings, service: str, *, look_every: float = LOOK_EVERY
    ) -> None:
        self._look_every = look_every
        self._settings = settings
        self._routes = Routes(settings)
        self._service = service
        self._client = SlurmClient(settings, self._step_left)
        self._users = Users(settings)
        self._tasks = Crew()
        self._is_detached = False
        self._look: Look | None = None
        #: When the last look that failed began (monotonic seconds), and why it failed.
        self._failed: tuple[float, str] = (-math.inf, "")
        self._looked = asyncio.Condition()
        self._look_wanted = asyncio.Event()
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()
        #: The nodes of each hold that a call waits for.
        self._wanted: dict[HoldName, frozenset[str]] = {}
        #: Holds that were requested since the start, which the last look may not have seen yet.
        self._asked: set[HoldName] = set()
        self._seen: dict[HoldName, _Seen] = {}
        #: Longest time limit in seconds by partition, of those that have one.
        self._limits: dict[str, int] = {}
        #: The shortest one that Slurm has refused all the same, by partition, account, QOS and user.
        self._refused: dict[tuple[str, ...], int] = {}
        #: When holds were given back.
        self._given_back: dict[HoldName, float] = {}

    async def start(self) -> None:
        try:
            self._settings.require_commands()
        except FileNotFoundError as e:
            raise ClusterRefused(str(e)) from None
        for name in await self._users.load():
            log.warning("slurm: this machine knows no user %s ([engines.slurm.users])", name)
        self._limits = await self._client.ask(list_limits())
        await self._look_now()
        self._tasks.keep(self._look_on, "slurm: looks")

    async def close(self) -> None:
        await self._tasks.close()
        await self._client.close()
        self._reader.put_nowait(None)

    def report(self) -> ClusterReport:
        assert self._look, "the cluster was started"
        return self._look.report

    async def watch(self) -> AsyncIterator[ClusterReport]:
        while (report := await self._reader.get()) is not None:
            yield report

    def detach(self) -> None:
        self._is_detached = True

    async def owner(self, project: str) -> Owner:
        return await self._users.owner(project)

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        ask = self._ask(name, needs)
        if avoid is not None:
            ask = replace(ask, avoid=tuple(sorted(avoid)))
        self._given_back.pop(name, None)
        begun, looked, seen = time.monotonic(), self.report().looked, self._seen.get(name)
        self._wanted[name] = frozenset(ask.nodes if avoid is None else ())
        try:
            hold = await self._obtain(name, ask)
        except BaseException:
            # What is held already stays, with the programs that run there.
            if self._is_detached or (seen and seen.when >= looked):
                raise
            # Noted whatever became of it: a request that was sent to slurmctld may still arrive.
            self._given_back[name] = time.monotonic()
            if name in self._asked:
                withdrawing = begin(self._try_to_cancel(name), f"slurm: withdrawing {name}")
                await asyncio.shield(withdrawing)
            raise
        finally:
            del self._wanted[name]
        if time.monotonic() - begun > _PATIENT_SECONDS:
            # Reports said why it waited, which is over.
            self._look_soon()
        return hold

    async def start_agent(self, hold: Hold, node: str, argv: Sequence[str], stdin: bytes) -> None:
        try:
            user = await self._users.named(hold.name.user)
        except ClusterRefused as e:
            raise ClusterUnavailable(str(e)) from None
        seen = await self._certain(hold, node)
        errors = f"{node_directory(self._settings, user)}.errors/{hold.name}"
        command = commands.run_agent(
            seen.job, node, str(hold.name), argv, path=_PATH, errors=errors, gres=seen.gres
        )
        try:
            await self._client.hand_over(command, stdin, str(hold.name), node, user)
        except ClusterUnavailable as e:
            raise ClusterUnavailable(f"{e} (what it complained of is in {errors} there)") from None

    async def ended(self, name: HoldName) -> HoldEnd | None:
        jobs = await self._client.ask(list_jobs([await self._user(name)], str(name), ended=True))
        over = [job for job in jobs if not job.held and not job.pending]
        if not over:
            return None
        last = max(over, key=lambda job: job.id)
        if last.state == "COMPLETING":
            # Slurm says who ended it once its last process has ended.
            raise ClusterUnavailable(f"{name}: job {last.id} is still ending")
        return end_of(last)

    async def ending(self, name: HoldName) -> HoldEnd | None:
        return None  # Slurm kills agents with their programs, so that they report nothing.

    async def require_answer(self, name: HoldName) -> None:
        await self._held(name)

    async def give_back(self, name: HoldName) -> None:
        self._given_back[name] = time.monotonic()
        self._seen.pop(name, None)
        user = await self._user(name)
        await self._client.end_agents(str(name), user)
        await self._client.answer(commands.cancel(str(name), user))
        self._given_back[name] = time.monotonic()

    async def settle(self, names: Collection[HoldName]) -> tuple[Leftover, ...]:
        why = "the service ended before that was certain"
        try:
            async with asyncio.timeout(_SETTLE_SECONDS):
                if names:
                    # Whether Slurm answers is the reason.
                    await self._look_fresh()
                while unsettled := self._unsettled():
                    last = max(self._given_back[name] for name in unsettled)
                    await asyncio.sleep(max(0.0, last + _SAVED_SECONDS - time.monotonic()))
                    look = await self._look_fresh()
                    for name in unsettled:
                        if name in look.jobs:
                            self._given_back[name] = time.monotonic()
                            await self._try_to_cancel(name)
        except ClusterUnavailable as failure:
            why = str(failure)
        except TimeoutError:
            why = self._failed[1] or why
        left = {*names, *self._unsettled()}
        return tuple([Leftover(str(name), why, await self._by_hand(name)) for name in sorted(left)])

    def _unsettled(self) -> list[HoldName]:
        """Return the holds that were given back, and that Slurm may have again when its controller
        crashes."""
        look = self._look
        return [
            name
            for name, when in self._given_back.items()
            if look is None or name in look.jobs or look.looked < when + _SAVED_SECONDS
        ]

    async def _by_hand(self, name: HoldName) -> tuple[str, ...]:
        """Return the command that gives a hold back without this service."""
        try:
            user = await self._user(name)
        except ClusterUnavailable:
            user = os.geteuid()
        scancel, *options = commands.cancel(str(name), user)
        conf = self._settings.conf
        return (
            *(("env", f"SLURM_CONF={conf}") if conf else ()),
            # Whoever runs it has the command, even if this process does not find it now.
            str(Path(self._settings.commands or "") / scancel),
            *options,
        )

    def _step_left(self, name: str) -> None:
        """Look soon, because the srun of an agent has ended, perhaps with its step."""
        if any(name == str(hold) for hold in self._seen):
            asyncio.get_running_loop().call_later(_ENDED_SECONDS, self._look_soon)

    # Requests.

    def _ask(self, name: HoldName, needs: Sequence[NodeNeed]) -> Ask:
        first = needs[0]
        for need in needs:
            same = need.vcpus, need.memory_bytes, need.accelerators, need.machine
            if same != (first.vcpus, first.memory_bytes, first.accelerators, first.machine):
                raise ValueError(f"{name}: one hold is of nodes with equal needs")
        route = self._routes.of(first.machine)
        partitions = route.partition.split(",")
        longest = [self._limits.get(partition, _LONGEST_SECONDS) for partition in partitions]
        return Ask(
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
            seconds=min(first.seconds + _SPARE_SECONDS, *longest) if first.seconds else None,
        )

    def _gres(self, need: NodeNeed, route: SlurmRoute) -> Gres | None:
        if not need.accelerators:
            return None
        if route.gres:
            return Gres(route.gres.name, route.gres.type, need.accelerators)
        known, wanted = self._settings.accelerators, need.machine.accelerator
        if wanted not in known:
            raise ClusterRefused(
                f"no node of this cluster is known to have {wanted}: [engines.slurm.accelerators] "
                f"names {', '.join(known) or 'no type'}"
            )
        return Gres("gpu", known[wanted], need.accelerators)

    async def _obtain(self, name: HoldName, ask: Ask) -> Hold:
        """Find or request a hold. Where account or QOS let it have no such time limit, theirs has to do."""
        way = (ask.partition, ask.account, ask.qos, ask.user)
        if ask.seconds and ask.seconds >= self._refused.get(way, math.inf):
            ask = replace(ask, seconds=None)
        try:
            return await self._find(name, ask) or await self._request(name, ask)
        except (ClusterRefused, ClusterUnavailable) as failure:
            # One message of Slurm's is for limits of time and for those that waiting helps against.
            may_be_time = isinstance(failure, ClusterRefused) or "time limit" in str(failure)
            if not ask.seconds or not may_be_time:
                raise
        await self._try_to_cancel(name)
        hold = await self._request(name, replace(ask, seconds=None))
        self._refused[way] = ask.seconds
        return hold

    async def _find(self, name: HoldName, ask: Ask) -> Hold | None:
        """Return the existing hold of that name; wait if a request from before the last restart is still
        pending. None = there is neither."""
        # Only this service uses these names: a hold that this process did not request, and the last look did
        # not find, does not exist.
        if name not in self._asked and self._look and name not in self._look.jobs:
            return None
        look = await self._look_fresh()
        while job := look.jobs.get(name):
            if job.held:
                return self._hold(name, job.id, job.nodes, ask.gres)
            self._judge(name, job, look)
            look = await self._look_after(look)
        return None

    async def _request(self, name: HoldName, ask: Ask) -> Hold:
        self._asked.add(name)
        begun, look = time.monotonic(), self._look
        user = await self._users.named(name.user)
        request = await self._client.request(commands.allocate(ask), user)
        # If it has to wait, users should soon be told why.
        telling = asyncio.get_running_loop().call_later(_PATIENT_SECONDS, self._look_soon)
        looking: asyncio.Task[Look] | None = None
        unseen = 0
        try:
            while True:
                looking = joined(self._look_after(look))
                output = await request.ended(looking)
                if output and output.code == 0 and ask.avoid is not None:
                    # salloc does not say which nodes were granted.
                    if existing := await self._held(name):
                        return self._hold(name, existing.id, existing.nodes, ask.gres)
                    raise ClusterUnavailable(f"{name}: it was granted, and is gone")
                if output:
                    return self._granted(name, ask, output)
                look = looking.result()
                job = look.jobs.get(name)
                if job and job.held:
                    # slurmctld tells salloc as well, unless it crashed in between.
                    await request.leave()
                    return self._hold(name, job.id, job.nodes, ask.gres)
                if job and look.looked >= begun:
                    unseen = 0
                    self._judge(name, job, look)
                elif look.looked > begun + _UNSEEN_SECONDS:
                    unseen += 1
                    if unseen > 1:
                        raise ClusterUnavailable(f"Slurm has lost the request for {name}")
        finally:
            telling.cancel()
            if looking:
                looking.cancel()
            ending = request.abandon() if self._is_detached else request.withdraw()
            await asyncio.shield(begin(ending, f"slurm: salloc of {name}"))

    def _granted(self, name: HoldName, ask: Ask, output: Output) -> Hold:
        if output.code == 0:
            try:
                return self._hold(name, commands.granted(output.err), ask.nodes, ask.gres)
            except ValueError as e:
                raise ClusterUnavailable(f"{name}: salloc: {e}") from None
        complaint = commands.complaint(output.err) or f"salloc ended with exit code {output.code}"
        if commands.refused(output.err):
            raise ClusterRefused(f"Slurm refuses {_in_words(ask)}: {complaint}")
        raise ClusterUnavailable(f"Slurm does not give {_in_words(ask)} now: {complaint}")

    def _judge(self, name: HoldName, job: Job, look: Look) -> None:
        """Raise ClusterRefused or ClusterUnavailable if a request waits in vain."""
        wanted = self._wanted[name]
        if job.waits_in_vain:
            raise ClusterRefused(
                f"Slurm would never start this ({job.reason}): the partition, account or "
                "QOS does not let it, or not one job so large; others are chosen in [engines.slurm]"
            )
        away = [
            f"{report.node.name}: {report.cause}"
            for report in look.report.nodes
            if report.node.name in wanted and report.cause
        ]
        if away and job.reason.startswith(("ReqNodeNotAvail", "NodeDown")):
            raise ClusterUnavailable(f"Slurm gives no nodes that are not up: {'; '.join(away)}")

    def _hold(self, name: HoldName, job: int, nodes: tuple[str, ...], gres: Gres | None) -> Hold:
        self._seen[name] = _Seen(job, time.monotonic(), gres)
        return Hold(name, str(job), nodes)

    async def _certain(self, hold: Hold, node: str) -> _Seen:
        """Confirm that a hold still has its job and the node. Raises ClusterUnavailable if it does not."""
        seen = self._seen.get(hold.name)
        if seen and time.monotonic() - seen.when < _FRESH_SECONDS and node in hold.nodes:
            return seen
        begun = time.monotonic()
        job = await self._held(hold.name, hold.cluster_id)
        if not job:
            raise ClusterUnavailable(
                f"{hold.name}: Slurm holds no job {hold.cluster_id} for it any more"
            )
        if node not in job.nodes:
            raise ClusterUnavailable(f"{hold.name}: job {job.id} has {node} no more")
        gres = seen.gres if seen else next(iter(job.gres), None)
        self._seen[hold.name] = _Seen(job.id, begun, gres)
        return self._seen[hold.name]

    async def _held(self, name: HoldName, number: str | None = None) -> Job | None:
        """Return the job of that name that has its nodes, if Slurm knows one. `number`: the job's id; None =
        any. Queries this name alone, which is cheaper than a look."""
        jobs = await self._own([await self._user(name)], str(name))
        held = (job for job_name, job in jobs if job_name == name and job.held)
        return next((job for job in held if number in (None, str(job.id))), None)

    async def _own(
        self, users: Iterable[int], name: str | None = None
    ) -> tuple[tuple[HoldName, Job], ...]:
        """Return this service's jobs of those users. `name`: of the jobs; None = all. Raises
        ClusterUnavailable."""
        jobs = await self._client.ask(list_jobs(users, name))
        return own_jobs(jobs, self._service, self._users.name_of)

    async def _try_to_cancel(self, name: HoldName) -> None:
        """Cancel a hold's jobs. If Slurm does not answer now, they are found later as those of nobody."""
        with contextlib.suppress(ClusterUnavailable):
            await self._client.answer(commands.cancel(str(name), await self._user(name)))

    async def _user(self, name: HoldName) -> int:
        """Return the id of the hold's user. Raises ClusterUnavailable."""
        try:
            user = await self._users.named(name.user)
        except ClusterRefused as e:
            raise ClusterUnavailable(str(e)) from None
        return user.uid if user else os.geteuid()

    # Looks.

    def _look_soon(self) -> None:
        self._look_wanted.set()

    async def _look_fresh(self) -> Look:
        """Return a look that begins after this call; concurrent callers share it. Raises
        ClusterUnavailable."""
        now = time.monotonic()
        self._look_soon()
        async with self._looked:
            while self._look is None or self._look.looked < now:
                when, why = self._failed
                if when >= now:
                    raise ClusterUnavailable(why)
                await self._looked.wait()
            return self._look

    async def _look_after(self, last: Look | None) -> Look:
        """Wait for the next look that succeeds after `last`."""
        async with self._looked:
            while (look := self._look) is None or look is last:
                await self._looked.wait()
            return look

    async def _look_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_every):
                    await self._look_wanted.wait()
            self._look_wanted.clear()
            begun = time.monotonic()
            try:
                await self._look_now()
            except ClusterUnavailable as e:
                if not self._failed[1]:
                    log.warning("slurm: no answer: %s", e)
                async with self._looked:
                    self._failed = (begun, str(e))
                    self._looked.notify_all()

    async def _look_now(self) -> None:
        begun = time.monotonic()
        ask, users = self._client.ask, self._users.uids
        mine = await self._own(users)
        nodes = await ask(list_nodes(self._routes.partitions))
        if mine or self._wanted or self._seen:
            # Jobs that are the same before and after the query of the nodes were so during it. What was
            # granted in between would count as others' on one side alone.
            for _ in range(_MOST_QUERIES):
                earlier, mine = mine, await self._own(users)
                if _held_ids(earlier) == _held_ids(mine):
                    break
                nodes = await ask(list_nodes(self._routes.partitions))
        waits = any(job.pending for _, job in mine)
        look = await asyncio.to_thread(
            compile_look,
            begun,
            now=time.time(),
            jobs=mine,
            pending=await ask(list_pending()) if waits else (),
            steps=await ask(list_steps(users)) if mine else (),
            nodes=nodes,
            routes=self._routes,
            known={name: seen.job for name, seen in self._seen.items()},
        )
        if self._failed[1]:
            log.info("slurm: answers again")
        before = self._look
        for name, job in look.jobs.items():
            if job.held:
                seen = self._seen.get(name)
                gres = seen.gres if seen else next(iter(job.gres), None)
                self._seen[name] = _Seen(job.id, begun, gres)
        async with self._looked:
            self._look, self._failed = look, (-math.inf, "")
            self._looked.notify_all()
        report = look.report
        if not before or _told_of(before.report) != _told_of(report):
            self._reader.put_nowait(report)
        await self._tidy(look)

    async def _tidy(self, look: Look) -> None:
        """Cancel what exists twice, and forget what was given back for good."""
        now = time.monotonic()
        for name, when in tuple(self._given_back.items()):
            if name not in look.jobs and now - when > _REMEMBERED_SECONDS:
                del self._given_back[name]
                self._asked.discard(name)
        for name, job in look.doubles:
            log.warning("%s: job %d is a second one: cancelled", name, job.id)
            with contextlib.suppress(ClusterUnavailable):
                await self._client.answer(commands.cancel(str(name), job.user, job.id))


def _held_ids(jobs: Iterable[tuple[HoldName, Job]]) -> set[int]:
    return {job.id for _, job in jobs if job.held}


def _told_of(report: ClusterReport) -> tuple[object, ...]:
    return report.nodes, report.agents, report.delays, report.idle


def _in_words(ask: Ask) -> str:
    devices = f", {ask.gres.count} GPUs {ask.gres.type}" if ask.gres else ""
    memory = f"{ask.memory_bytes / (1 << 30):.1f} GiB"
    nodes = ", ".join(ask.nodes) if ask.avoid is None else f"{len(ask.nodes)} nodes"
    owner = f" for user {ask.user}" if ask.user else ""
    if ask.account:
        owner += f" on account {ask.account}"
    return f"{ask.cpus} CPUs, {memory}{devices} on each of {nodes}{owner}"
