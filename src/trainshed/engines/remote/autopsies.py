"""What failed replicas left on nodes: brought to the service's machine before their nodes are given back, and
kept there by the local engine that knows it.

Nothing that a node says decides what a shell there may see: the launch document is made anew from the plan,
which was noted at the launch, and how the replica ended is what its attempt was told. The node gives the
files, and the path that they had.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.redaction import REDACTED, redacted
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.secrets import named_in
from trainshed.engines.local.autopsies import Foundling
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import EngineUnavailable, LaunchRejected
from trainshed.engines.remote import messages
from trainshed.engines.remote.agent_handle import AgentHandle
from trainshed.engines.remote.gang import Ended, Gang
from trainshed.engines.remote.hub import Hub
from trainshed.engines.remote.messages import News, Order
from trainshed.engines.remote.records import Seat
from trainshed.eventloop.background import begin
from trainshed.replica import protocol
from trainshed.replica.protocol import NEVER_STARTED
from trainshed.replica.system import durable, trees
from trainshed.telemetry.lines import about

log = logging.getLogger(__name__)

_SECONDS = 60.0
"""That an attempt's nodes are held at most for what its replicas left: its next attempt may wait for them."""
_AT_ONCE = 4
"""Replicas whose files are fetched at a time."""
_CHUNK = 1 << 18
_LONGEST_PATH = 1000
_UNPACK = "import sys; sys.path.insert(0, sys.argv[1]); sys.argv[:2] = ['-']; \
from trainshed.engines.remote.content import homecoming; homecoming.main()"
_SOURCE = str(Path(__file__).resolve().parents[3])


class NotKept(Exception):
    """What a replica left could not be had. The message says why."""


class CollectorOptions(Struct, frozen=True):
    """What an operator may choose."""

    #: Bytes of what one replica left; more is not fetched.
    limit: int = 1 << 30
    #: Directory on nodes below which programs have their files.
    nodes_directories: tuple[str, ...] = ("/tmp",)


