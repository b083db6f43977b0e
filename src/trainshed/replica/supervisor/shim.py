"""One replica's keeper: starts its program, writes its log, records how it ended, tells whoever listens.

One process per replica, which outlives the service; its program dies with it. What it knows that matters is in
the slot's files (`protocol`) before it is told to anybody. Runs on Python 3.6.
"""

import json
import os
import signal
import socket
import time

from trainshed.replica import protocol
from trainshed.replica.observe import (
    disk,
    growing_files,
    masking,
    notes,
    reduction_reports,
    segments,
    stall,
)
from trainshed.replica.observe import segments as log
from trainshed.replica.supervisor import clients, guardian, journal, program, sidecars
from trainshed.replica.system import cgroups, durable, loop, processes, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

_KILL_SECONDS = 2.0
_DRAIN_SECONDS = 2.0
_MOST_WAITS_TOLD = 10
"""Of an incarnation: a disk may be full and not full for ever."""


class Shim:
    """The event loop around one program. Works in the slot's directory; one thread, no state on disk but the log."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        listeners: clients.Clients,
        claim: journal.Claim,
        ward: guardian.Ward,
    ) -> None:
        self._plan = plan
        self._clients = listeners
        self._claim = claim
        self._child = ward.guardian
        self._control = ward.control
        self._outputs = ((ward.output, "o"), (ward.errors, "e"))
        self._groups = cgroups.Groups(
            plan.memory_base, plan.cpu_base, plan.cgroup_name, plan.pids_base
        )
        self._beside: "sidecars.Beside | None" = None
        self._transcript: "segments.Transcript | None" = None
        self._loop = loop.Loop()
        self._room = growing_files.Room(self._loop, self._note_room)
        self._waits_told = 0
        self._notes = notes.Notes(claim.note, listeners.send, self._room)
        self._reception = clients.Reception(listeners, self._loop, self._obey, self._greet)
        self._inbox = b""
        self._failure = ""
        self._sandbox_failed = False
        self._may_run = False
        self.found_no_room = False
        """The disk was full before anything of the program ran, and nothing of it is going to."""
        self._status = -1
        self._started = 0
        self._ended = 0
        self._kill_at = 0.0
        self._force_at = 0.0
        self._stopped = False
        self._stalled = False
        self._out_of_disk = False
        self._is_over = False

    def run(self) -> "protocol.Message":
        """Everything from the guardian's orders to the sealed log; returns the attempt record."""
        try:
            self._begin()
            self._serve()
        except OSError as error:
            self.found_no_room = not self._may_run and growing_files.is_full(error)
            raise
        finally:
            self._end_children()
        if self._failure:
            return journal.lost_record(self._failure, by_service=self._sandbox_failed)
        return self._seal()

    def _begin(self) -> None:
        """What can be done while the guardian makes the sandbox; then say go."""
        plan = self._plan
        self._claim.describe(self._child, self._groups.directories())
        self._groups.create(plan.memory_limit, plan.cpu_weight, plan.pids_limit)
        program.install_python(protocol.FILES, plan.python_template)
        mask = masking.Mask(tuple(plan.masked)) if plan.masked else None
        script = self._transcript = segments.Transcript(
            plan.logs,
            mask,
            self._loop,
            tell=lambda lines: self._clients.send({"e": "lines", "n": lines}),
            room=self._room,
        )
        self._beside = sidecars.Beside(
            plan,
            self._groups,
            self._child,
            self._loop,
            over=lambda: self._status >= 0,
            say=script.say,
            tell=self._clients.send,
            notes=self._notes,
            disk_exceeded=self._end_for_disk,
            room=self._room,
            mask=mask,
        )
        # The last thing that takes room on the disk: what finds none before the program runs costs nothing.
        self._reception.open()
        self._claim.sync()
        self._may_run = True
        self._tell_guardian(b"go\n")
        # From here on beside the program: nobody waits for it.
        for handle, stream in self._outputs:
            script.open(handle, stream)
        self._loop.add(self._control.fileno(), self._hear_guardian)
        self._beside.memory.listen()

    def _serve(self) -> None:
        """The loop: until the program is over and both pipes are at their end."""
        assert self._transcript is not None
        drained_by = 0.0
        while self._transcript.is_open or self._status < 0:
            if self._failure:
                return
            now = time.monotonic()
            if self._status >= 0 and self._transcript.waits:
                drained_by = 0.0  # Both pipes are kept until there is room for what is in them.
            elif self._status >= 0:
                # Nobody of the replica lives; an end that stays open belongs to a process that got away.
                drained_by = drained_by or now + _DRAIN_SECONDS
                if now >= drained_by:
                    return
            self._loop.turn(self._pause(now))
            self._tick(time.monotonic())

    def _pause(self, now: float) -> "float | None":
        """Milliseconds until something is due without anybody calling."""
        assert self._transcript is not None
        due = self._transcript.due()
        due += [at for at in (self._kill_at, self._force_at) if at]
        if self._status >= 0 and not self._transcript.waits:
            due.append(now + 0.1)
        # Rounded up: a wait that ends too early would only turn round once more.
        return max(0, int((min(due) - now) * 1000) + 1) if due else None

    def _tick(self, now: float) -> None:
        assert self._transcript is not None
        self._transcript.tick(now)
        if self._kill_at and now >= self._kill_at:
            self._kill_at, self._force_at = 0.0, now + _KILL_SECONDS
            self._tell_guardian(b"kill\n")
        if self._force_at and now >= self._force_at:
            self._force_at = 0.0
            if self._status < 0:
                # It does not listen; its program dies with it.
                os.kill(self._child, signal.SIGKILL)

    def _tell_guardian(self, text: bytes) -> None:
        try:
            self._control.sendall(text)
        except OSError:
            return  # It has ended; what it said last is still to be read.

    def _hear_guardian(self) -> None:
        try:
            data, handles = unix_sockets.receive_some(self._control)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, handles = b"", []  # It was killed before it had read what we said.
        assert self._beside is not None and self._transcript is not None
        script = self._transcript
        for handle in handles:
            self._beside.take_calls(handle)
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "started":
                self._started = int(rest)
                self._clients.greet({"e": "started", "at": self._started})
                script.program_started()
                self._beside.program_started(
                    self._started,
                    output=lambda: script.read,
                    waits=lambda: script.waits,
                    stalled=self._end_stalled,
                )
            elif word == "ended":
                status, at = rest.split()
                self._status, self._ended = int(status), int(at)
            elif word in ("failed", "full"):
                self._failure, self._sandbox_failed = rest, True
                self.found_no_room = word == "full"
        if not data:
            self._loop.drop(self._control.fileno())
            if self._status < 0 and self._started:
                # The guardian was killed, and the kernel killed the program with it.
                self._status, self._ended = signal.SIGKILL, log.now()
            elif self._status < 0 and not self._failure:
                self._failure = "the replica's guardian was killed before its program ran"

    def _end_stalled(self) -> None:
        if self._stopped:
            return  # One that is being stopped has a time limit of its own.
        self._stalled = True
        assert self._transcript is not None
        say = self._transcript.say
        say(
            "No output, no processor time and no data moved for %g seconds: the stall watchdog ends this replica."
            % self._plan.stall_after
        )
        stall.Dump(self._child, self._loop, say, lambda: self._tell_guardian(b"kill\n"))

    def _end_for_disk(self) -> None:
        if not self._stopped:
            self._out_of_disk = True
            self._tell_guardian(b"kill\n")

    def _greet(self) -> None:
        """Somebody has connected, and does not know how many lines there are, nor whether there are metrics."""
        if self._transcript is not None:
            self._transcript.tell_again()
        if self._beside is not None:
            self._beside.tell_again()

    def _obey(self, connection: socket.socket, order: "protocol.Message") -> None:
        word = order.get("o")
        if word == "stop":
            self._stop(order["grace"])
        elif word == "ping":
            self._clients.answer(connection, {"e": "pong", "n": order["n"]})
        elif word == "fault":
            self._inject(order["kind"])
        elif word == "write":
            self._write(connection, order["lines"])
        elif word == "shell":
            self._open_shell(connection, order)

    def _stop(self, grace: int) -> None:
        if self._status < 0:
            self._hear_guardian()  # It may have ended just before.
        self._stopped = self._stopped or self._status < 0
        self._tell_guardian(b"stop\n")
        self._kill_at = min(self._kill_at or float("inf"), time.monotonic() + grace / 1e9)

    def _write(self, connection: socket.socket, lines: "list[str]") -> None:
        assert self._transcript is not None
        if self._transcript.waits or self._is_over:
            cause = "the disk that its log is written to is full; make room and try again"
            self._clients.answer(connection, {"e": "refused", "cause": cause})
            return
        self._transcript.take(lines)
        self._clients.answer(connection, {"e": "written", "n": len(lines)})

    def _open_shell(self, connection: socket.socket, order: "protocol.Message") -> None:
        """The guardian does it, and answers on the connection, which is its own from here on."""
        cause = "its program has not begun yet"
        if self._started and self._status < 0:
            try:
                text = b"shell " + protocol.encode(order)
                unix_sockets.send(self._control, text, connection.fileno())
            except OSError:
                cause = "its program has ended"
            else:
                self._reception.hand_on(connection)
                return
        self._clients.answer(connection, {"e": "refused", "cause": cause})

    def _inject(self, kind: str) -> None:
        """Do what a drill asks for; nothing once the program is over."""
        if self._status >= 0:
            return
        if kind == protocol.FAULT_OOM and self._beside is not None:
            # A limit set below what is in use would kill whom the kernel likes: this kills the right one.
            self._beside.memory.drill()
        self._tell_guardian(b"segv\n" if kind == protocol.FAULT_SEGV else b"kill\n")

    def _end_children(self) -> None:
        """Leave no process: the guardian has ended by itself unless something went wrong."""
        if self._status < 0:
            os.kill(self._child, signal.SIGKILL)
        self._control.close()
        if self._beside is not None:
            self._beside.program_ends()
        _, _, used = os.wait4(self._child, 0)
        if self._plan.level == protocol.LEVEL_SESSION:
            # A guardian that was killed could not clear up; its orphans came to us.
            processes.end_descendants()
        if self._beside is not None:
            self._beside.program_ended(used)
        cgroups.remove(self._groups.directories())
        # What was there for the program is done; who asks how it stands still gets an answer.
        self._loop.clear()
        self._is_over = True
        self._reception.listen_again()
        self._room.resume()

    def _seal(self) -> "protocol.Message":
        """Metrics and log first, then the record, then the report (DESIGN §4, order at an exit)."""
        assert self._transcript is not None and self._beside is not None
        self._transcript.end()
        self._beside.seal(succeeded=self._status == 0)
        self.insist(self._transcript.save)
        self.insist(self._beside.save)
        self._beside.close()
        lines, tail = self._transcript.seal()
        killed_by = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else None
        code = None if killed_by is not None else os.WEXITSTATUS(self._status)
        oom, child_oom = self._beside.memory.verdict(killed_by)
        return journal.ended_record(
            exit_code=code,
            signal=killed_by,
            oom=oom,
            started=self._started,
            ended=self._ended,
            log_lines=lines,
            tail=tail,
            child_oom=child_oom,
            stopped=self._stopped,
            stalled=self._stalled,
            out_of_disk=self._out_of_disk and killed_by == signal.SIGKILL,
        )

    def insist(self, write: "Callable[[], bool]") -> None:
        """Call `write` until it says that it is done: on a full disk that may take as long as it is full. Who asks
        meanwhile how the replica is hears that it lives. Raises what `write` raises."""
        if not write():
            self._room.wait(write)
            while self._room.is_awaited:
                self._loop.turn(None)

    def _note_room(self, is_short: bool) -> None:
        """Something begins to wait for room on the disk, or nothing does any more."""
        if is_short:
            self._waits_told += 1
        if self._waits_told > _MOST_WAITS_TOLD:
            return
        if is_short:
            self._notes.add(disk.LOG_WAITS, reduction_reports.WARNING, disk.LOG_WAITS_TEXT)
        else:
            self._notes.add(disk.LOG_GOES_ON, reduction_reports.INFO, disk.LOG_GOES_ON_TEXT)


