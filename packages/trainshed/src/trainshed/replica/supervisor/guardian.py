"""Runs the process between shim and program: process 1 of the replica's namespace, which reaps its orphans
(`start`).

The program itself is never process 1, because the kernel shields process 1 from its own signals, and how the
program dies decides what happens to the job. The guardian starts the main process when told to, passes on the
request to stop, records how the main process ended, kills every other process of the replica, reports and
ends. If the shim dies, the guardian and everything below it die too.

They speak over a socket pair, one line per message. Shim to guardian, in this order:
- the request with the launch document, as the zygote gave it to the shim
- `claimed`, with the slot's lock; until then nothing of the slot is touched
- `go`: run the program
- at any time `stop` (SIGTERM to the main process's group), `kill` (SIGKILL to everything), `segv`
  (SIGSEGV to the main process), and `shell ORDER` with a file handle (`shells`)
Guardian to shim:
- `asked`, with a file handle on which the program's socket calls are asked about (`socket_calls`)
- `started NS`, and of a program that was to begin in a fork `warm WHAT` or `cold WHY`; then `ended STATUS NS`
  (STATUS as of wait)
- in place of all that `failed TEXT` if the sandbox could not be made, or `full TEXT` if the disk has no space
"""

import os
import select
import signal
import socket
from collections.abc import Callable

from trainshed.replica.observe import growing_files
from trainshed.replica.observe.segments import now
from trainshed.replica.supervisor import program, shells, warm_start
from trainshed.replica.system import (
    kernel,
    processes,
    unix_sockets,
)


