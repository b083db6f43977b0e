"""A lab defines how the suite tests an engine: how to build it, start programs on it, and cause faults.

A binding of an engine subclasses `Lab`. Most engines only implement `engine`: the programs are real, run with
this Python, in real time.
"""

import abc
import asyncio
import sys
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from tests.e2e.processes import commands
from tests.sim.engine.programs import OnTerm
from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Engine


class Program(Struct, frozen=True):
    """A program of the suite: its output, run time and exit."""

    #: Number of different lines printed immediately.
    prints: int = 0
    #: Seconds between further lines, or None for no further lines.
    ticks: float | None = None
    #: Seconds until its exit, or None = runs until it is stopped.
    runs: float | None = 0.0
    code: int = 0
    #: Signal that it sends to itself instead of exiting.
    signal: int | None = None
    #: It allocates memory until it is killed.
    eats_memory: bool = False
    on_term: OnTerm = OnTerm.DIE
    term_code: int = 0
    #: Text of the file `left` in its working directory, or None for no file.
    leaves: str | None = None
    #: Mark in the command line of a background child, or None for no child.
    child: str | None = None

    def argv(self) -> tuple[str, ...]:
        """Return the command line of a real program with this behavior."""
        lines = ["import os, signal, subprocess, sys, time"]
        if self.on_term is OnTerm.IGNORE:
            lines.append("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
        if self.on_term is OnTerm.EXIT:
            lines.append(f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({self.term_code}))")
        if self.child:
            sleeps = ["-c", "import time; time.sleep(600)", self.child]
            lines.append(f"subprocess.Popen([sys.executable, *{sleeps!r}])")
        if self.leaves:
            lines.append(f"open('left', 'w').write({self.leaves!r})")
        lines.append(f"for n in range({self.prints}): print('line', n)")
        if self.eats_memory:
            lines += ["eaten = []", "while True: eaten.append(b'x' * (1 << 20)); time.sleep(0.002)"]
        lines.append(f"end = time.monotonic() + {600 if self.runs is None else self.runs}")
        lines.append("while time.monotonic() < end:")
        # A signal just before the sleep does not interrupt Python's sleep.
        lasts = "max(0, min(1, end - time.monotonic()))"
        pause = lasts if self.ticks is None else f"min({self.ticks}, {lasts})"
        lines.append(f"    time.sleep({pause})")
        if self.ticks is not None:
            lines.append("    print('tick', time.monotonic())")
        if self.signal is not None:
            lines.append(f"os.kill(os.getpid(), {self.signal})")
        lines.append(f"sys.exit({self.code})")
        return (sys.executable, "-u", "-c", "\n".join(lines))


class Lab(abc.ABC):
    """One engine under test. Each test builds a new one with an empty directory."""

    #: Seconds of real time that the suite waits for a report.
    patience: float = 60.0
    #: Number of steps, spread over a call, at which the engine's process is killed (`elsewhere`). None = at
    #: each step.
    kills: int | None = 6

    @abc.abstractmethod
    def engine(self) -> Engine:
        """Return an engine that is not started. Called again for every restart of the service, after the old
        engine was closed. The new engine must find the state of the old one.
        """

    def elsewhere(self) -> Callable[[], Engine] | None:
        """Return a picklable factory of the same engine over the same state, for a process that the suite
        kills during a call. It is a class, a function of a module, or a `functools.partial` of one. None =
        not possible.
        """
        return None

    def with_program(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        """Return the plan with the command of that program."""
        return replace(plan, argv=program.argv())

    async def pass_time(self) -> None:
        """Wait some milliseconds on the engine's clock, which may be virtual."""
        await asyncio.sleep(0.01)

    def leftovers(self, mark: str) -> Sequence[str]:
        """Return the remaining processes of a program's child with that mark (`Program.child`)."""
        return [f"process {pid}" for pid in commands(mark)]

    def clear(self) -> None:  # noqa: B027 most leave nothing
        """Remove leftovers of killed processes from the machine. Called when the engine is closed."""


class LabWithNodes(Lab):
    """A lab that can disconnect nodes."""

    @abc.abstractmethod
    async def cut_off(self, engine: Engine, node: str) -> None:
        """Disconnect a node. Its programs continue."""

    @abc.abstractmethod
    async def reconnect(self, engine: Engine, node: str) -> None:
        """Connect the node again."""