_NO_SPACE_PAUSE = 0.5
_NO_SPACE_PATIENCE = 15.0
"""Seconds for a broken disk to take an attempt record, and for a full one where the shim cannot answer meanwhile: less
than a service's lease."""


def main(order: bytes, connection: socket.socket, ward: "guardian.Ward | None") -> None:
    """Run one incarnation, reporting to `connection` and to whoever connects later.

    `order`: JSON, {"slot": its directory, "plan": a `LaunchDocument`}. `ward`: a guardian that waits already.
    """
    message = json.loads(order.decode("utf-8"))
    os.chdir(message["slot"])
    plan = protocol.LaunchDocument(**message["plan"])
    listeners = clients.Clients(connection)
    try:
        handle = journal.claim(plan.incarnation)
    except (journal.Refused, OSError) as refusal:
        listeners.send(_refusal(refusal))
        if ward is not None:
            ward.give_up()
        return
    keeper: "Shim | None" = None
    waits: "Shim | None"
    try:
        ward = ward or guardian.Ward(plan.level)
        ward.tell(order, handle.lock)
        # Whoever clears the cache leaves what a live program runs in alone. What was cleared away just before, the guardian
        # does not find, and says so.
        program.hold([*plan.read_only, *([plan.image] if plan.image else [])])
        keeper = Shim(plan, listeners, handle, ward)
        record, waits = keeper.run(), keeper
    except Exception as error:  # Whatever it is, the replica is over and that is recorded.
        if keeper is None or not keeper.found_no_room:
            _keep_trace()
        record = journal.lost_record(_cause(error), by_service=True)
        waits = None
    if keeper is not None and keeper.found_no_room and _is_undone(handle):
        handle.release()
        listeners.send({"e": "refused", "cause": protocol.REFUSED_FULL})
        return
    _write_down(handle, record, waits)
    handle.release()
    listeners.send(
        {"e": "lost", "cause": record["lost"], "by_service": record["by_service"]}
        if "lost" in record
        else {"e": "exited", "record": record}
    )


