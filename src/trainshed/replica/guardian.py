"""The process between shim and program: first process of the replica's namespace, reaper of its orphans.

The program is never process 1 itself, because the kernel keeps process 1 from dying of its own signals and the
way it dies decides what happens to the job. The guardian starts the main process when told to, passes on the
request to stop, notes how the main process ended, leaves no other process of the replica behind, reports and
ends. If the shim dies, it dies with all that is below it. Runs on Python 3.6.

Spoken over a socket pair, one line each. Shim to guardian: `go`, `stop` (SIGTERM to the main process's group),
`kill` (SIGKILL to everything), `segv` (SIGSEGV to the main process), `shell ORDER` with a file handle beside it
(`terminal`). Guardian to shim: `asked` with a file handle beside
it (`socket_calls`), `started NS`, then `ended STATUS NS` (STATUS as of wait), `failed TEXT` if the sandbox could not be
made, or `full TEXT` if that is for want of room on the disk.
"""

import os
import select
import signal
import socket

from trainshed.replica import appending, handover, processes, program, system, terminal
from trainshed.replica.segments import now

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


class Guardian:
    """`heard`: what was read from `control` already. `namespaced`: this process is process 1 of a process namespace. `prepare` makes the sandbox;
    `settle` gives up what the program may not have, in whichever process becomes or starts it. `outputs`: handles to be closed here once the program has them."""

    def __init__(
        self,
        control: socket.socket,
        main: program.Program,
        outputs: "list[int]",
        *,
        namespaced: bool,
        prepare: "Callable[[], None]",
        settle: "Callable[[], None]",
        heard: bytes = b"",
    ) -> None:
        self._control = control
        self._namespaced = namespaced
        self._prepare = prepare
        self._settle = settle
        self._program = main
        self._outputs = outputs
        self._main = 0
        self._main_reaped = False
        self._inbox = heard
        self._handed: "list[int]" = []
        self._settled = False

    def run(self) -> None:
        """Do all of it; returns when nothing of the replica lives any more."""
        if self._namespaced and os.getpid() != 1:
            # Everything here is killed at the end: never where that would mean the whole machine.
            raise RuntimeError("the guardian is not the first process of a namespace of its own")
        if self._namespaced:
            system.die_with_parent(signal.SIGKILL)
        else:
            system.adopt_orphans()
        wake, children = _child_signals()
        try:
            self._prepare()
        except OSError as error:
            self._say("%s %s" % ("full" if appending.is_full(error) else "failed", error))
            return
        status = self._start_main([wake, children])
        if status is None:
            status = self._watch(children)
        ended = now()
        self._kill_all()
        self._say("ended %d %d" % (status, ended))

    def _say(self, text: str) -> None:
        try:
            self._control.sendall((text + "\n").encode("utf-8", "replace"))
        except OSError:
            self._kill_all()  # The shim is gone: nobody to tell, nothing may stay.

    def _start_main(self, close: "list[int]") -> "int | None":
        """Have the program run as soon as the shim says so. Returns a wait status if it cannot be run."""
        if not self._program.argv:
            self._close_outputs()
            self._await_go()
            self._say("started %d" % now())
            return None
        if self._namespaced and self._program.can_spawn():
            self._await_go()
            at = now()
            try:
                self._settle()
                self._settled = True
                # Another user is another process to the kernel: it forgets who our parent is to us.
                system.die_with_parent(signal.SIGKILL)
                self._main = self._program.spawn()
            except program.NotRun as refusal:
                self._main_reaped = True
                return refusal.code << 8
            finally:
                self._close_outputs()
                self._say("started %d" % at)
            return None
        self._fork_main(close)
        return None

    def _fork_main(self, close: "list[int]") -> None:
        """Fork the main process at once and let it wait for `go`: the fork overlaps with the shim's work.

        It asks the kernel to die with this process, which nothing else ensures without a namespace.
        """
        gate_read, gate_write = os.pipe()
        parent = os.getpid()
        self._main = os.fork()
        if self._main == 0:
            code = 125
            try:
                signal.set_wakeup_fd(-1)
                system.die_with_parent(signal.SIGKILL)
                self._control.close()
                system.close_all([*close, gate_write])
                if os.getppid() == parent and os.read(gate_read, 1):
                    self._settle()
                    system.die_with_parent(signal.SIGKILL)
                    self._program.become()
            except program.NotRun as refusal:
                code = refusal.code
            finally:
                os._exit(code)
        os.close(gate_read)
        self._close_outputs()
        self._await_go()
        at = now()
        os.write(gate_write, b"g")
        os.close(gate_write)
        self._say("started %d" % at)

    def _close_outputs(self) -> None:
        """The pipes are the program's alone from here on, so that they end with it."""
        for handle in self._outputs:
            os.close(handle)

    def _await_go(self) -> None:
        while b"go\n" not in self._inbox:
            data = self._control.recv(256)
            if not data:
                self._kill_all()
                os._exit(1)
            self._inbox += data
        self._inbox = self._inbox.replace(b"go\n", b"", 1)

    def _watch(self, children: int) -> int:
        """Serve the shim and reap orphans until the main process is over; returns its wait status. Where there is none:
        until there are no more shells."""
        poll = select.poll()
        poll.register(children, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        shells = terminal.Shells(self._program, poll, self._leave_guardian)
        self._obey(shells)
        while True:
            status = self._reap(shells)
            if status is not None:
                return status
            if not self._program.argv and shells.are_over:
                return 0
            for handle, _ in poll.poll(shells.pause()):
                if handle == children:
                    os.read(children, 512)
                elif not shells.closed(handle):
                    self._hear()
                    self._obey(shells)
            shells.tick()

    def _hear(self) -> None:
        try:
            data, handles = handover.receive_some(self._control)
        except BlockingIOError:
            return
        if not data:
            self._kill_all()
            os._exit(1)
        self._inbox += data
        self._handed += handles

    def _leave_guardian(self) -> None:
        """In a child that is to be a shell: be no guardian any more, and no more than the program is."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        if not self._settled:
            self._settle()
        system.die_with_parent(signal.SIGKILL)

    def _obey(self, shells: terminal.Shells) -> None:
        *words, self._inbox = self._inbox.split(b"\n")
        for word in words:
            if word.startswith(b"shell "):
                shells.open(word[6:], self._handed.pop(0))
            elif word == b"stop":
                self._signal_group(signal.SIGTERM)
            elif word == b"kill":
                # The main process first dies alone: what it ends with is what gets recorded.
                self._signal_group(signal.SIGKILL)
                processes.send(self._main, signal.SIGKILL)
            elif word == b"segv":
                processes.send(self._main, signal.SIGSEGV)

    def _signal_group(self, number: int) -> None:
        if not self._main:
            return
        try:
            os.killpg(self._main, number)
        except (ProcessLookupError, PermissionError):
            # It has not made its session yet: it alone, unless its number may already be another's.
            if not self._main_reaped:
                processes.send(self._main, number)

    def _reap(self, shells: terminal.Shells) -> "int | None":
        while True:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if child == 0:
                return None
            if child == self._main:
                self._main_reaped = True
                return status
            shells.reaped(child, status)

    def _kill_all(self) -> None:
        """Leave nobody: every other process of the namespace, or every descendant, killed and reaped."""
        if not self._namespaced:
            self._signal_group(signal.SIGKILL)
            processes.end_descendants()
            return
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nobody is left to be signalled; zombies may be left to be reaped.
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _child_signals() -> "tuple[int, int]":
    """A pipe (write end, read end) that a byte comes out of whenever a child ends."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, _noted)
    signal.set_wakeup_fd(write)
    return write, read


def _noted(number: int, frame: object) -> None:
    """A handler must exist for the wake-up byte to be written; the loop does the work."""
