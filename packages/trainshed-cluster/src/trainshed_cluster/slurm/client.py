"""Runs Slurm's commands, each for as long as it may take, and none left behind."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from trainshed.eventloop.background import begin, joined
from trainshed_cluster.remote.cluster import ClusterUnavailable
from trainshed_cluster.remote.messages import TAKEN
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.queries import Query
from trainshed_cluster.slurm.settings import SlurmSettings
from trainshed_cluster.slurm.users import UnixUser, setpriv

T = TypeVar("T")

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
    """The output and exit status of a command."""

    code: int
    out: str
    err: str


class SlurmClient:
    """A client of Slurm by its commands. Each runs in a session of its own, so that no signal of a terminal
    reaches it. `left`: called with a hold's name when the srun of one of its agents has ended, with its step
    or because it was killed."""

    def __init__(self, settings: SlurmSettings, left: Callable[[str], None] | None = None) -> None:
        self._settings = settings
        self._left = left
        self._environment = commands.environment(os.environ, settings.conf)
        #: The srun processes of started agents: the hold of each, and the task that waits for its end.
        self._sruns: dict[Process, tuple[str, asyncio.Task[None]]] = {}

    async def close(self) -> None:
        """End all processes that this client started; steps run on without them."""
        sruns = dict(self._sruns)
        for process in sruns:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*(waiting for _, waiting in sruns.values()))

    async def answer(self, command: Sequence[str], user: UnixUser | None = None) -> str:
        """Run a command and return its output. `user`: as whom it runs; None = the service's user. Raises
        ClusterUnavailable if it fails."""
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
            complaint = commands.complaint(output.err) or f"exit code {output.code}"
            raise ClusterUnavailable(f"{command[0]}: {complaint}")
        return output.out

    async def ask(self, query: Query[T]) -> T:
        """Return the answer to a query. Raises ClusterUnavailable."""
        answer = await self.answer(query.argv)
        try:
            # Of thousands of nodes there is much to read.
            return await asyncio.to_thread(query.read, answer)
        except ValueError as e:
            raise ClusterUnavailable(
                f"Slurm's answer is not understood: {e}; use Slurm 22.05 or newer, and commands of the "
                "controller's version"
            ) from e

    async def request(self, command: Sequence[str], user: UnixUser | None = None) -> "Request":
        """Start a command that waits for Slurm. `user`: as whom it runs; None = the service's user. Raises
        ClusterUnavailable."""
        return Request(await self._spawn(command, user=user))

    async def end_agents(self, name: str, user: int) -> None:
        """End the steps of a hold, and wait a while for it; those of dismissed agents end by themselves. This
        comes before the job is cancelled: while a step of an ending job ends, Slurm gives nothing of its
        nodes to others, but while one of a running job ends, it does."""
        waiting = [task for hold, task in self._sruns.values() if hold == name]
        if waiting:
            _, staying = await asyncio.wait(waiting, timeout=_BY_ITSELF_SECONDS)
            if staying:
                # Slurm reports an error if they have just ended.
                with contextlib.suppress(ClusterUnavailable):
                    await self.answer(commands.terminate(name, user))
                await asyncio.wait(staying, timeout=_LEAVE_SECONDS)

    async def hand_over(
        self,
        command: Sequence[str],
        stdin: bytes,
        name: str,
        node: str,
        user: UnixUser | None = None,
    ) -> None:
        """Run an agent's step and send it its input; return when it has read that. Cancelling before ends the
        step. Afterwards the step needs nothing of this machine: srun is kept only because Slurm takes 2.4 s
        to end a step whose srun is dead, and does not give the node to others meanwhile. Raises
        ClusterUnavailable."""
        what = f"{name}: agent on {node}"
        process = await self._spawn(command, feeds=True, user=user)
        assert process.stderr
        complaining = joined(_beginning(process.stderr, 1 << 14))
        taken = False
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                taken = await _feed(process, stdin)
                if not taken:
                    complaint = commands.complaint((await complaining).decode(errors="replace"))
                    raise ClusterUnavailable(f"{what}: {complaint or 'its step ended at once'}")
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

    async def _attend(self, process: Process, complaining: asyncio.Task[bytes]) -> None:
        await process.wait()
        complaining.cancel()
        name, _ = self._sruns.pop(process)
        if self._left is not None:
            self._left(name)

    async def _spawn(
        self, command: Sequence[str], feeds: bool = False, user: UnixUser | None = None
    ) -> Process:
        environment, directory = self._environment, None
        try:
            argv = [self._settings.command(command[0]), *command[1:]]
            if user:
                argv = user.command(argv, setpriv())
                # The user may have no access to the service's directory.
                environment, directory = user.environment(environment), "/"
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE if feeds else DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=environment,
                cwd=directory,
                start_new_session=True,
                limit=1 << 20,
            )
        except OSError as e:
            raise ClusterUnavailable(f"{command[0]} cannot be run: {e}") from e


class Request:
    """A running salloc, which waits for Slurm."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._telling = joined(_communicate(process))

    async def ended(self, *others: asyncio.Task[object]) -> Output | None:
        """Return its output once it has ended; None = one of the other tasks was done first."""
        await asyncio.wait((self._telling, *others), return_when=asyncio.FIRST_COMPLETED)
        return self._telling.result() if self._telling.done() else None

    async def leave(self) -> None:
        """End it after its request was granted, without cancelling that; it has a moment to end by itself."""
        await asyncio.wait((self._telling,), timeout=1.0)
        _kill(self._process)
        await asyncio.wait((self._telling,))

    async def abandon(self) -> None:
        """Kill it so that its request stays in Slurm's queue."""
        _kill(self._process)
        await asyncio.wait((self._telling,))

    async def withdraw(self) -> None:
        """Have it cancel its request; it may have been killed before it could."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await asyncio.wait((self._telling,), timeout=_LEAVE_SECONDS)
        _kill(self._process)
        await asyncio.wait((self._telling,))


async def _communicate(process: Process) -> Output:
    out, err = await process.communicate()
    return Output(await process.wait(), out.decode(errors="replace"), err.decode(errors="replace"))


async def _beginning(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Read a stream to its end and return its first `limit` bytes."""
    beginning = b""
    while part := await stream.read(1 << 14):
        beginning += part[: limit - len(beginning)]
    return beginning


async def _feed(process: Process, stdin: bytes) -> bool:
    """Send an agent its input; return whether it confirmed it. Slurm accepts input before the step exists,
    and carries it a kilobyte at a time, so that sending begins at once."""
    writing = joined(_write(process, stdin))
    try:
        assert process.stdout
        while line := await process.stdout.readline():
            if line == TAKEN:
                return True
        return False
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(process: Process, stdin: bytes) -> None:
    assert process.stdin
    # If the process has ended already, uvloop raises RuntimeError because the handle is closed.
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()


def _disarm(process: Process) -> None:
    """Kill srun's second process, which would end the step when the first one dies."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _reap(process: Process) -> None:
    await process.wait()
