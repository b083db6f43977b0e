"""Makes slots on a cluster's nodes: it acquires holds and has agents started on them, which give out the
slots."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from trainshed.core.capacity import Delay, WaitReason
from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.port import (
    EngineUnavailable,
    LaunchRejected,
    Slot,
    SlotRequest,
    StartFailed,
    StillWaiting,
)
from trainshed.eventloop.background import Crew, joined
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.agent_starter import AgentStarter, all_or_none
from trainshed_cluster.remote.agents import Agents
from trainshed_cluster.remote.cluster import (
    ClusterRefused,
    ClusterUnavailable,
    Hold,
    HoldName,
    Owner,
)
from trainshed_cluster.remote.content.library import Refused, named_by
from trainshed_cluster.remote.gang import (
    Gang,
    Seat,
    given,
    has_to_move,
    hold_name,
    left_on,
    place,
    vacated,
    with_them,
)
from trainshed_cluster.remote.kept_holds import KeptHolds

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds that one `allocate` waits; the next one goes on waiting for the same."""
_ROUND = 5.0
"""Seconds between two looks at what is held in vain."""
_REST_SECONDS = 600.0
"""For which nodes of one kind are held while those of another are waited for."""
_TOLD_AFTER = 2.0
"""Seconds after which it is told that nodes are being sent content."""
_NAMED = 3
"""So many of them are named."""