class AutopsyCollector:
    """`keeper`: keeps what was brought home. `directory`: of this engine, on the same file system as the
    keeper's."""

    def __init__(
        self,
        keeper: LocalEngine,
        hub: Hub[Order, News],
        directory: Path,
        options: CollectorOptions,
    ) -> None:
        self._keeper = keeper
        self._hub = hub
        self._plans = directory / "plans"
        self._drafts = directory / "drafts"
        self._options = options

    async def start(self) -> None:
        """Throw away what was not brought home whole."""
        await asyncio.to_thread(trees.delete, str(self._drafts))

    async def note(self, plans: Sequence[LaunchPlan]) -> None:
        """These are about to be launched. A full disk, say, costs the autopsy and not the program."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._write_plans, plans)

    async def collect(self, gang: Gang) -> None:
        """Bring home what failed of an attempt that is over; what cannot be had is told, and left."""
        failed = [
            (seat, end)
            for seat in gang.record.seats
            if (end := gang.ends.get(seat.replica)) and _has_failed(seat, end)
        ]
        turns = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._collect_one(gang, *one, turns) for one in failed))

    async def forget(self, job_uid: JobUid, attempt: int) -> None:
        """The attempt was given back."""
        directory = self._plans / f"{job_uid}-{attempt}"
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    # --- inside ---

    async def _collect_one(
        self, gang: Gang, seat: Seat, end: Ended, turns: asyncio.Semaphore
    ) -> None:
        uid, attempt = gang.key
        kept = self._keeper.autopsies(uid)
        if any((one.attempt, one.replica) == (attempt, seat.replica) for one in kept):
            return  # Before a restart of the service.
        subject = about(log, uid, attempt=attempt, replica=seat.replica)
        agent = gang.agent(seat)
        try:
            if agent is None or agent.is_gone:
                raise NotKept(f"node {seat.request.node} is not reached any more")
            async with asyncio.timeout(_SECONDS), turns:
                await self._bring_home(gang, seat, end, agent)
        except TimeoutError:
            subject.warning("autopsy not kept: it takes longer than %g s", _SECONDS)
        except (NotKept, EngineUnavailable, LaunchRejected, OSError, ValueError) as failure:
            subject.warning("autopsy not kept: %s", failure)

    async def _bring_home(self, gang: Gang, seat: Seat, end: Ended, agent: AgentHandle) -> None:
        """Raises NotKept, EngineUnavailable, OSError, ValueError."""
        plan = await asyncio.to_thread(self._read_plan, *gang.key, seat.replica)
        assert seat.slot is not None
        stream = secrets.token_hex(8)
        opened = self._hub.expect(agent.name, stream)
        draft = self._drafts / stream
        try:
            answer = await agent.call(
                lambda number: messages.SendFiles(
                    number=number, replica=seat.replica, stream=stream, limit=self._options.limit
                )
            )
            if not isinstance(answer, messages.FilesAt):
                raise NotKept(f"node {agent.node} does not say where they were")
            place = self._checked(answer.path)
            await asyncio.to_thread(draft.mkdir, mode=0o700, parents=True)
            reader, writer = await opened
            try:
                await self._unpack(reader, draft / protocol.FILES)
            finally:
                writer.close()
            await self._keeper.take_in(
                Foundling(
                    replace(plan, incarnation=seat.launched),
                    seat.slot,
                    _record(end),
                    draft,
                    place,
                )
            )
        finally:
            opened.cancel()
            await asyncio.to_thread(trees.delete, str(draft))

    async def _unpack(self, reader: asyncio.StreamReader, into: Path) -> None:
        """Whole, or not at all. Raises NotKept."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-c", _UNPACK, _SOURCE),
            *(str(into), str(self._options.limit)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            # Of a child that has ended uvloop says that its handle is closed, as a RuntimeError.
            with contextlib.suppress(ConnectionError, RuntimeError):
                while chunk := await reader.read(_CHUNK):
                    child.stdin.write(chunk)
                    await child.stdin.drain()
            child.stdin.close()
            told = (await child.stdout.readline()).decode(errors="replace").strip()
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(begin(child.wait(), "unpacking what a replica left"))
        if told != "done":
            raise NotKept(told.removeprefix("failed ") or "whatever unpacked it was killed")

    def _checked(self, path: str) -> Path:
        """Where the files had been: nothing but a place for them. Raises NotKept."""
        roots = self._options.nodes_directories
        if (
            len(path) > _LONGEST_PATH
            or os.path.normpath(path) != path
            or not any(PurePosixPath(path).is_relative_to(root) for root in roots)
            or "\0" in path
        ):
            raise NotKept(
                f"the node says that they were at {path[:100]!r}, which is not below {' or '.join(roots)}"
            )
        return Path(path)

    # --- in threads ---

    def _write_plans(self, plans: Sequence[LaunchPlan]) -> None:
        for plan in plans:
            directory = self._plans / f"{plan.job_uid}-{plan.attempt}"
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            text = msgspec.json.encode(without_secrets(plan)).decode()
            durable.write(str(directory / f"{plan.replica}.json"), text, sync=False)

    def _read_plan(self, job_uid: JobUid, attempt: int, replica: ReplicaId) -> LaunchPlan:
        """Raises NotKept."""
        path = self._plans / f"{job_uid}-{attempt}" / f"{replica}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=LaunchPlan)
        except (OSError, msgspec.MsgspecError) as error:
            raise NotKept(f"how it was started is not known any more ({error})") from error


def without_secrets(plan: LaunchPlan) -> LaunchPlan:
    """The plan as it may lie on a disk."""
    marked = {name for name, value in plan.environ if named_in((), ((name, value),))}
    environ = redacted(dict(plan.environ), marked)
    argv = tuple(REDACTED if named_in((text,), ()) else text for text in plan.argv)
    return replace(plan, argv=argv, environ=tuple(environ.items()))


def _has_failed(seat: Seat, end: Ended) -> bool:
    """By itself, in the incarnation that was launched last, and not because it was asked to end."""
    if end.incarnation != seat.launched or seat.slot is None:
        return False
    if isinstance(end, ReplicaExited):
        return end.exit.exit_code != 0 and not end.exit.stopped
    return end.cause != NEVER_STARTED and seat.lost != seat.launched


def _record(end: Ended) -> dict[str, Any]:
    """As a journal has it."""
    if isinstance(end, ReplicaExited):
        record = end.exit
        return {
            "exit_code": record.exit_code,
            "signal": record.signal,
            "oom": record.oom,
            "tail": record.tail,
        }
    return {"lost": end.cause}
