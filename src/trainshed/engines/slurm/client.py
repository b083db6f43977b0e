"""Runs Slurm's commands, each for as long as it may take, and none left behind."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from trainshed.engines.remote.cluster import NOTHING_SAID, AgentInput, ClusterUnavailable
from trainshed.engines.remote.opening import BEGIN, TAKEN
from trainshed.engines.slurm import commands
from trainshed.engines.slurm.queries import Queries
from trainshed.engines.slurm.records import NodeLine
from trainshed.engines.slurm.settings import SlurmSettings
from trainshed.engines.slurm.users import UnixUser, setpriv
from trainshed.eventloop.background import begin, joined
from trainshed.eventloop.children import Child, spawn

_ANSWER_SECONDS = 30.0
"""Seconds that a command may take. Slurm's own limit for a message is 10, and a busy controller is asked
again."""
_HAND_OVER_SECONDS = 60.0
"""Seconds that a step may take until it runs."""
_BY_ITSELF_SECONDS = 0.5
"""Seconds that an agent has to end by itself, before its step is sent SIGTERM."""
_LEAVE_SECONDS = 3.0
"""Seconds that salloc has to withdraw its request, once it was told to."""


class Output(Struct, frozen=True):
    """What a command ended with."""

    code: int
    out: str
    err: str


class SlurmClient:
    """Slurm by its commands. Each runs in a session of its own, so that no signal of a terminal reaches it.
    `left`: called with the name of a hold when the srun of one of its agents has ended: with its step, or
    killed by somebody."""

    def __init__(self, settings: SlurmSettings, left: Callable[[str], None] | None = None) -> None:
        self._settings = settings
        self._left = left
        self._environment = commands.environment(os.environ, settings.conf)
        #: Those of agents that were handed over: of which hold, and who waits for it.
        self._sruns: dict[Child, tuple[str, asyncio.Task[None]]] = {}

    async def close(self) -> None:
        """Leave nothing of this process's: steps run on without it."""
        sruns = dict(self._sruns)
        for process in sruns:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*(waiting for _, waiting in sruns.values()))

    async def answer(self, command: Sequence[str], user: UnixUser | None = None) -> str:
        """What a command prints. `user`: as whom it runs; None = the service's user. Raises
        ClusterUnavailable: it failed."""
        process = await self._spawn(command, user=user)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                output = await _communicate(process)
        except TimeoutError:
            raise ClusterUnavailable(
                f"{command[0]}: no answer within {_ANSWER_SECONDS:g} s"
            ) from None
        finally:
            if process.returncode is None:
                _kill(process)
                await asyncio.shield(begin(_reap(process), f"slurm: {command[0]}"))
        if output.code:
            told = commands.complaint(output.err) or f"exit code {output.code}"
            raise ClusterUnavailable(f"{command[0]}: {told}")
        return output.out

    async def nodes(self, queries: Queries, partitions: str) -> tuple[NodeLine, ...]:
        """Raises ClusterUnavailable; ValueError: the answer is not understood."""
        answers = [await self.answer(command) for command in queries.nodes(partitions)]
        return tuple(queries.read_nodes(answers, partitions))

    async def request(self, command: Sequence[str], user: UnixUser | None = None) -> "Request":
        """Begin a command that waits. `user`: as whom it runs; None = the service's user. Raises
        ClusterUnavailable."""
        return Request(await self._spawn(command, user=user))

    async def end_agents(self, name: str, user: int) -> None:
        """Have the steps of a hold end, and give them some time for it: those of agents that were let go end
        by themselves. While a step ends in a job that ends, Slurm gives nothing of its nodes to others; while
        it ends in a job that runs, it does."""
        waiting = [task for hold, task in self._sruns.values() if hold == name]
        if waiting:
            _, staying = await asyncio.wait(waiting, timeout=_BY_ITSELF_SECONDS)
            if staying:
                # They may just have ended, which Slurm calls an error.
                with contextlib.suppress(ClusterUnavailable):
                    await self.answer(commands.terminate(name, user))
                await asyncio.wait(staying, timeout=_LEAVE_SECONDS)

    async def hand_over(
        self,
        command: Sequence[str],
        given: AgentInput,
        name: str,
        node: str,
        user: UnixUser | None = None,
    ) -> None:
        """Run an agent's step, and give it its input; returns when it has taken that. Given up before, there
        is no step. From then on nothing on this machine is needed for it: srun is kept only because the end
        of a step whose srun is dead takes Slurm 2.4 s, for which it gives none of the node to anybody. Raises
        ClusterUnavailable, and what `given` raises."""
        what = f"{name}: agent on {node}"
        process = await self._spawn(command, feeds=True, user=user)
        complaining = joined(_beginning(process.stderr, 1 << 14))
        taken = False
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                taken = await _feed(process, given)
                if not taken:
                    told = commands.complaint((await complaining).decode(errors="replace"))
                    raise ClusterUnavailable(f"{what}: {told or 'its step ended at once'}")
        except TimeoutError:
            raise ClusterUnavailable(f"{what}: no step within {_HAND_OVER_SECONDS:g} s") from None
        finally:
            if taken:
                _disarm(process)
                attending = begin(self._attend(process, complaining), f"slurm: srun of {what}")
                self._sruns[process] = (name, attending)
            else:
                complaining.cancel()
                _kill(process)
                await asyncio.shield(begin(_reap(process), f"slurm: srun of {what}"))

    async def _attend(self, process: Child, complaining: asyncio.Task[bytes]) -> None:
        await process.wait()
        complaining.cancel()
        name, _ = self._sruns.pop(process)
        if self._left is not None:
            self._left(name)

    async def _spawn(
        self,
        command: Sequence[str],
        feeds: bool = False,
        user: UnixUser | None = None,
    ) -> Child:
        environment, directory = self._environment, None
        try:
            argv = [self._settings.command(command[0]), *command[1:]]
            if user:
                argv = user.command(argv, setpriv())
                # The user need not have access to the service's directory.
                environment, directory = user.environment(environment), "/"
            return await spawn(argv, env=environment, cwd=directory, feeds=feeds, limit=1 << 20)
        except OSError as e:
            raise ClusterUnavailable(f"{command[0]} cannot be run: {e}") from e


