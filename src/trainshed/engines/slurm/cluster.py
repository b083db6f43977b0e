"""A Slurm cluster as `engines.remote` wants one: an allocation for each hold, a step for each agent."""

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from trainshed.engines.remote.cluster import (
    AgentInput,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldEnd,
    HoldName,
    NodeNeed,
    Owner,
)
from trainshed.engines.slurm import commands, queries, reasons
from trainshed.engines.slurm.client import Output, SlurmClient
from trainshed.engines.slurm.commands import Ask
from trainshed.engines.slurm.field_queries import list_pending
from trainshed.engines.slurm.look import Look, compile_look, own_jobs
from trainshed.engines.slurm.records import Gres, Job
from trainshed.engines.slurm.routes import Routes, SlurmRoute
from trainshed.engines.slurm.settings import SlurmSettings
from trainshed.engines.slurm.users import Users, node_directory
from trainshed.eventloop.background import Crew, begin, joined

log = logging.getLogger(__name__)

_FRESH_SECONDS = 1.0
"""For so long after it was seen a job is certainly the one of that number: a controller that crashes, boots
and gives the number to another one takes longer."""
_PATIENT_SECONDS = 0.5
"""After which a request is looked at that was not granted at once."""
_UNSEEN_SECONDS = 5.0
"""After which a request that no look finds is lost: its controller crashed."""
_ENDED_SECONDS = 1.2
"""Seconds from the end of an agent's srun until the cluster is looked at: Slurm knows of the step's end by
then, and the agent has been silent for long enough to count as gone (`agents._SETTLED`)."""
_STRAY_SECONDS = 120.0
"""After which a request of before this service's start, that nobody came back for, is withdrawn."""
_REMEMBERED_SECONDS = 600.0
"""For which a name that was given back is not to come up again."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""By which commands are found on nodes."""


class _Seen(Struct, frozen=True):
    """The number of a hold's job, and when it was seen that it has it (monotonic)."""

    job: int
    when: float
    gres: Gres | None


