"""Supervises one replica's program: the loop of its shim, from the start to the sealed log (`start`).

Each replica has one shim, process 1 of its process namespace. It survives the service, and its program dies
with it. It starts and signals the program, reaps all processes of the replica, writes the program's log and
reports to the connected services. Important state is in the slot's files (`protocol`) before it is reported.

The program itself is never process 1, because the kernel shields process 1 from its own signals, and the
cause of the program's death decides the fate of the job.
"""

import json
import os
import resource
import signal
import socket
from collections.abc import Callable

from trainshed.replica import protocol
from trainshed.replica.observe import disk, growing_files, masking, notes, segments, stall
from trainshed.replica.supervisor import (
    clients,
    deadline,
    journal,
    main_process,
    program,
    shells,
    sidecars,
    warm_start,
)
from trainshed.replica.system import cgroups, kernel, loop, processes, unix_sockets

_DRAIN_SECONDS = 2.0
_SHORT_GRACE = 1.0
"""Grace time in seconds after the main process's end that needs no note."""
GRACE_USED = "grace_used"
"""Name of the note that other processes used grace time after the main process's end."""
_GRACE_TEXT = (
    "its main process ended on SIGTERM; other processes used the grace time for %.0f s more %s"
)


class Shim:
    """The event loop around one program. Works in the slot's directory with one thread; its only state on
    disk is the log."""

    # Both are made by `_begin`, before anything runs.
    transcript: segments.Transcript
    _sidecars: sidecars.Sidecars

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        listeners: clients.Clients,
        claim: journal.Claim,
        *,
        slot: str,
        main: main_process.MainProcess,
        warden: socket.socket | None,
    ) -> None:
        """`main`: waits for `go`. `warden`: the connection to it (`start`), if any."""
        self._plan = plan
        self._clients = listeners
        self._claim = claim
        #: Process id of the program's main process, which may become a preloader's fork.
        self._main = main.process
        self._say_to_main = main.say
        self._control = main.control
        #: Whether the main process has not become the program yet.
        self._is_beginning = True
        self._outputs = ((main.output, "o"), (main.errors, "e"))
        #: Directory of the program's own files, removed from tracebacks.
        self._work = os.path.join(slot, protocol.FILES, program.WORK, "")
        self._groups = cgroups.ControlGroups(plan.limits)
        self._program = main_process.program_of(slot, plan, self._groups, (-1, -1))
        self._warden = warden
        self._shells: shells.Shells | None = None
        self._children = -1
        self._loop = loop.Loop()
        self._retries = growing_files.DiskRetries(self._loop, self._note_full_disk)
        self._notes = notes.Notes(claim.note, listeners.send, self._retries)
        self._inbox = b""
        self._handed: list[int] = []
        self._failure = ""
        self._sandbox_failed = False
        self._has_begun = False
        self._status = -1
        self._started = 0
        self._ended = 0
        self._stopped = False
        #: Whether the grace time of a stop is running.
        self._has_grace = False
        #: Whether other processes use it, after the main process has ended.
        self._outlives_main = False
        self._stalled = False
        self._is_dumping = False
        #: No process of the replica is alive, nor any helper.
        self._is_alone = False
        self._is_drained = False
        self._out_of_disk = False
        self._is_reaped = False

    def run(self) -> protocol.Message:
        """Supervise the incarnation to the sealed log; return the attempt record."""
        try:
            self._begin()
            self._serve()
        finally:
            self._end_children()
        if self._failure:
            return journal.lost_record(self._failure, by_service=self._sandbox_failed)
        return self._seal()

    def _begin(self) -> None:
        """Do the work that is possible while the main process builds the view."""
        plan = self._plan
        self._claim.describe(self._groups.directories())
        self._groups.create()
        self._say_to_main(b"claimed")
        mask = masking.Mask(tuple(plan.observation.masked)) if plan.observation.masked else None
        self.transcript = segments.Transcript(
            segments.Segments(plan.observation.logs, mask, self._work),
            self._loop,
            tell=lambda lines: self._clients.send({"e": "lines", "n": lines}),
            retries=self._retries,
        )
        self._sidecars = sidecars.Sidecars(
            plan,
            self._groups,
            self._loop,
            self,
            notes=self._notes,
            retries=self._retries,
            mask=mask,
        )
        self._clients.serve(self._loop, self._obey, self._greet)
        self._claim.sync()
        self._has_begun = True
        if plan.limits.deadline is not None:
            deadline.DeadlineWatch(plan.limits.deadline, self._loop, self._end_late)
        self._children = kernel.child_signals()
        self._loop.add(self._children, self._note_children)
        self._loop.add(self._control.fileno(), self._hear_main)
        if self._warden is not None:
            # Without a warden, nothing would end the remaining processes: end all of them now.
            self._loop.add(self._warden.fileno(), self._lose_warden)

    def _serve(self) -> None:
        """Run the loop until the whole program has ended and both pipes are at their end."""
        while self.transcript.is_open or not self._is_alone:
            if self._failure or self._is_drained:
                return
            self._loop.turn(None)

    def _drain(self, has_waited: bool = False) -> None:
        """Give up the pipes: no process of the replica is alive, so an open pipe belongs to an escaped
        process. They remain open until the disk accepts their data, and for some time after that, since they
        `has_waited` with the rest."""
        waits = self.transcript.waits
        self._is_drained = not (waits or has_waited)
        if not self._is_drained:
            self._loop.after(_DRAIN_SECONDS, lambda: self._drain(waits))

    def _hear_main(self) -> None:
        """Receive the main process's messages until it is the program, or has ended."""
        try:
            data, handles = unix_sockets.receive_some(self._control)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, handles = b"", []  # It was killed before it had read all messages.
        self._handed += handles
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            self._take(*line.decode("utf-8", "replace").partition(" ")[::2])
        if not data:
            self._loop.drop(self._control.fileno())
            self._is_beginning = False
            self._reap()

    def _take(self, word: str, rest: str) -> None:
        if word == "asked" and self._handed:
            self._sidecars.take_calls(self._handed.pop(0))
        elif word == "made":
            self._go(json.loads(rest))
        elif word == warm_start.WARM:
            process, _, preloaded = rest.partition(" ")
            self._main = int(process)
            self._note_beginning(word, preloaded)
        elif word == warm_start.COLD:
            self._note_beginning(word, rest)
        elif word == "failed":
            self._failure, self._sandbox_failed = rest, True

    def _go(self, made: protocol.Message) -> None:
        """Start the program, whose view is `made`."""
        at = segments.now()
        try:
            self._control.sendall(b"go\n")
        except OSError:
            return  # It has been killed; its end will be read.
        self._started = at
        # The program runs now, and does not wait for the rest.
        for handle, stream in self._outputs:
            self.transcript.open(handle, stream)
        self._shells = shells.Shells(
            self._plan,
            self._program,
            made,
            self._handed,
            events=self._loop,
            take_calls=self._sidecars.take_calls,
        )
        self._handed = []
        self._clients.greet({"e": "started", "at": at})
        self.transcript.program_started()
        self._sidecars.program_started(at)
        if self._plan.warm.cold_because:
            self._note_beginning(warm_start.COLD, self._plan.warm.cold_because)
        if self._stopped:
            program.signal_group(self._main, signal.SIGTERM)

    def _note_beginning(self, word: str, text: str) -> None:
        if not (self._plan.warm.preloaded or self._plan.warm.cold_because):
            return  # The job did not ask for a warm start.
        self._notes.add(*warm_start.note(word, text))

    def _note_children(self) -> None:
        try:
            os.read(self._children, 512)
        except BlockingIOError:
            return
        self._reap()

    def _reap(self) -> None:
        """Reap what has ended, once it is known which is the main process, and the stacks of a stalled one
        are written down."""
        while not self._is_beginning and not self._is_dumping:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self._is_alone:
                    self._uses_grace()  # Nothing does any more, which may be worth a note.
                    self._is_alone = True
                    self._loop.after(_DRAIN_SECONDS, self._drain)
                return
            if child == 0:
                if self._status >= 0 and not self._uses_grace():
                    self._end_rest()
                return
            if child == self._main and self._status < 0:
                if not self._started:
                    self._failure = (
                        self._failure or "its main process was killed before its program ran"
                    )
                self._status, self._ended = status, segments.now()
            elif self._status < 0 or self._has_grace:
                self._sidecars.reaped(child)
                if self._shells is not None:
                    self._shells.reaped(child, status)

    def _uses_grace(self) -> bool:
        """Return whether processes of the program use the grace time of a stop although its main process has
        ended: a shell ends on SIGTERM, and the program below it saves its state."""
        if not self._has_grace or self._failure:
            return False
        rest = processes.programs(os.getpid())
        if not self._outlives_main:
            self._outlives_main = True
            shells_own: set[int] = set() if self._shells is None else self._shells.kill()
            rest = [process for process in rest if process not in shells_own]
            for process in rest:
                if processes.group(process) != self._main:
                    processes.send(
                        process, signal.SIGTERM
                    )  # The stop signaled the main group only.
        if not rest:
            self._note_grace("and ended before it was over")
        return bool(rest)

    def _note_grace(self, end: str) -> None:
        """Finish the grace time, and note how much of it the remaining processes used. `end`: what became of
        them."""
        self._has_grace = False
        if self._outlives_main:
            main, self._ended = self._ended, segments.now()
            seconds = (self._ended - main) / 1e9
            if seconds >= _SHORT_GRACE:
                self._notes.add(GRACE_USED, notes.INFO, _GRACE_TEXT % (seconds, end))

    def _end_rest(self) -> None:
        """Kill all other processes of the replica. They are reaped by and by, since the memory of some may
        take seconds to be given back."""
        self._sidecars.end_relay()
        if self._warden is not None:
            for process in processes.descendants(os.getpid()):
                processes.send(process, signal.SIGKILL)
        elif os.getpid() == 1:
            # All of this namespace, which must never be the whole machine's.
            processes.send(-1, signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the main process and its group; the rest only when its end is known, which is recorded."""
        if self._status >= 0 and self._has_grace:
            self._note_grace("and were killed when it was over")
            self._end_rest()
        self._has_grace = False
        if self._status < 0:
            program.signal_group(self._main, signal.SIGKILL)
            processes.send(self._main, signal.SIGKILL)

    def _end_late(self) -> None:
        """Kill the program, because its deadline has passed: another one may run in its place."""
        if not self.has_ended():
            self._stopped = True
            self._kill()

    def _lose_warden(self) -> None:
        assert self._warden is not None
        self._loop.drop(self._warden.fileno())
        self._kill()

    def main_process(self) -> int:
        return self._main

    def has_ended(self) -> bool:
        return self._status >= 0 and not self._has_grace

    def say(self, line: str) -> None:
        self.transcript.say(line)

    def tell(self, message: protocol.Message) -> None:
        self._clients.send(message)

    def end_stalled(self) -> None:
        """Write the stacks of the program, which makes no progress, to the log, and then kill it."""
        if self._stopped:
            return  # A program that is being stopped has its own time limit.
        self._stalled = True
        self.say(
            "No output, no processor time and no data moved for %g seconds: the stall watchdog ends this "
            "replica." % self._plan.limits.stall_after
        )
        self._is_dumping = True
        stall.Dump(os.getpid(), self._main, self._loop, self.say, self._end_dump)

    def _end_dump(self) -> None:
        self._is_dumping = False
        self._kill()
        self._reap()

    def end_for_disk(self) -> None:
        """Kill the program, whose files take more disk than they may."""
        if not self._stopped:
            self._out_of_disk = True
            self._kill()

    def _greet(self) -> None:
        """Tell a service that has connected the number of log lines, whether there are metrics, and all
        notes."""
        self.transcript.tell_again()
        self._sidecars.tell_again()

    def _obey(self, connection: socket.socket, order: protocol.Message) -> None:
        word = order.get("o")
        if word == "stop":
            self._reap()  # It may have ended just before.
            if self._status < 0:
                self._has_grace = self._has_grace or not self._stopped
                self._stopped = True
                if order.get("notice"):
                    self._sidecars.report(order["notice"])
                if self._started:
                    program.signal_group(self._main, signal.SIGTERM)
            self._loop.after(order["grace"] / 1e9, self._kill)
        elif word == "ping":
            self._clients.answer(connection, {"e": "pong", "n": order["n"]})
        elif word == "fault":
            self._inject(order["kind"])
        elif word == "write":
            self._write(connection, order["lines"])
        elif word in ("shell", "port"):
            self._open_shell(connection, order)

    def _write(self, connection: socket.socket, lines: list[str]) -> None:
        if self.transcript.waits or self._is_reaped:
            cause = (
                "the disk that its log is written to is full or read-only; mend that and try again"
            )
            self._clients.answer(connection, {"e": "refused", "cause": cause})
            return
        self.transcript.take(lines)
        self._clients.answer(connection, {"e": "written", "n": len(lines)})

    def _open_shell(self, connection: socket.socket, order: protocol.Message) -> None:
        """Open a shell, or a connection to a port. The answer goes to the connection, which belongs to the
        shell from here on."""
        if self._shells is not None and self._status < 0:
            self._clients.hand_on(connection)
            self._shells.open(order, connection)
            return
        cause = "its program has %s" % ("ended" if self._started else "not begun yet")
        self._clients.answer(connection, {"e": "refused", "cause": cause})

    def _inject(self, kind: str) -> None:
        """Carry out a drill's order; nothing unless the program runs."""
        if self._status >= 0 or not self._started:
            return
        if kind == protocol.FAULT_OOM:
            # A memory limit below what is in use would make the kernel choose the victim; this kills the
            # right one.
            self._sidecars.memory.drill()
        if kind == protocol.FAULT_SEGV:
            processes.send(self._main, signal.SIGSEGV)
        else:
            self._kill()

    def _end_children(self) -> None:
        """Leave no process of the replica: all have ended by now unless something went wrong."""
        self._control.close()
        if self._has_begun:
            self._sidecars.program_ends()
        processes.end_descendants()
        if self._has_begun:
            self._sidecars.program_ended(resource.getrusage(resource.RUSAGE_CHILDREN))
        cgroups.remove(self._groups.directories())
        # The program's handlers are done; services that request the state still get an answer.
        self._loop.clear()
        self._is_reaped = True
        self._clients.listen_again()
        self._retries.resume()

    def _seal(self) -> protocol.Message:
        """Seal metrics and log, which come before the record and the report
        (spec/invariants#last-lines-first); return the attempt record, whose fields `ExitRecord` explains."""
        self.transcript.end()
        self._sidecars.seal(succeeded=self._status == 0)
        self.insist(self.transcript.save)
        self.insist(self._sidecars.save)
        self._sidecars.close()
        lines, tail = self.transcript.seal()
        killed_by = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else None
        code = None if killed_by is not None else os.WEXITSTATUS(self._status)
        is_ours = self._stopped or self._stalled or self._out_of_disk
        oom, child_oom = self._sidecars.memory.verdict(None if is_ours else killed_by)
        return {
            "exit_code": code,
            "signal": killed_by,
            "oom": oom,
            "started": self._started,
            "ended": self._ended,
            "log_lines": lines,
            "tail": tail.replace(self._work, "") if self._status else "",
            "child_oom": child_oom,
            "stopped": self._stopped,
            "stalled": self._stalled,
            "out_of_disk": self._out_of_disk and killed_by == signal.SIGKILL,
        }

    def insist(self, write: Callable[[], bool]) -> None:
        """Call `write` until it returns true, which takes as long as the disk is full. In the meantime,
        services still receive the state of the replica. Raises the errors of `write`."""
        if not write():
            self._retries.wait(write)
            while self._retries.has_waiting:
                self._loop.turn(None)

    def _note_full_disk(self, is_short: bool) -> None:
        """Add a note that writing has begun to wait for disk space, or that nothing waits for it any more."""
        if is_short:
            self._notes.add(disk.LOG_WAITS, notes.WARNING, disk.LOG_WAITS_TEXT)
        else:
            self._notes.add(disk.LOG_GOES_ON, notes.INFO, disk.LOG_GOES_ON_TEXT)