class SlotMaker:
    """Makes the slots of gangs. A preparation goes on when its caller stops waiting; the next call of
    `prepare` waits for the same one."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._attempts = agents.attempts
        self._cluster = agents.cluster
        self._nodes = agents.nodes
        self._options = agents.options
        self._preparing: dict[tuple[JobUid, int], asyncio.Task[None]] = {}
        self.kept = KeptHolds(agents)
        self._starter = AgentStarter(agents)
        self._tasks = Crew()

    def begin(self) -> None:
        """Called once the cluster has been looked at for the first time and agents may connect."""
        self._tasks.keep(self._give_back_strays, "giving back what nobody has")
        self._tasks.keep(self._leave_nodes, "leaving nodes where nothing is to run")

    async def close(self) -> tuple[HoldName, ...]:
        """Stop all work. Holds of attempts that are not over stay; those of others are given back as far as
        the cluster answers, and the rest of them is returned."""
        for task in self._preparing.values():
            task.cancel()
        await asyncio.gather(*self._preparing.values(), return_exceptions=True)
        await self.kept.close()
        await self._tasks.close()
        left = (gang for gang in self._attempts.gangs.values() if gang.is_released)
        return (*self.kept.names(), *(name for gang in left for name in self._holds_of(gang)))

    async def stop_preparing(self, gang: Gang) -> None:
        if (preparing := self._preparing.get(gang.key)) is not None:
            preparing.cancel()
            await asyncio.gather(preparing, return_exceptions=True)

    async def owner(self, requests: Sequence[SlotRequest]) -> Owner:
        """Return the owner of a gang's holds. Raises LaunchRejected."""
        try:
            return await self._cluster.owner(requests[0].project)
        except ClusterRefused as failure:
            raise LaunchRejected(str(failure)) from failure

    async def move(self, gang: Gang, requests: Sequence[SlotRequest]) -> None:
        """Move the replicas that are requested on another node there. Raises EngineUnavailable,
        LaunchRejected."""
        await self._vacate(
            gang, [asked_for.replica for asked_for in requests if not asked_for.is_placed]
        )
        moving = [
            request
            for request in requests
            if request.is_placed
            and (seat := gang.record.seat(request.replica))
            and has_to_move(gang, seat, request.node)
        ]
        if not moving:
            return
        if not self._options.anywhere:
            self._nodes.require(moving)
        seats = [gang.record.seat(request.replica) for request in moving]
        if live := [str(seat.replica) for seat in seats if seat and gang.is_live(seat)]:
            raise EngineUnavailable(
                f"{', '.join(live)} still run where they are; stop them and wait for their end"
            )
        await self.stop_preparing(gang)
        before = gang.record
        if not self._options.anywhere:
            moving += with_them(gang, moving, requests)
        await self._attempts.write(gang, self._starter.moved(before, moving))
        for part in before.parts.keys() - gang.record.parts.keys():
            self.kept.give_back(self.kept.taken_from(gang, before, part))

    async def _vacate(self, gang: Gang, replicas: Iterable[ReplicaId]) -> None:
        """Free the seats of replicas that have lost their node and wait for another: holds that become empty
        are given back, and no agent is awaited there."""
        record = vacated(gang, replicas)
        if record is gang.record:
            return
        await self.stop_preparing(gang)
        await self._attempts.write(gang, record)
        taken = {place(seat.part, seat.request.node) for seat in record.seats if not seat.is_vacant}
        for part in record.parts.keys() - {s.part for s in record.seats if not s.is_vacant}:
            self.kept.give_back(self.kept.taken_from(gang, record, part))
        left = [where for where in gang.agents if where not in taken]
        for agent in [gang.agents.pop(where) for where in left]:
            self._tasks.begin(self._agents.dismiss(agent), "letting an agent go")

    async def prepare(self, gang: Gang) -> None:
        """Wait a while until all slots are given out. Raises EngineUnavailable, LaunchRejected,
        StartFailed."""
        if not gang.is_complete():
            gang.require_not_refused()
            preparing = self._preparing.get(gang.key)
            if preparing is None:
                preparing = self._preparing[gang.key] = joined(self._prepare(gang))
                preparing.add_done_callback(lambda done: self._no_longer(gang, done))
            await asyncio.wait([preparing], timeout=_PATIENCE)
            if not preparing.done():
                raise self._waiting(gang)
            if preparing.cancelled():
                raise EngineUnavailable("the attempt was stopped, or given back")
            gang.require_not_refused()
            preparing.result()

    async def provide(self, gang: Gang, plans: Sequence[LaunchPlan]) -> None:
        """Have every node fetch the content that its plans need. If that takes longer than a call may, it
        goes on, and the next launch waits for the same; that is reported meanwhile. Raises
        EngineUnavailable, LaunchRejected."""
        library = self._options.library
        if library is None:
            return
        by_agent: dict[str, list[LaunchPlan]] = {}
        for plan in plans:
            seat = gang.record.seat(plan.replica)
            assert seat is not None
            by_agent.setdefault(place(seat.part, seat.request.node), []).append(plan)
        calls: list[Awaitable[object]] = []
        for where, own in by_agent.items():
            try:
                manifest = await library.manifest(named_by(own))
            except Refused as refusal:
                raise LaunchRejected(str(refusal)) from refusal
            except OSError as failure:
                raise EngineUnavailable(f"what programs need is not there: {failure}") from failure
            agent = gang.agents[where]
            agent.granted.update(unit.path for unit in manifest.units)
            calls.append(agent.call(messages.Provide(content=manifest)))
        delay = _sending([gang.agents[where].node for where in by_agent])
        telling = asyncio.get_running_loop().call_later(
            _TOLD_AFTER, self._attempts.report_delay, gang, delay
        )
        try:
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            telling.cancel()
        for outcome in outcomes:
            if isinstance(outcome, EngineUnavailable) and isinstance(
                outcome.__cause__, TimeoutError
            ):
                raise StillWaiting(str(outcome)) from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        self._attempts.report_delay(gang, None)

    def _holds_of(self, gang: Gang) -> list[HoldName]:
        return [hold_name(self._options.identity, gang.record, part) for part in gang.record.parts]

    async def _give_back_strays(self) -> None:
        """Give back holds that no attempt knows: those that a killed service had kept, or had not given back,
        or that were granted after it was killed."""
        before: set[HoldName] = set()
        while True:
            await asyncio.sleep(_ROUND)
            known = self.kept.names().union(*map(self._holds_of, self._attempts.gangs.values()))
            report = self._cluster.report()
            strays = (report.agents.keys() | report.idle) - known
            for name in strays & before:
                log.warning("%s: held for no attempt: given back", name)
                # If the cluster does not answer now, the next round does it.
                with contextlib.suppress(ClusterUnavailable):
                    await self._cluster.give_back(name)
            before = strays

    async def _leave_nodes(self) -> None:
        """Give up places on nodes that are not up and where no program lives any more: their replicas wait
        for another node, and may only start there."""
        before: dict[tuple[JobUid, int], set[ReplicaId]] = {}
        while True:
            await asyncio.sleep(_ROUND)
            nodes = self._nodes.not_up()
            left = {
                key: left_on(gang, nodes)
                for key, gang in self._attempts.gangs.items()
                # A stopped attempt is given back as a whole, after its failed replicas' files were fetched.
                if gang.record.stopped is None
            }
            for key in [key for key, some in left.items() if some & before.get(key, set())]:
                async with self._attempts.lock(key):
                    gang = self._attempts.gangs.get(key)
                    if gang is None or gang.record.stopped is not None or key in self._preparing:
                        continue
                    # They may have been started again, or the node may be up, by now.
                    still = left_on(gang, self._nodes.not_up()) & before[key]
                    with contextlib.suppress(EngineUnavailable):
                        await self._vacate(gang, still)
            before = left

    def _no_longer(self, gang: Gang, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            # Perhaps no call waits for it now; a final failure is kept for the next call, which otherwise
            # begins anew.
            log.info("job %s: its slots are not ready: %s", gang.record.job_uid, failure)
            if isinstance(failure, LaunchRejected | StartFailed):
                gang.refused = failure
        if self._preparing.get(gang.key) is task:
            del self._preparing[gang.key]

    def _waiting(self, gang: Gang) -> EngineUnavailable:
        """Return the exception that says that slots are not ready yet; a known reason has been reported
        already."""
        if gang.delay is not None:
            return StillWaiting(gang.delay.message)
        return EngineUnavailable(
            "the cluster has not given all nodes, or their agents take their time"
        )

    async def _prepare(self, gang: Gang) -> None:
        """Acquire every hold, start an agent wherever one is missing, and have the agents give out their
        slots."""
        try:
            holds: dict[int, Hold] = {}
            if self._options.anywhere:
                holds = await self._hold_anywhere(gang)
            else:
                await self.kept.adopt(gang)
            await self._get_slots(gang, await self._with_agents(gang, holds))
        except ClusterRefused as failure:
            raise LaunchRejected(str(failure)) from failure
        except ClusterUnavailable as failure:
            raise EngineUnavailable(str(failure)) from failure
        if gang.failed_starts:
            gang.failed_starts.clear()
            self._attempts.report_delay(gang, None)

    async def _hold_anywhere(self, gang: Gang) -> dict[int, Hold]:
        """Acquire all holds on nodes that the cluster chooses, and write those down."""
        if self._options.apart:
            holds = await self._hold_together(gang)
        else:
            holds = await self._hold_in_turn(gang)
        async with self._attempts.lock(gang.key):
            record = gang.record
            for part, hold in holds.items():
                record = given(record, part, hold.nodes)
            if record is not gang.record:
                await self._attempts.write(gang, record)
        self._attempts.report_nodes(gang, is_given=True)
        return holds

    async def _hold_together(self, gang: Gang) -> dict[int, Hold]:
        """Request the holds of single replicas together, because the cluster admits them as a whole once it
        has seen all."""
        holds: dict[int, Hold] = {}
        avoid = self._nodes.not_up()

        async def hold(part: int) -> None:
            holds[part] = await self._hold(gang, part, avoid)

        await all_or_none(hold(part) for part in gang.parts_to_hold())
        return holds

    async def _hold_in_turn(self, gang: Gang) -> dict[int, Hold]:
        """Acquire holds one after the other. If the rest takes too long, those held are given back, so that
        two jobs with several holds do not wait for each other for ever."""
        holds: dict[int, Hold] = {}
        avoid = self._nodes.not_up()
        for part in gang.parts_to_hold():
            try:
                async with asyncio.timeout(_REST_SECONDS if holds else None):
                    holds[part] = await self._hold(gang, part, avoid)
            except TimeoutError:
                live = {seat.part for seat in gang.record.seats if gang.is_live(seat)}
                for held, hold in holds.items():
                    if held not in live:
                        await self._cluster.give_back(hold.name)
                raise ClusterUnavailable(
                    f"the cluster has given {len(holds)} of {len(gang.record.parts)} kinds of nodes that the "
                    f"job needs, and not the next one within {_REST_SECONDS:g} s; they were given back, and "
                    "all are asked for again"
                ) from None
        return holds

    async def _hold(self, gang: Gang, part: int, avoid: Collection[str]) -> Hold:
        name, needs = hold_name(self._options.identity, gang.record, part), gang.record.parts[part]
        hold = await self._cluster.acquire(name, needs, avoid=avoid)
        if len(hold.nodes) < len(needs) and not set(hold.nodes) <= {need.node for need in needs}:
            # It has lost one before it was written down which it has.
            await self._cluster.give_back(name)
            raise ClusterUnavailable(f"{name}: one of its nodes is gone; all are asked for again")
        return hold

    async def _with_agents(self, gang: Gang, holds: Mapping[int, Hold]) -> list[AgentHandle]:
        """Return an agent on each node with a replica, started if missing. `holds`: those acquired already,
        by part."""
        agents: list[AgentHandle] = []
        missing: list[tuple[int, str]] = []
        # Nodes that all replicas have left, perhaps because they are dead, need no agent.
        for part, node in dict.fromkeys(
            (seat.part, seat.request.node) for seat in gang.record.seats if not seat.is_vacant
        ):
            if gang.needs_agent(part, node):
                missing.append((part, node))
            else:
                agents.append(gang.agents[place(part, node)])
        if not missing:
            return agents
        await self._starter.require_startable(gang, missing)
        fresh = await self._starter.new_agents(gang, missing)
        try:
            await all_or_none(
                self._starter.start_part(
                    gang, part, holds.get(part), [agent for agent in fresh if agent.part == part]
                )
                for part in dict.fromkeys(part for part, _ in missing)
            )
        finally:
            for agent in fresh:
                if agent.is_starting:
                    # It was never requested, so that nothing must wait for it.
                    self._agents.give_up(agent)
        return [*agents, *fresh]

    async def _get_slots(self, gang: Gang, agents: Sequence[AgentHandle]) -> None:
        """Have each agent give out the slots of its replicas, and write them down. Raises
        EngineUnavailable."""
        answers = await asyncio.gather(
            *(self._asked_for_slots(gang, agent) for agent in agents), return_exceptions=True
        )
        slots = {slot.replica: slot for some in answers if isinstance(some, list) for slot in some}
        if slots:
            async with self._attempts.lock(gang.key):
                record = gang.record
                for seat in record.seats:
                    slot = slots.get(seat.replica)
                    if slot is not None and slot.node == seat.request.node:
                        _require_port(gang, seat, slot)
                        seated = msgspec.structs.replace(seat, slot=slot, port=slot.port)
                        record = record.with_seat(seated)
                await self._attempts.write(gang, record)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _asked_for_slots(self, gang: Gang, agent: AgentHandle) -> list[Slot]:
        """Have an agent give out the slots that its replicas do not have yet."""
        missing = {seat.replica for seat in gang.seats_of(agent) if seat.slot is None}
        await agent.connected()
        if not missing:
            return []
        requests = tuple(replace(seat.request, port=seat.port) for seat in gang.seats_of(agent))
        answer = await agent.call(messages.Allocate(requests=requests))
        if not isinstance(answer, messages.Slots):
            raise EngineUnavailable(f"the agent on node {agent.node} gave no slots")
        return [replace(slot, node=agent.node) for slot in answer.slots if slot.replica in missing]


def _sending(nodes: Sequence[str]) -> Delay:
    """Return the delay to report while these nodes fetch content."""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    where = f"{', '.join(nodes[:_NAMED])}{more}"
    return Delay(WaitReason.CONTENT, f"What the programs need is being sent to {where}")


def _require_port(gang: Gang, seat: Seat, slot: Slot) -> None:
    """Raise StartFailed if running programs would look for the replica at another port than it has now. They
    find its new address by its hostname, but learn its port only once, at their start."""
    if not seat.port or seat.port == slot.port:
        return
    if any(gang.is_live(other) for other in gang.record.seats if other is not seat):
        raise StartFailed(
            f"port {seat.port} of node {slot.node} is taken by another program, and replicas that run look "
            f"for {seat.replica} there; a new attempt gives all of them new ports"
        )