class Request:
    """A command that waits for Slurm: salloc."""

    def __init__(self, process: Child) -> None:
        self._process = process
        self._telling = joined(_communicate(process))

    async def ended(self, *others: asyncio.Task[object]) -> Output | None:
        """Its output, once it ended; None = one of the others came first."""
        await asyncio.wait((self._telling, *others), return_when=asyncio.FIRST_COMPLETED)
        return self._telling.result() if self._telling.done() else None

    async def leave(self) -> None:
        """End it without withdrawing: what it waited for is granted. A moment is given to it to end by
        itself."""
        await asyncio.wait((self._telling,), timeout=1.0)
        _kill(self._process)
        await asyncio.wait((self._telling,))

    async def abandon(self) -> None:
        """End it so that it takes nothing back: what it asked for goes on waiting in Slurm's queue."""
        _kill(self._process)
        await asyncio.wait((self._telling,))

    async def withdraw(self) -> None:
        """Have it take back what it asked for; it may have been killed before it could."""
        self._process.send_signal(signal.SIGTERM)
        await asyncio.wait((self._telling,), timeout=_LEAVE_SECONDS)
        _kill(self._process)
        await asyncio.wait((self._telling,))


async def _communicate(process: Child) -> Output:
    out, err = await process.communicate()
    return Output(await process.wait(), out.decode(errors="replace"), err.decode(errors="replace"))


async def _beginning(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Of all that comes until its end; the rest is read as well, and forgotten."""
    told = b""
    while part := await stream.read(1 << 14):
        told += part[: limit - len(told)]
    return told


async def _heard(process: Child, word: bytes) -> bool:
    """The step says it."""
    while line := await process.stdout.readline():
        if line == word:
            return True
    return False


async def _feed(process: Child, given: AgentInput) -> bool:
    """The agent says that it has taken all. Slurm takes what is to be carried to the step before that is
    there, a kilobyte at a time: so it need not be waited for."""
    assert process.stdin
    writing = joined(_write(process, given))
    try:
        if not await _heard(process, commands.THERE):
            return False
        await writing
        await given.permission()
        # Of a process that has ended already uvloop says that the handle is closed, as a RuntimeError.
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(BEGIN)
            await process.stdin.drain()
        process.stdin.close()
        return await _heard(process, TAKEN)
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(process: Child, given: AgentInput) -> None:
    parcel = await given.parcel(NOTHING_SAID)
    assert process.stdin
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(parcel)


def _disarm(process: Child) -> None:
    """Kill the second process of srun, which ends the step when the first one dies."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)


def _kill(process: Child) -> None:
    process.send_signal(signal.SIGKILL)


async def _reap(process: Child) -> None:
    await process.wait()