class SlurmCluster:
    """A `Cluster`. `service`: the part of hold names that tells this service from others."""

    def __init__(self, settings: SlurmSettings, service: str) -> None:
        self._settings = settings
        self._routes = Routes(settings)
        self._service = service
        self._client = SlurmClient(settings, self._step_left)
        self._users = Users(settings)
        self._queries = queries.FIELDS
        self._tasks = Crew()
        self._started = 0.0
        self._is_detached = False
        self._look: Look | None = None
        #: When the last look that failed began, and why.
        self._failed: tuple[float, str] = (-math.inf, "")
        self._looked = asyncio.Condition()
        self._look_wanted = asyncio.Event()
        self._reader: asyncio.Queue[ClusterReport | None] = asyncio.Queue()
        #: The nodes of each hold that somebody waits for.
        self._wanted: dict[HoldName, frozenset[str]] = {}
        #: What was asked for since the start, of which no look need know yet.
        self._asked: set[HoldName] = set()
        self._seen: dict[HoldName, _Seen] = {}
        #: Given back, and when: a look that finds one of them gives it back again.
        self._given_back: dict[HoldName, float] = {}

    async def start(self) -> None:
        for name in ("salloc", "srun", "squeue", "sinfo", "scancel"):
            try:
                self._settings.command(name)
            except FileNotFoundError as e:
                raise ClusterRefused(str(e)) from None
        self._started = time.monotonic()
        for name in await self._users.load():
            log.warning("slurm: this machine knows no user %s ([engines.slurm.users])", name)
        await self._look_first()
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

    def suspect(self, node: str) -> None:
        pass  # It is looked at all the time.

    def detach(self) -> None:
        self._is_detached = True

    async def owner(self, project: str, node: str) -> Owner:
        return await self._users.owner(project)

    async def acquire(
        self, name: HoldName, needs: Sequence[NodeNeed], *, avoid: Collection[str] | None = None
    ) -> Hold:
        ask = self._ask(name, needs)
        if avoid is not None:
            ask = replace(ask, avoid=tuple(sorted(avoid)))
        self._given_back.pop(name, None)
        begun = time.monotonic()
        self._wanted[name] = frozenset(ask.nodes if avoid is None else ())
        try:
            hold = await self._find(name, ask) or await self._request(name, ask)
        except BaseException:
            if self._is_detached:
                raise
            # Of whatever became of it: what was sent to the controller may arrive there yet.
            self._given_back[name] = time.monotonic()
            if name in self._asked:
                withdrawing = begin(self._try_to_cancel(name), f"slurm: withdrawing {name}")
                await asyncio.shield(withdrawing)
            raise
        finally:
            del self._wanted[name]
        if time.monotonic() - begun > _PATIENT_SECONDS:
            # While it waited, reports said why.
            self._look_soon()
        return hold

    async def start_agent(
        self, hold: Hold, node: str, argv: Sequence[str], given: AgentInput
    ) -> None:
        try:
            user = await self._users.named(hold.name.user)
        except ClusterRefused as e:
            raise ClusterUnavailable(str(e)) from None
        seen = await self._certain(hold, node)
        errors = f"{node_directory(self._settings, user)}.errors/{hold.name}"
        command = commands.run_agent(
            seen.job,
            node,
            str(hold.name),
            argv,
            path=_PATH,
            errors=errors,
            gres=seen.gres,
        )
        try:
            await self._client.hand_over(command, given, str(hold.name), node, user)
        except ClusterUnavailable as e:
            raise ClusterUnavailable(f"{e} (what it complained of is in {errors} there)") from None

    async def ended(self, name: HoldName) -> HoldEnd | None:
        ask = self._queries.jobs([await self._user(name)], str(name), ended=True)
        try:
            found = list(self._queries.read_jobs(await self._client.answer(ask)))
        except ValueError as e:
            raise ClusterUnavailable(f"Slurm's answer is not understood: {e}") from e
        over = [job for job in found if not job.held and not job.pending]
        if not over:
            return None
        last = max(over, key=lambda job: job.id)
        if last.state == "COMPLETING":
            # Who ended it is told when the last of its processes has.
            raise ClusterUnavailable(f"{name}: job {last.id} is still ending")
        return reasons.end(last)

    async def ending(self, name: HoldName) -> HoldEnd | None:
        return None  # Agents are ended with what they run, and tell nothing.

    def adopted(self, name: HoldName, needs: Sequence[NodeNeed]) -> None:
        """A job of Slurm keeps the name that it has."""

    async def give_back(self, name: HoldName) -> None:
        self._given_back[name] = time.monotonic()
        self._seen.pop(name, None)
        user = await self._user(name)
        await self._client.end_agents(str(name), user)
        await self._client.answer(commands.cancel(str(name), user))

    def _step_left(self, name: str) -> None:
        """The srun of an agent has ended, perhaps with its step: look soon."""
        if any(name == str(hold) for hold in self._seen):
            asyncio.get_running_loop().call_later(_ENDED_SECONDS, self._look_soon)

    # Requests.

    def _ask(self, name: HoldName, needs: Sequence[NodeNeed]) -> Ask:
        first = needs[0]
        for need in needs:
            same = need.vcpus, need.memory_bytes, need.accelerators, need.wanted
            if same != (first.vcpus, first.memory_bytes, first.accelerators, first.wanted):
                raise ValueError(f"{name}: one hold is of nodes with equal needs")
        route = self._routes.of(first.wanted)
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
        )

    def _gres(self, need: NodeNeed, route: SlurmRoute) -> Gres | None:
        if not need.accelerators:
            return None
        if route.gres:
            return Gres(route.gres.name, route.gres.type, need.accelerators)
        known = self._settings.accelerators
        if need.accelerator not in known:
            raise ClusterRefused(
                f"no node of this cluster is known to have {need.accelerator}: [engines.slurm.accelerators] "
                f"names {', '.join(known) or 'no type'}"
            )
        return Gres("gpu", known[need.accelerator], need.accelerators)

    async def _find(self, name: HoldName, ask: Ask) -> Hold | None:
        """What is held by that name already, or is so when a request of before the last restart has been
        granted; None = there is neither."""
        # Nobody else gives these names: what this process did not ask for, and the last look did not find, is
        # not there.
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
        # Why it waits is to be told soon, if it does.
        telling = asyncio.get_running_loop().call_later(_PATIENT_SECONDS, self._look_soon)
        looking: asyncio.Task[Look] | None = None
        unseen = 0
        try:
            while True:
                looking = joined(self._look_after(look))
                output = await request.ended(looking)
                if output and output.code == 0 and ask.avoid is not None:
                    # Which nodes they are salloc does not say.
                    if found := await self._held(name):
                        return self._hold(name, found.id, found.nodes, ask.gres)
                    raise ClusterUnavailable(f"{name}: it was granted, and is gone")
                if output:
                    return self._granted(name, ask, output)
                look = looking.result()
                job = look.jobs.get(name)
                if job and job.held:
                    # Told so by the controller too, unless that crashed in between.
                    await request.leave()
                    return self._hold(name, job.id, job.nodes, ask.gres)
                if job:
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
        told = commands.complaint(output.err) or f"salloc ended with exit code {output.code}"
        if commands.refused(output.err):
            raise ClusterRefused(f"Slurm refuses {_in_words(ask)}: {told}")
        raise ClusterUnavailable(f"Slurm does not give {_in_words(ask)} now: {told}")

    def _judge(self, name: HoldName, job: Job, look: Look) -> None:
        """Raises ClusterRefused, ClusterUnavailable: a request waits in vain."""
        wanted = self._wanted[name]
        if job.waits_in_vain:
            raise ClusterRefused(
                f"Slurm would never start this ({job.description or job.reason}): the partition, account or "
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
        """Raises ClusterUnavailable: its job is not that hold's, or has not that node any more."""
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

    async def _held(self, name: HoldName, number: str = "") -> Job | None:
        """The job of that name that has its nodes, if Slurm knows one. `number`: of that one; "" = of any.
        Asks about this name alone, which costs less than a look at all."""
        user = await self._user(name)
        kind = self._queries
        answer = await self._client.answer(kind.jobs([user], str(name)))
        try:
            found = self._own(kind, answer)
        except ValueError as e:
            raise ClusterUnavailable(f"Slurm's answer is not understood: {e}") from e
        held = (job for told, job in found if told == name and job.held)
        return next((job for job in held if number in ("", str(job.id))), None)

    def _own(self, kind: queries.Queries, answer: str) -> tuple[tuple[HoldName, Job], ...]:
        """This service's jobs in an answer of squeue. Raises ValueError."""
        return own_jobs(kind, answer, self._service, self._users.name_of)

    async def _try_to_cancel(self, name: HoldName) -> None:
        """If it cannot be told to now, a look that finds it does it later."""
        with contextlib.suppress(ClusterUnavailable):
            await self._client.answer(commands.cancel(str(name), await self._user(name)))

    async def _user(self, name: HoldName) -> int:
        """Number of the user whose hold it is. Raises ClusterUnavailable."""
        try:
            user = await self._users.named(name.user)
        except ClusterRefused as e:
            raise ClusterUnavailable(str(e)) from None
        return user.uid if user else os.geteuid()

    # Looks.

    def _look_soon(self) -> None:
        self._look_wanted.set()

    async def _look_fresh(self) -> Look:
        """One that began after now; all who ask meanwhile share it. Raises ClusterUnavailable."""
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
        """The next one that succeeds."""
        async with self._looked:
            while (look := self._look) is None or look is last:
                await self._looked.wait()
            return look

    async def _look_on(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.look_every):
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

    async def _look_first(self) -> None:
        """The first look, which tells how the next ones are to ask."""
        wanted = self._settings.answers
        self._queries = queries.fitting(wanted, await self._client.answer(queries.ASK_RELEASE))
        try:
            await self._look_now()
        except ClusterUnavailable as e:
            if wanted != "auto" or self._queries is queries.FIELDS:
                raise
            self._queries = queries.FIELDS
            await self._look_now()
            log.warning("slurm: cannot be asked for JSON, and is asked for fields: %s", e)
        if wanted == "auto" and len(self.report().nodes) > queries.MOST_NODES_AS_JSON:
            self._queries = queries.FIELDS

    async def _look_now(self) -> None:
        begun = time.monotonic()
        ask, kind = self._client.answer, self._queries
        try:
            users = self._users.uids
            earlier = mine = self._own(kind, await ask(kind.jobs(users)))
            nodes = [await ask(command) for command in kind.nodes(self._routes.partitions)]
            if mine or self._wanted or self._seen:
                # Asked for again: what was the same before and after the nodes, was so with them.
                mine = self._own(kind, await ask(kind.jobs(users)))
            steps = await ask(kind.steps(users)) if mine else ""
            waits = any(job.pending for _, job in mine)
            pending = await ask(list_pending()) if waits else None
            known = {name: seen.job for name, seen in self._seen.items()}
            look = await asyncio.to_thread(
                compile_look,
                kind,
                begun,
                now=time.time(),
                jobs=mine,
                earlier=earlier,
                before=self._look.report if self._look else None,
                pending=pending,
                steps=steps,
                nodes=nodes,
                routes=self._routes,
                known=known,
            )
        except ValueError as e:
            raise ClusterUnavailable(f"Slurm's answer is not understood: {e}") from e
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
        found = look.report
        if not before or _told_of(before.report) != _told_of(found):
            self._reader.put_nowait(found)
        await self._give_back_strays(look)

    async def _give_back_strays(self, look: Look) -> None:
        """What nobody asks for: given back already, made twice, or waiting since before the start."""
        now = time.monotonic()
        for name, when in tuple(self._given_back.items()):
            if name not in look.jobs and now - when > _REMEMBERED_SECONDS:
                del self._given_back[name]
                self._asked.discard(name)
        for name, job in look.doubles:
            log.warning("%s: job %d is a second one: cancelled", name, job.id)
            with contextlib.suppress(ClusterUnavailable):
                await self._client.answer(commands.cancel(str(name), job.user, job.id))
        for name, job in look.jobs.items():
            returned = self._given_back.get(name, math.inf) < look.looked
            waits = (
                job.pending and name not in self._wanted and now - self._started > _STRAY_SECONDS
            )
            if returned or waits:
                log.info("%s: job %d is wanted no more: cancelled", name, job.id)
                await self._try_to_cancel(name)


def _told_of(report: ClusterReport) -> tuple[object, ...]:
    return report.nodes, report.agents, report.delays


def _in_words(ask: Ask) -> str:
    devices = f", {ask.gres.count} GPUs {ask.gres.type}" if ask.gres else ""
    memory = f"{ask.memory_bytes / (1 << 30):.1f} GiB"
    nodes = ", ".join(ask.nodes) if ask.avoid is None else f"{len(ask.nodes)} nodes"
    owner = f" for user {ask.user}" if ask.user else ""
    if ask.account:
        owner += f" on account {ask.account}"
    return f"{ask.cpus} CPUs, {memory}{devices} on each of {nodes}{owner}"
