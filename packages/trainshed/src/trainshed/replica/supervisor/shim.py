"""Supervises one replica's program: the shim's event loop, from the program's start until the log is sealed.

Each replica has one shim, process 1 of its process namespace. The shim survives a restart of the service, but
the program is killed if the shim is. The shim starts and signals the program, reaps all processes of the
replica, writes the program's log and reports to the connected services. It writes important state to the
slot's files before it reports the state.

The program itself is never process 1, because the kernel ignores signals that process 1 sends to itself. A
program that kills itself with a signal would then end in another way, and its attempt record would be wrong.
`start` describes the whole sequence.
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

_DRAIN_INTERVAL = 2.0
_SHORT_GRACE = 1.0
"""Seconds. After the main process's exit, other processes may use the rest of the grace time. If they use
less than this, no note to users is added."""
GRACE_USED = "grace_used"
"""Name of a note to users: other processes used grace time after the main process's exit."""
_GRACE_TEXT = "its main process ended on SIGTERM; other processes used the grace time for %.0f s more %s"


class Shim:
    """The supervisor of one program: an event loop with one thread, in the replica's directory. It writes the
    log. The journal and the sidecars write all other files."""

    # `_prepare` creates both attributes before the program runs.
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
        """`main`: the main process, which waits for `go`. `warden`: the connection to the warden (`start`);
        None if there is none."""
        self._plan = plan
        self._clients = listeners
        self._claim = claim
        #: Process ID of the program's main process. In a warm start, later that of a preloader's fork.
        self._main = main.process
        self._send_to_main = main.send
        self._control = main.control
        #: Whether the main process still has to become the program.
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
        self._handles: list[int] = []
        self._failure = ""
        self._sandbox_failed = False
        self._has_begun = False
        self._status = -1
        self._started = 0
        self._ended = 0
        self._stopped = False
        #: Whether the grace time of a stop is running.
        self._has_grace = False
        #: Whether the main process has exited, but other processes of the program still use the grace time.
        self._outlives_main = False
        self._stalled = False
        self._is_dumping = False
        #: Whether all processes of the replica and all helpers have exited.
        self._is_alone = False
        self._is_drained = False
        self._out_of_disk = False
        self._is_reaped = False

    def run(self) -> protocol.Message:
        """Supervise this run of the program until its log is sealed; return the attempt record (the stored
        end)."""
        try:
            self._prepare()
            self._serve()
        finally:
            self._end_children()
        if self._failure:
            return journal.lost_record(self._failure, by_service=self._sandbox_failed)
        return self._seal()

    def _prepare(self) -> None:
        """Prepare the log, the sidecars and the event loop while the main process builds the view."""
        plan = self._plan
        self._claim.describe(self._groups.directories())
        self._groups.create()
        self._send_to_main(b"claimed")
        mask = masking.Mask(tuple(plan.observation.masked)) if plan.observation.masked else None
        self.transcript = segments.Transcript(
            segments.Segments(plan.observation.logs, mask, self._work),
            self._loop,
            notify=lambda lines: self._clients.send({"e": "lines", "n": lines}),
            retries=self._retries,
        )
        self._sidecars = sidecars.Sidecars(
            plan, self._groups, self._loop, self, notes=self._notes, retries=self._retries, mask=mask
        )
        self._clients.serve(self._loop, self._obey, self._greet)
        self._claim.sync()
        self._has_begun = True
        if plan.limits.deadline is not None:
            deadline.DeadlineWatch(plan.limits.deadline, self._loop, self._end_after_deadline)
        self._children = kernel.child_signals()
        self._loop.add(self._children, self._note_children)
        self._loop.add(self._control.fileno(), self._receive_main)
        if self._warden is not None:
            # Without the warden, no process would later kill the replica's processes, so kill them now.
            self._loop.add(self._warden.fileno(), self._on_warden_death)

    def _serve(self) -> None:
        """Run the loop until all processes have exited and both output pipes have reached their end."""
        while self.transcript.is_open or not self._is_alone:
            if self._failure or self._is_drained:
                return
            self._loop.turn(None)

    def _drain(self, has_waited: bool = False) -> None:
        """Stop reading the output pipes. All processes of the replica have exited, so a pipe that is still
        open belongs to an escaped process.

        While the log waits for disk space, the pipes stay open. `has_waited`: the log waited at the previous
        call; in this case, the pipes stay open for one more interval.
        """
        waits = self.transcript.waits
        self._is_drained = not (waits or has_waited)
        if not self._is_drained:
            self._loop.after(_DRAIN_INTERVAL, lambda: self._drain(waits))

    def _receive_main(self) -> None:
        """Receive messages of the main process until it executes the program or exits."""
        try:
            data, handles = unix_sockets.receive_available(self._control)
        except BlockingIOError:
            return
        except ConnectionResetError:
            # The main process was killed before it had read all messages of this process.
            data, handles = b"", []
        self._handles += handles
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            self._handle_message(*line.decode("utf-8", "replace").partition(" ")[::2])
        if not data:
            self._loop.drop(self._control.fileno())
            self._is_beginning = False
            self._reap()

    def _handle_message(self, word: str, rest: str) -> None:
        if word == "asked" and self._handles:
            self._sidecars.handle_calls(self._handles.pop(0))
        elif word == "made":
            self._start_program(json.loads(rest))
        elif word == warm_start.WARM:
            process, _, preloaded = rest.partition(" ")
            self._main = int(process)
            self._note_start(word, preloaded)
        elif word == warm_start.COLD:
            self._note_start(word, rest)
        elif word == "failed":
            self._failure, self._sandbox_failed = rest, True

    def _start_program(self, view: protocol.Message) -> None:
        """Start the program. `view`: the main process's message that its view is complete."""
        at = segments.now()
        try:
            self._control.sendall(b"go\n")
        except OSError:
            return  # The main process was killed, which `_receive_main` will detect.
        self._started = at
        # The program may already run. Its output remains in the pipes until the shim reads it.
        for handle, stream in self._outputs:
            self.transcript.open(handle, stream)
        self._shells = shells.Shells(
            self._plan,
            self._program,
            view,
            self._handles,
            events=self._loop,
            handle_calls=self._sidecars.handle_calls,
        )
        self._handles = []
        self._clients.greet({"e": "started", "at": at})
        self.transcript.program_started()
        self._sidecars.program_started(at)
        if self._plan.warm.cold_because:
            self._note_start(warm_start.COLD, self._plan.warm.cold_because)
        if self._stopped:
            program.signal_group(self._main, signal.SIGTERM)

    def _note_start(self, word: str, text: str) -> None:
        if not (self._plan.warm.preloaded or self._plan.warm.cold_because):
            return  # The job did not request a warm start, so its owner gets no note.
        self._notes.add(*warm_start.note(word, text))

    def _note_children(self) -> None:
        try:
            os.read(self._children, 512)
        except BlockingIOError:
            return
        self._reap()

    def _reap(self) -> None:
        """Reap exited children. Does nothing until the main process is known, or while a stalled program's
        stacks are written to the log."""
        while not self._is_beginning and not self._is_dumping:
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if not self._is_alone:
                    self._uses_grace()  # Ends the grace time, perhaps with a note to users about its use.
                    self._is_alone = True
                    self._loop.after(_DRAIN_INTERVAL, self._drain)
                return
            if child == 0:
                if self._status >= 0 and not self._uses_grace():
                    self._kill_remaining()
                return
            if child == self._main and self._status < 0:
                if not self._started:
                    self._failure = self._failure or "its main process was killed before its program ran"
                self._status, self._ended = status, segments.now()
            elif self._status < 0 or self._has_grace:
                self._sidecars.on_exit(child)
                if self._shells is not None:
                    self._shells.on_exit(child, status)

    def _uses_grace(self) -> bool:
        """Return whether the main process has exited and other processes of the program use the grace time of
        a stop. For example, a shell exits on SIGTERM while its child saves a checkpoint."""
        if not self._has_grace or self._failure:
            return False
        rest = processes.programs(os.getpid())
        if not self._outlives_main:
            self._outlives_main = True
            shells_own: set[int] = set() if self._shells is None else self._shells.kill()
            rest = [process for process in rest if process not in shells_own]
            for process in rest:
                if processes.group(process) != self._main:
                    # The stop signaled only the main process's group, so signal the other processes now.
                    processes.send(process, signal.SIGTERM)
        if not rest:
            self._note_grace("and exited in time")
        return bool(rest)

    def _note_grace(self, end: str) -> None:
        """End the grace time, and add a note to users about the time that the remaining processes used.
        `end`: how these processes ended, for the note."""
        self._has_grace = False
        if self._outlives_main:
            main, self._ended = self._ended, segments.now()
            seconds = (self._ended - main) / 1e9
            if seconds >= _SHORT_GRACE:
                self._notes.add(GRACE_USED, notes.INFO, _GRACE_TEXT % (seconds, end))

    def _kill_remaining(self) -> None:
        """Kill all other processes of the replica, without waiting for their exit: the kernel may need
        seconds to free their memory."""
        self._sidecars.end_relay()
        if self._warden is not None:
            for process in processes.descendants(os.getpid()):
                processes.send(process, signal.SIGKILL)
        elif os.getpid() == 1:
            # -1 signals all processes of this process's namespace. As process 1, the shim is in the replica's
            # own namespace.
            processes.send(-1, signal.SIGKILL)

    def _kill(self) -> None:
        """Kill the main process and its group. `_reap` kills all other processes later, after the exit of the
        main process is recorded."""
        if self._status >= 0 and self._has_grace:
            self._note_grace("and were killed at its end")
            self._kill_remaining()
        self._has_grace = False
        if self._status < 0:
            program.signal_group(self._main, signal.SIGKILL)
            processes.send(self._main, signal.SIGKILL)

    def _end_after_deadline(self) -> None:
        """Kill the program after its deadline, because another run of the replica may already have started
        elsewhere."""
        if not self.has_ended():
            self._stopped = True
            self._kill()

    def _on_warden_death(self) -> None:
        assert self._warden is not None
        self._loop.drop(self._warden.fileno())
        self._kill()

    def main_process(self) -> int:
        return self._main

    def has_ended(self) -> bool:
        return self._status >= 0 and not self._has_grace

    def log(self, line: str) -> None:
        self.transcript.log(line)

    def notify(self, message: protocol.Message) -> None:
        self._clients.send(message)

    def end_stalled(self) -> None:
        """Write the stacks of a program without progress to its log, and then kill it."""
        if self._stopped:
            return  # The program was already stopped, and the stop's grace time limits it.
        self._stalled = True
        self.log(
            "No output, no processor time and no data moved for %g seconds: the stall watchdog ends this "
            "replica." % self._plan.limits.stall_after
        )
        self._is_dumping = True
        stall.Dump(os.getpid(), self._main, self._loop, self.log, self._end_dump)

    def _end_dump(self) -> None:
        self._is_dumping = False
        self._kill()
        self._reap()

    def end_for_disk(self) -> None:
        """Kill the program, because its files exceed their disk limit."""
        if not self._stopped:
            self._out_of_disk = True
            self._kill()

    def _greet(self) -> None:
        """Report the state to a newly connected service: number of log lines, metrics, and all notes to
        users."""
        self.transcript.announce()
        self._sidecars.announce()

    def _obey(self, connection: socket.socket, order: protocol.Message) -> None:
        word = order.get("o")
        if word == "stop":
            self._reap()  # Otherwise a program that has just exited would count as stopped.
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
            cause = "the disk of the log is full or read-only. Free space on it, then try again"
            self._clients.answer(connection, {"e": "refused", "cause": cause})
            return
        self.transcript.add_lines(lines)
        self._clients.answer(connection, {"e": "written", "n": len(lines)})

    def _open_shell(self, connection: socket.socket, order: protocol.Message) -> None:
        """Open a shell, or a connection to a port. The response is sent on the connection, which then belongs
        to the shell."""
        if self._shells is not None and self._status < 0:
            self._clients.release(connection)
            self._shells.open(order, connection)
            return
        cause = "the replica's program has %s" % ("ended" if self._started else "not started yet")
        self._clients.answer(connection, {"e": "refused", "cause": cause})

    def _inject(self, kind: str) -> None:
        """Inject the fault of a drill (a test that the user ordered). Does nothing if the program is not
        running."""
        if self._status >= 0 or not self._started:
            return
        if kind == protocol.FAULT_OOM:
            # With a lower limit, the kernel would choose the process, but a drill (injected fault) must kill
            # the main process.
            self._sidecars.memory.drill()
        if kind == protocol.FAULT_SEGV:
            processes.send(self._main, signal.SIGSEGV)
        else:
            self._kill()

    def _end_children(self) -> None:
        """Kill all remaining processes of the replica. Usually, there are none."""
        self._control.close()
        if self._has_begun:
            self._sidecars.stop()
        processes.end_descendants()
        if self._has_begun:
            self._sidecars.record_usage(resource.getrusage(resource.RUSAGE_CHILDREN))
        cgroups.remove(self._groups.directories())
        # Remove the handlers of the program. Services that request the state still get a response.
        self._loop.clear()
        self._is_reaped = True
        self._clients.listen_again()
        self._retries.resume()

    def _seal(self) -> protocol.Message:
        """Seal metrics and log, and return the attempt record (`ExitRecord` explains its fields). Both are
        sealed before the record is written and reported (spec/invariants#last-lines-first)."""
        self.transcript.end()
        self._sidecars.seal(succeeded=self._status == 0)
        self.retry_write(self.transcript.save)
        self.retry_write(self._sidecars.save)
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

    def retry_write(self, write: Callable[[], bool]) -> None:
        """Call `write` repeatedly until it returns True, which happens when the disk has space. In the
        meantime, services still receive the state of the replica. Raises the errors of `write`."""
        if not write():
            self._retries.wait(write)
            while self._retries.has_waiting:
                self._loop.turn(None)

    def _note_full_disk(self, is_short: bool) -> None:
        """Add a note to users that the log waits for disk space (`is_short`), or a note that it no longer
        waits."""
        if is_short:
            self._notes.add(disk.LOG_WAITS, notes.WARNING, disk.LOG_WAITS_TEXT)
        else:
            self._notes.add(disk.LOG_GOES_ON, notes.INFO, disk.LOG_GOES_ON_TEXT)
