"""What the suite has to know of an engine to test it: how it is built, how programs are given to it, what can
be done to it.

An engine's own binding subclasses `Lab`. For most engines `engine` is all there is to write: the programs are
real ones, run by this Python, and time is real.
"""

import abc
import asyncio
import enum
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.launch import LaunchPlan
from trainshed.engines.port import Engine


class OnTerm(enum.StrEnum):
    """What a program does at SIGTERM."""

    #: It has no handler, and dies.
    DIE = "die"
    #: It exits with `term_code`.
    EXIT = "exit"
    #: It goes on.
    IGNORE = "ignore"


class Program(Struct, frozen=True):
    """What a program of the suite does: prints, runs on, ends."""

    #: Lines it prints at once, each another one.
    prints: int = 0
    #: It prints one more line every so many seconds while it runs; None: it does not.
    ticks: float | None = None
    #: Seconds it runs after that; None: until it is stopped.
    runs: float | None = 0.0
    code: int = 0
    #: Sent to itself in place of an exit.
    signal: int | None = None
    #: It takes memory until it is ended for it.
    eats_memory: bool = False
    on_term: OnTerm = OnTerm.DIE
    term_code: int = 0
    #: Text that it writes into the file `left` of its working directory; "": it writes none.
    leaves: str = ""
    #: Word in the command line of a child that it leaves running; "": it has none.
    child: str = ""

    def argv(self) -> tuple[str, ...]:
        """As a real program."""
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
        lines.append(f"    time.sleep(min({self.ticks or 0.02}, max(0, end - time.monotonic())))")
        if self.ticks is not None:
            lines.append("    print('tick', time.monotonic())")
        if self.signal is not None:
            lines.append(f"os.kill(os.getpid(), {self.signal})")
        lines.append(f"sys.exit({self.code})")
        return (sys.executable, "-u", "-c", "\n".join(lines))


class Lab(abc.ABC):
    """One engine under test. Built anew for every test, with an empty directory."""

    #: Seconds (real ones) that anything may take until it is seen.
    patience: float = 20.0
    #: At how many of its steps, spread over all of a call, the service, or a process that holds the engine
    #: (`elsewhere`), is killed; None: at each.
    kills: int | None = 6

    @abc.abstractmethod
    def engine(self) -> Engine:
        """An engine that is not started. Called again for every restart of the service, after the one before
        was closed: it must find what that one left."""

    def elsewhere(self) -> Callable[[], Engine] | None:
        """What makes the same engine, over the same state, in another process: a class or a function of some
        module, or a `functools.partial` of one (it is pickled). By it the suite has a process that holds the
        engine killed in the middle of its calls. None: it cannot."""
        return None

    def given(self, plan: LaunchPlan, program: Program) -> LaunchPlan:
        """The plan, by which that program runs."""
        return replace(plan, argv=program.argv())

    async def pass_time(self) -> None:
        """Let some milliseconds pass, of whatever clock the engine goes by."""
        await asyncio.sleep(0.01)

    def leftovers(self, mark: str) -> Sequence[str]:
        """What still runs of a program's child (`Program.child`), in words."""
        found: list[str] = []
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    command = Path(entry.path, "cmdline").read_bytes()
                except OSError:
                    continue
                if mark.encode() in command.split(b"\0"):
                    found.append(f"process {entry.name}")
        return found


class LabWithNodes(Lab):
    """One that can take nodes away from the engine."""

    @abc.abstractmethod
    async def cut_off(self, engine: Engine, node: str) -> None:
        """Nobody reaches the node any more; its programs run on."""

    @abc.abstractmethod
    async def reconnect(self, engine: Engine, node: str) -> None:
        """The node can be reached again."""
