"""A lab tells the suite how to test an engine: how the engine is built, how it is given programs, which
faults it can be given.

An engine's own binding subclasses `Lab`. For most engines `engine` is all there is to write: the programs are
real ones, run by this Python, and time is real.
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
    """What a program of the suite does: prints, runs on, ends."""

    #: Number of lines that it prints at once, all different.
    prints: int = 0
    #: Seconds between further lines that it prints while it runs; None = it prints none.
    ticks: float | None = None
    #: Seconds that it runs after that; None = until it is stopped.
    runs: float | None = 0.0
    code: int = 0
    #: Signal that it sends to itself instead of exiting.
    signal: int | None = None
    #: It allocates memory until it is killed for that.
    eats_memory: bool = False
    on_term: OnTerm = OnTerm.DIE
    term_code: int = 0
    #: Text that it writes into the file `left` of its working directory; None: it writes none.
    leaves: str | None = None
    #: Word in the command line of a child that it leaves running; None: it has none.
    child: str | None = None

    def argv(self) -> tuple[str, ...]:
        """Return the command line of a real program that does this."""
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
        # Python notes a signal that comes just before it sleeps, and sleeps all the same.
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
    """One engine under test. Built anew for every test, with an empty directory."""

    #: Seconds of real time that the suite waits for anything to be reported.
    patience: float = 60.0
    #: Number of steps, spread over all of a call, at which a process that runs the engine (`elsewhere`)
    #: is killed; None = each.
    kills: int | None = 6

    @abc.abstractmethod
    def engine(self) -> Engine:
        """Return an engine that is not started. Called again for every restart of the service, after the
        former engine was closed: the new one must find what that one left."""

    def elsewhere(self) -> Callable[[], Engine] | None:
        """Return what makes the same engine, over the same state, in another process, so that the suite can
        kill that process in the middle of a call: a class or a function of a module, or a `functools.partial`
        of one, since it is pickled. None = this is not possible."""
        return None

    def given(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        """Return the plan completed so that it runs that program."""
        return replace(plan, argv=program.argv())

    async def pass_time(self) -> None:
        """Let some milliseconds pass on the engine's clock, which may be virtual."""
        await asyncio.sleep(0.01)

    def leftovers(self, mark: str) -> Sequence[str]:
        """Describe the processes that are left of a program's child with that mark (`Program.child`)."""
        return [f"process {pid}" for pid in commands(mark)]

    def clear(self) -> None:  # noqa: B027 most leave nothing
        """Remove what killed processes have left on the machine. Called when the engine is closed."""


class LabWithNodes(Lab):
    """A lab that can cut nodes off."""

    @abc.abstractmethod
    async def cut_off(self, engine: Engine, node: str) -> None:
        """Make a node unreachable; its programs run on."""

    @abc.abstractmethod
    async def reconnect(self, engine: Engine, node: str) -> None:
        """Make the node reachable again."""
