"""Runs Slurm's commands with time limits, and terminates commands that exceed them."""

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
from trainshed_cluster.remote.messages import DOCUMENT_READ
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.queries import Query
from trainshed_cluster.slurm.settings import SlurmSettings
from trainshed_cluster.slurm.users import UnixUser, setpriv

T = TypeVar("T")

_COMMAND_TIMEOUT = 30.0
"""Time limit of a command in seconds. It exceeds Slurm's own limit for a message (10 s), because Slurm's
commands repeat their queries if the controller is busy."""
_STEP_TIMEOUT = 60.0
"""Time limit for the start of a step in seconds."""
_EXIT_TIMEOUT = 0.5
"""Seconds to wait for an agent to exit before its step receives SIGTERM."""
_WITHDRAW_TIMEOUT = 3.0
"""Seconds that salloc has to withdraw its request after it has received a signal."""


class Output(Struct, frozen=True):
    """The output and exit status of a command."""

    code: int
    out: str
    err: str


class SlurmClient:
    """Runs Slurm's commands. Each command runs in its own session, so that it receives no signals from a
    terminal.

    Args:
        on_step_end: Called with an allocation's name when the srun of one of its agents has ended.
    """

    def __init__(self, settings: SlurmSettings, on_step_end: Callable[[str], None] | None = None) -> None:
        self._settings = settings
        self._on_step_end = on_step_end
        self._environment = commands.environment(os.environ, settings.conf)
        #: The srun processes of started agents. Each process is stored with the name of its allocation and
        #: the task that waits for its end.
        self._sruns: dict[Process, tuple[str, asyncio.Task[None]]] = {}

    async def close(self) -> None:
        """End all processes of this client. The steps that these processes started continue."""
        sruns = dict(self._sruns)
        for process in sruns:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*(tasks for _, tasks in sruns.values()))

    async def run(self, command: Sequence[str], user: UnixUser | None = None) -> str:
        """Run a command and return its output. `user`: the user that runs the command; None = the service's
        user. Raises ClusterUnavailable if the command fails."""
        process = await self._spawn(command, user=user)
        try:
            async with asyncio.timeout(_COMMAND_TIMEOUT):
                output = await _communicate(process)
        except TimeoutError:
            raise ClusterUnavailable(f"{command[0]}: no response within {_COMMAND_TIMEOUT:g} s") from None
        finally:
            if process.returncode is None:
                _kill(process)
                await asyncio.shield(begin(_reap(process), f"slurm: {command[0]}"))
        if output.code:
            error_text = commands.error_text(output.err) or f"exit code {output.code}"
            raise ClusterUnavailable(f"{command[0]}: {error_text}")
        return output.out

    async def query(self, query: Query[T]) -> T:
        """Run a query and return its result. Raises ClusterUnavailable if the command fails or its output is
        invalid."""
        answer = await self.run(query.argv)
        try:
            # Parse in a thread, because output about thousands of nodes takes long to parse.
            return await asyncio.to_thread(query.read, answer)
        except ValueError as e:
            raise ClusterUnavailable(
                f"cannot parse Slurm's output: {e}; use Slurm 22.05 or newer, and commands of the "
                "controller's version"
            ) from e

    async def request(self, command: Sequence[str], user: UnixUser | None = None) -> "Request":
        """Start a command that waits until Slurm grants a request. `user`: the user that runs the command;
        None = the service's user. Raises ClusterUnavailable if the command cannot be started."""
        return Request(await self._spawn(command, user=user))

    async def end_agents(self, name: str, user: int) -> None:
        """End the steps of an allocation, and wait for a limited time until they have ended. Agents that are
        shutting down end their own steps. Call this before cancelling the job. While a step of a cancelled
        job ends on a node, Slurm allocates no resources of the node. While a step of a running job ends,
        Slurm continues to allocate them."""
        tasks = [task for allocation, task in self._sruns.values() if allocation == name]
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=_EXIT_TIMEOUT)
            if unfinished:
                # If the steps have just ended, Slurm reports an error. Ignore it.
                with contextlib.suppress(ClusterUnavailable):
                    await self.run(commands.terminate(name, user))
                await asyncio.wait(unfinished, timeout=_WITHDRAW_TIMEOUT)

    async def start_agent_step(
        self, command: Sequence[str], stdin: bytes, name: str, node: str, user: UnixUser | None = None
    ) -> None:
        """Run an agent's step, send its input, and return when the agent has read it.

        If the call is cancelled, the step ends. After the call, the step does not depend on this machine.
        srun nevertheless continues to run, because without it Slurm takes 2.4 s to end a step and blocks the
        node in that time. Raises ClusterUnavailable.
        """
        what = f"{name}: agent on {node}"
        process = await self._spawn(command, has_input=True, user=user)
        assert process.stderr
        error_reader = joined(_read_start(process.stderr, 1 << 14))
        is_confirmed = False
        try:
            async with asyncio.timeout(_STEP_TIMEOUT):
                is_confirmed = await _send_input(process, stdin)
                if not is_confirmed:
                    error_text = commands.error_text((await error_reader).decode(errors="replace"))
                    raise ClusterUnavailable(f"{what}: {error_text or 'its step ended at once'}")
        except TimeoutError:
            raise ClusterUnavailable(f"{what}: Slurm started no step within {_STEP_TIMEOUT:g} s") from None
        finally:
            if is_confirmed:
                _kill_second_srun(process)
                end_waiter = begin(self._wait_for_srun(process, error_reader), f"slurm: srun of {what}")
                self._sruns[process] = (name, end_waiter)
            else:
                error_reader.cancel()
                _kill(process)
                await asyncio.shield(begin(_reap(process), f"slurm: srun of {what}"))

    async def _wait_for_srun(self, process: Process, error_reader: asyncio.Task[bytes]) -> None:
        await process.wait()
        error_reader.cancel()
        name, _ = self._sruns.pop(process)
        if self._on_step_end is not None:
            self._on_step_end(name)

    async def _spawn(
        self, command: Sequence[str], has_input: bool = False, user: UnixUser | None = None
    ) -> Process:
        environment, directory = self._environment, None
        try:
            argv = [self._settings.command(command[0]), *command[1:]]
            if user:
                argv = user.command(argv, setpriv())
                # The user may not be allowed to enter the service's working directory.
                environment, directory = user.environment(environment), "/"
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE if has_input else DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=environment,
                cwd=directory,
                start_new_session=True,
                limit=1 << 20,
            )
        except OSError as e:
            raise ClusterUnavailable(f"cannot run {command[0]}: {e}") from e


