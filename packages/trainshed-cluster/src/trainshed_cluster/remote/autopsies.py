"""Fetches the files of failed replicas to the service's machine before their nodes are given back. The local
engine there keeps them.

Nodes are not trusted with what a shell in those files may see: the launch document is made anew from the
plan, which was noted at the launch, and how the replica ended is what its attempt was told. A node only gives
the files, and their path.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec.structs import replace

from trainshed.access.redaction import REDACTED, redacted
from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import ReplicaExited
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.secrets import named_in
from trainshed.engines.local.autopsies import Foundling
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.port import EngineUnavailable, LaunchRejected
from trainshed.eventloop.background import begin
from trainshed.replica import protocol
from trainshed.replica.protocol import NEVER_STARTED
from trainshed.replica.system import durable, trees
from trainshed.telemetry.lines import about
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent_handle import AgentHandle
from trainshed_cluster.remote.gang import Ended, Gang
from trainshed_cluster.remote.hub import Hub
from trainshed_cluster.remote.messages import News, Order
from trainshed_cluster.remote.own_process import own_process
from trainshed_cluster.remote.records import Seat

log = logging.getLogger(__name__)

_SECONDS = 60.0
"""That an attempt's nodes are held at most for what its replicas left: its next attempt may wait for them."""
_AT_ONCE = 4
"""Replicas whose files are fetched at a time."""
_CHUNK = 1 << 18
_LONGEST_PATH = 1000


class NotKept(Exception):
    """A replica's files cannot be fetched. The message says why."""


class AutopsyCollector:
    """Fetches the files of failed replicas. `keeper`: keeps them. `directory`: of this engine, on the same
    file system as the keeper's. `limit`: most bytes of one replica's files; if it left more, nothing is
    fetched. `nodes_directories`: directories on nodes below which programs have their files."""

    def __init__(
        self,
        keeper: LocalEngine,
        hub: Hub[Order, News],
        directory: Path,
        *,
        limit: int,
        nodes_directories: tuple[str, ...],
    ) -> None:
        self._keeper = keeper
        self._hub = hub
        self._plans = directory / "plans"
        self._drafts = directory / "drafts"
        self._limit = limit
        self._nodes_directories = nodes_directories

    async def start(self) -> None:
        """Delete what an earlier service had fetched in part."""
        await asyncio.to_thread(trees.delete, str(self._drafts))

    async def note(self, plans: Sequence[LaunchPlan]) -> None:
        """Write down plans that are about to be launched. A full disk, for example, costs the autopsy but not
        the program."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._write_plans, plans)

    async def collect(self, gang: Gang) -> None:
        """Fetch the files of an ended attempt's failed replicas; log what cannot be fetched."""
        failed = [
            (seat, end)
            for seat in gang.record.seats
            if (end := gang.ends.get(seat.replica)) and _has_failed(seat, end)
        ]
        turns = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._collect_one(gang, *failure, turns) for failure in failed))

    async def forget(self, job_uid: JobUid, attempt: int) -> None:
        """Delete what was written down of an attempt that was given back."""
        directory = self._plans / f"{job_uid}-{attempt}"
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    # --- inside ---

    async def _collect_one(
        self, gang: Gang, seat: Seat, end: Ended, turns: asyncio.Semaphore
    ) -> None:
        uid, attempt = gang.key
        kept = self._keeper.autopsies(uid)
        if any((autopsy.attempt, autopsy.replica) == (attempt, seat.replica) for autopsy in kept):
            return  # An earlier service saw its end.
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
        """Fetch one replica's files and have them kept. Raises NotKept, EngineUnavailable, OSError,
        ValueError."""
        plan = await asyncio.to_thread(self._read_plan, *gang.key, seat.replica)
        assert seat.slot is not None
        stream = secrets.token_hex(8)
        opened = self._hub.expect(agent.name, stream)
        draft = self._drafts / stream
        try:
            answer = await agent.call(
                lambda number: messages.SendFiles(
                    number=number, replica=seat.replica, stream=stream, limit=self._limit
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
        """Unpack a stream of files, completely or not at all. Raises NotKept."""
        child = await asyncio.create_subprocess_exec(
            *own_process("content.homecoming", str(into), str(self._limit)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert child.stdin is not None and child.stdout is not None
        try:
            # If the child has ended, uvloop raises RuntimeError because its handle is closed.
            with contextlib.suppress(ConnectionError, RuntimeError):
                while chunk := await reader.read(_CHUNK):
                    child.stdin.write(chunk)
                    await child.stdin.drain()
            child.stdin.close()
            answer = (await child.stdout.readline()).decode(errors="replace").strip()
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await asyncio.shield(begin(child.wait(), "unpacking what a replica left"))
        if answer != "done":
            raise NotKept(answer.removeprefix("failed ") or "whatever unpacked it was killed")

    def _checked(self, path: str) -> Path:
        """Check a path that a node gave for the files: it must be a place of programs' files. Raises
        NotKept."""
        roots = self._nodes_directories
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
        """Read the plan of a replica. Raises NotKept."""
        path = self._plans / f"{job_uid}-{attempt}" / f"{replica}.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=LaunchPlan)
        except (OSError, msgspec.MsgspecError) as error:
            raise NotKept(f"how it was started is not known any more ({error})") from error


def without_secrets(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan without secrets, as it may be written to disk."""
    marked = {name for name, value in plan.environ if named_in((), ((name, value),))}
    environ = redacted(dict(plan.environ), marked)
    argv = tuple(REDACTED if named_in((text,), ()) else text for text in plan.argv)
    return replace(plan, argv=argv, environ=tuple(environ.items()))


def _has_failed(seat: Seat, end: Ended) -> bool:
    """Whether the last incarnation failed by itself, and was not stopped."""
    if end.incarnation != seat.launched or seat.slot is None:
        return False
    if isinstance(end, ReplicaExited):
        return end.exit.exit_code != 0 and not end.exit.stopped
    return end.cause != NEVER_STARTED and seat.lost != seat.launched


def _record(end: Ended) -> dict[str, Any]:
    """Return an end in the form of a journal's record."""
    if isinstance(end, ReplicaExited):
        record = end.exit
        return {
            "exit_code": record.exit_code,
            "signal": record.signal,
            "oom": record.oom,
            "tail": record.tail,
        }
    return {"lost": end.cause}