class Guardian:
    """Makes the sandbox, starts the program in it and waits for whatever ends there."""

    def __init__(
        self,
        control: socket.socket,
        main: program.Program,
        outputs: list[int],
        *,
        namespaced: bool,
        prepare: Callable[[], tuple[bytes, int]],
        settle: Callable[[], list[int]],
        warm: warm_start.WarmStart | None = None,
    ) -> None:
        self._control = control
        #: Whether this process is process 1 of a process namespace.
        self._namespaced = namespaced
        #: Makes the sandbox once the slot is claimed. Returns what was read from the control socket beyond
        #: that, and the slot's lock.
        self._prepare = prepare
        #: Gives up the rights that the program may not have; called in the process that becomes or starts it.
        #: Returns handles by which a process joins the program's control groups.
        self._settle = settle
        #: The warm start, if a preloader was asked to fork the program; None = none was.
        self._warm = warm
        self._program = main
        #: Handles to be closed here once the program has them.
        self._outputs = outputs
        self._main = 0
        self._main_reaped = False
        #: What was read from the control socket and not handled yet.
        self._inbox = b""
        self._handed: list[int] = []
        self._settled = False
        self._may_go = False
        #: The slot's lock; held as long as anything of the replica lives.
        self._lock = -1

    def run(self) -> None:
        """Run the program to its end; return when nothing of the replica lives any more."""
        if self._namespaced and os.getpid() != 1:
            # Everything in this namespace is killed at the end, which must never be the whole machine's.
            raise RuntimeError("the guardian is not the first process of a namespace of its own")
        if self._namespaced:
            kernel.die_with_parent(signal.SIGKILL)
        else:
            kernel.adopt_orphans()
        wake, children = kernel.child_signals()
        try:
            self._inbox, self._lock = self._prepare()
        except OSError as error:
            self._say("%s %s" % ("full" if growing_files.takes_nothing(error) else "failed", error))
            return
        try:
            self._start_main([wake, children])
        except program.NoProcess as shortage:
            self._say("failed no process can be made for the program (%s)" % shortage.cause)
            return
        status = self._watch(children)
        ended = now()
        self._kill_all()
        self._say("ended %d %d" % (status, ended))

    def _say(self, text: str) -> None:
        try:
            self._control.sendall((text + "\n").encode("utf-8", "replace"))
        except OSError:
            self._kill_all()  # The shim is gone: there is nobody to report to, and nothing may remain.

    def _start_main(self, close: list[int]) -> None:
        """Start the program as soon as the shim says so. Raises NoProcess."""
        if not self._program.argv:
            self._close_outputs()
            self._await_go()
            self._say("started %d" % now())
            return
        if self._warm is not None and not self._warm.cold_because and self._start_warm():
            return
        try:
            self._fork_main(close)
        finally:
            if self._warm is not None:
                self._say("%s %s" % (warm_start.COLD, self._warm.cold_because))

    def _start_warm(self) -> bool:
        """Have a fork of a preloader become the program. Returns false if there is no such fork."""
        assert self._warm is not None
        self._await_go()
        at = now()
        groups = self._settle()
        self._settled = True
        kernel.die_with_parent(signal.SIGKILL)
        self._main = self._warm.run(self._program, groups)
        if not self._main:
            return False
        self._close_outputs()
        self._say("started %d" % at)
        self._say("%s %s" % (warm_start.WARM, self._warm.preloaded))
        return True

    def _settle_once(self) -> None:
        """Give up rights, unless this process has done so; another process may have done it for itself
        alone."""
        if not self._settled:
            self._settle()
            self._settled = True

    def _fork_main(self, close: list[int]) -> None:
        """Fork the main process at once and let it wait for `go`, so that the fork overlaps with the shim's
        work.

        The main process asks the kernel to die with this process, which nothing else ensures without a
        namespace.
        """
        gate_read, gate_write = os.pipe()
        parent = os.getpid()
        try:
            self._main = os.fork()
        except OSError as error:
            raise program.NoProcess(str(error.strerror)) from None
        if self._main == 0:
            code = 125
            try:
                signal.set_wakeup_fd(-1)
                kernel.die_with_parent(signal.SIGKILL)
                self._control.close()
                kernel.close_all([*close, gate_write])
                if os.getppid() == parent and os.read(gate_read, 1):
                    self._settle_once()
                    kernel.die_with_parent(signal.SIGKILL)
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
        """Leave the pipes to the program alone, so that they end with it."""
        for handle in self._outputs:
            os.close(handle)

    def _await_go(self) -> None:
        if self._may_go:
            return
        while b"go\n" not in self._inbox:
            data = self._control.recv(256)
            if not data:
                self._kill_all()
                os._exit(1)
            self._inbox += data
        self._inbox = self._inbox.replace(b"go\n", b"", 1)
        self._may_go = True

    def _watch(self, children: int) -> int:
        """Serve the shim and reap orphans until the main process has ended; return its wait status. Without a
        main process, return 0 when the last shell is over."""
        poll = select.poll()
        poll.register(children, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        running = shells.Shells(self._program, poll, self._leave_guardian)
        self._obey(running)
        while True:
            status = self._reap(running)
            if status is not None:
                return status
            if not self._program.argv and running.are_over:
                return 0
            for handle, _ in poll.poll(running.pause()):
                if handle == children:
                    os.read(children, 512)
                elif not running.closed(handle):
                    self._hear()
                    self._obey(running)
            running.tick()

    def _hear(self) -> None:
        try:
            data, handles = unix_sockets.receive_some(self._control)
        except BlockingIOError:
            return
        if not data:
            self._kill_all()
            os._exit(1)
        self._inbox += data
        self._handed += handles

    def _leave_guardian(self) -> None:
        """Turn a child that is to be a shell from a guardian into a process with no more rights than the
        program."""
        self._control.close()
        self._settle_once()

    def _obey(self, running: shells.Shells) -> None:
        *words, self._inbox = self._inbox.split(b"\n")
        for word in words:
            if word.startswith(b"shell "):
                running.open(word[6:], self._handed.pop(0))
            elif self._main:
                program.obey(word, self._main)

    def _reap(self, running: shells.Shells) -> int | None:
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
            running.reaped(child, status)

    def _kill_all(self) -> None:
        """Kill and reap every other process of the namespace, or, without one, every descendant."""
        if not self._namespaced:
            if self._main:
                program.signal_group(self._main, signal.SIGKILL, is_reaped=self._main_reaped)
            processes.end_descendants()
            return
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # Nobody is left. A kill of all would have the kernel pass every process of the machine.
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass  # Nobody is left to be signalled; zombies may still have to be reaped.
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            return