class Request:
    """A running salloc command that waits for Slurm."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._output = joined(_communicate(process))

    async def wait_for_output(self, *tasks: asyncio.Task[object]) -> Output | None:
        """Wait until salloc or one of `tasks` has finished. Return salloc's output, or None if one of `tasks`
        finished first."""
        await asyncio.wait((self._output, *tasks), return_when=asyncio.FIRST_COMPLETED)
        return self._output.result() if self._output.done() else None

    async def detach(self) -> None:
        """End the salloc process without cancelling the job, after Slurm has granted the request. salloc
        first has one second to exit on its own."""
        await asyncio.wait((self._output,), timeout=1.0)
        _kill(self._process)
        await asyncio.wait((self._output,))

    async def abandon(self) -> None:
        """Kill the salloc process. Its request remains in Slurm's queue."""
        _kill(self._process)
        await asyncio.wait((self._output,))

    async def withdraw(self) -> None:
        """Terminate the salloc process, which then cancels its request. Does nothing if the process has
        already ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await asyncio.wait((self._output,), timeout=_WITHDRAW_TIMEOUT)
        _kill(self._process)
        await asyncio.wait((self._output,))


async def _communicate(process: Process) -> Output:
    out, err = await process.communicate()
    return Output(await process.wait(), out.decode(errors="replace"), err.decode(errors="replace"))


async def _read_start(stream: asyncio.StreamReader, limit: int) -> bytes:
    """Read a stream to its end and return its first `limit` bytes."""
    start = b""
    while block := await stream.read(1 << 14):
        start += block[: limit - len(start)]
    return start


async def _send_input(process: Process, stdin: bytes) -> bool:
    """Send an agent its input. Return whether the agent confirmed that it has read the input. Sending starts
    at once: Slurm accepts input before the step exists, but forwards only a kilobyte at a time."""
    writing = joined(_write(process, stdin))
    try:
        assert process.stdout
        while line := await process.stdout.readline():
            if line == DOCUMENT_READ:
                return True
        return False
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def _write(process: Process, stdin: bytes) -> None:
    assert process.stdin
    # Ignore both exceptions: if the process has already ended, uvloop raises RuntimeError instead of
    # ConnectionError.
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(stdin)
        await process.stdin.drain()
        process.stdin.close()


def _kill_second_srun(process: Process) -> None:
    """Kill the child process of an srun process. Otherwise the child may survive srun and end the step."""
    for children in Path(f"/proc/{process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGKILL)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _reap(process: Process) -> None:
    await process.wait()