def _refusal(error: "journal.Refused | OSError") -> "protocol.Message":
    """What to say where the slot could not be taken: nothing ran."""
    if isinstance(error, journal.Refused):
        return {"e": "refused", "cause": error.cause}
    if growing_files.is_full(error):
        return {"e": "refused", "cause": protocol.REFUSED_FULL}
    return {"e": "lost", "cause": _cause(error), "by_service": True}


def _is_undone(handle: journal.Claim) -> bool:
    """Take back that the incarnation starts; false: that is not to be had, so it has to end."""
    try:
        handle.undo()
    except OSError:
        return False
    return True


def _cause(error: Exception) -> str:
    """In words, why this process could not do its part."""
    if isinstance(error, OSError) and growing_files.is_full(error):
        return (
            "the disk is full (%s): the replica's log or its records cannot be written; make room"
            % (error.strerror)
        )
    return "%s: %s" % (type(error).__name__, error)


def _keep_trace() -> None:
    import traceback  # Only here: every module imported before makes every fork dearer.

    try:
        durable.write("shim.err", traceback.format_exc(), sync=False)
    except OSError:
        return  # A full disk: what happened is in the record in short.


def _write_down(handle: journal.Claim, record: "protocol.Message", keeper: "Shim | None") -> None:
    """Make the record durable. On a full disk `keeper` waits for room however long that takes, and answers who asks; a
    disk that is broken, or where there is no keeper, is waited for a while."""
    deadline = time.monotonic() + _NO_SPACE_PATIENCE
    while True:
        try:
            if keeper is not None:
                keeper.insist(lambda: _fits(handle, record))
            else:
                handle.finish(record)
            return
        except OSError:
            if time.monotonic() > deadline:
                return  # Whoever listens hears it all the same; who comes later finds that we were lost.
        time.sleep(_NO_SPACE_PAUSE)


def _fits(handle: journal.Claim, record: "protocol.Message") -> bool:
    """Write the record down, if there is room for it. Raises OSError: it is no matter of room."""
    try:
        handle.finish(record)
    except OSError as error:
        if not growing_files.is_full(error):
            raise
        return False
    return True
