"""One replica's keeper: starts its program, writes its log, records how it ended, tells whoever listens.

One process per replica, which outlives the service; its program dies with it. What it knows that matters is in
the slot's files (`protocol`) before it is told to anybody. Runs on Python 3.6.
"""

import json
import os
import signal
import socket
import time

from trainshed.replica import (
    birth,
    cgroups,
    clients,
    durable,
    fence,
    guardian,
    loop,
    program,
    protocol,
    relay,
)
from trainshed.replica import segments as log

_LINES_EVERY = 0.02
_SYNC_EVERY = 1.0
_DRAIN_SECONDS = 2.0
_OOM_SETTLES = 0.05


def main(order: bytes, connection: socket.socket, ward: "birth.Ward | None") -> None:
    """Run one incarnation, reporting to `connection` and to whoever connects later.

    `order`: JSON, {"slot": its directory, "plan": a `LaunchDocument`}. `ward`: a guardian that waits already.
    """
    message = json.loads(order.decode("utf-8"))
    os.chdir(message["slot"])
    plan = protocol.LaunchDocument(**message["plan"])
    listeners = clients.Clients(connection)
    try:
        handle = fence.claim(plan.incarnation)
    except fence.Refused as refusal:
        listeners.send({"e": "refused", "cause": refusal.cause})
        if ward is not None:
            ward.give_up()
        return
    try:
        ward = ward or birth.Ward(plan.level)
        ward.tell(order, handle.lock)
        record = Shim(plan, listeners, handle, ward).run()
    except Exception as error:  # Whatever it is, the replica is over and that is recorded.
        import traceback  # Only here: every module imported before makes every fork dearer.

        durable.write("shim.err", traceback.format_exc(), sync=False)
        record = protocol.lost("%s: %s" % (type(error).__name__, error), by_service=True)
    handle.finish(record)
    handle.release()
    listeners.send(
        {"e": "lost", "cause": record["lost"], "by_service": record["by_service"]}
        if "lost" in record
        else {"e": "exited", "record": record}
    )


class Shim:
    """The event loop around one program. Works in the slot's directory; one thread, no state on disk but the log."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        listeners: clients.Clients,
        claim: fence.Claim,
        ward: birth.Ward,
    ) -> None:
        self._plan = plan
        self._clients = listeners
        self._claim = claim
        self._child = ward.guardian
        self._control = ward.control
        self._outputs = ((ward.output, "o"), (ward.errors, "e"))
        self._groups = cgroups.Groups(plan.memory_base, plan.cpu_base, plan.cgroup_name)
        self._log: "log.Segments | None" = None
        self._loop = loop.Loop()
        self._streams: "dict[int, log.Stream]" = {}
        self._inbox = b""
        self._failure = ""
        self._sandbox_failed = False
        self._status = -1
        self._started = 0
        self._ended = 0
        self._kill_at = 0.0
        self._told = 0
        self._tell_at = 0.0
        self._heard_program = False
        self._sync_at = 0.0
        self._storage: "relay.Endpoint | None" = None
        self._listener: "socket.socket | None" = None
        self._oom_watch = -1
        self._oom_look_at = 0.0
        self._oom_kills = 0
        self._survived_oom_kills = 0

    def run(self) -> "protocol.Message":
        """Everything from the guardian's orders to the sealed log; returns the attempt record."""
        try:
            self._begin()
            self._serve()
        finally:
            self._end_children()
        if self._failure:
            return protocol.lost(self._failure, by_service=self._sandbox_failed)
        return self._seal()

    def _begin(self) -> None:
        """What can be done while the guardian makes the sandbox; then say go."""
        plan = self._plan
        self._claim.describe(self._child, self._groups.directories())
        self._groups.create(plan.memory_limit, plan.cpu_weight)
        self._oom_watch = self._groups.watch() if plan.memory_limit else -1
        if plan.storage_socket:
            self._storage = relay.Endpoint(
                plan.address, plan.storage_port, plan.storage_socket, self._loop
            )
        program.install_python(protocol.FILES, plan.python_template)
        writer = self._log = log.Segments(plan.logs)
        if plan.banner:
            writer.write("b", list(plan.banner))
        # What the banner says can wait a moment for the program's first line, which is told at once.
        self._tell_at = time.monotonic() + _LINES_EVERY
        self._claim.sync()
        self._tell_guardian(b"go\n")
        # From here on beside the program: nobody waits for it.
        listener = self._listener = clients.listen()
        for handle, stream in self._outputs:
            os.set_blocking(handle, False)
            self._streams[handle] = log.Stream(writer, stream)
            self._loop.add(handle, lambda handle=handle: self._read(handle))
        self._loop.add(self._control.fileno(), self._hear_guardian)
        self._loop.add(listener.fileno(), self._accept)
        if self._oom_watch >= 0:
            self._loop.add(self._oom_watch, self._memory_ran_out, loop.READABLE | loop.URGENT)
        for connection in self._clients.sockets():
            self._loop.add(
                connection.fileno(), lambda connection=connection: self._hear_client(connection)
            )

    def _serve(self) -> None:
        """The loop: until the program is over and both pipes are at their end."""
        drained_by = 0.0
        while self._streams or self._status < 0:
            if self._failure:
                return
            now = time.monotonic()
            if self._status >= 0:
                # Nobody of the replica lives; an end that stays open belongs to a process that got away.
                drained_by = drained_by or now + _DRAIN_SECONDS
                if now >= drained_by:
                    return
            self._loop.turn(self._pause(now))
            self._tick(time.monotonic())

    def _pause(self, now: float) -> "float | None":
        """Milliseconds until something is due without anybody calling."""
        due: "list[float]" = []
        assert self._log is not None
        if self._started and self._log.lines != self._told:
            due.append(self._tell_at)
        if self._log.unsynced:
            due.append(self._sync_at)
        due += [at for at in (self._kill_at, self._oom_look_at) if at]
        if self._status >= 0:
            due.append(now + 0.1)
        # Rounded up: a wait that ends too early would only turn round once more.
        return max(0, int((min(due) - now) * 1000) + 1) if due else None

    def _tick(self, now: float) -> None:
        assert self._log is not None
        if self._started and self._log.lines != self._told and now >= self._tell_at:
            self._tell_at = now + _LINES_EVERY
            self._told = self._log.lines
            self._clients.send({"e": "lines", "n": self._told})
        if self._log.unsynced:
            if not self._sync_at:
                self._sync_at = now + _SYNC_EVERY
            elif now >= self._sync_at:
                self._log.sync()
                self._sync_at = 0.0
        if self._oom_look_at and now >= self._oom_look_at:
            self._oom_look_at = 0.0
            if self._status < 0:
                self._survived_oom_kills = self._groups.oom_kills()
        if self._kill_at and now >= self._kill_at:
            self._kill_at = 0.0
            self._tell_guardian(b"kill\n")

    def _read(self, handle: int) -> None:
        """Write what a pipe holds, as lines, to the log."""
        try:
            data = os.read(handle, log.LINE_BYTES)
        except BlockingIOError:
            return
        if data:
            self._streams[handle].feed(data)
            if not self._heard_program:
                self._heard_program = True
                self._tell_at = 0.0
            return
        self._streams.pop(handle).close()
        self._loop.drop(handle)
        os.close(handle)

    def _tell_guardian(self, text: bytes) -> None:
        try:
            self._control.sendall(text)
        except OSError:
            return  # It has ended; what it said last is still to be read.

    def _hear_guardian(self) -> None:
        try:
            data = self._control.recv(4096)
        except ConnectionResetError:
            data = b""  # It was killed before it had read what we said.
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "started":
                self._started = int(rest)
                self._clients.greet({"e": "started", "at": self._started})
            elif word == "ended":
                status, at = rest.split()
                self._status, self._ended = int(status), int(at)
            elif word == "failed":
                self._failure, self._sandbox_failed = rest, True
        if not data:
            self._loop.drop(self._control.fileno())
            if self._status < 0 and self._started:
                # The guardian was killed, and the kernel killed the program with it.
                self._status, self._ended = signal.SIGKILL, log.now()
            elif self._status < 0 and not self._failure:
                self._failure = "the replica's guardian was killed before its program ran"

    def _memory_ran_out(self) -> None:
        """The limit was hit: see in a moment whether the main process survived it."""
        self._groups.clear_watch(self._oom_watch)
        self._oom_look_at = time.monotonic() + _OOM_SETTLES

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection = self._listener.accept()[0]
        except OSError:
            return  # The caller went away again.
        self._clients.add(connection)
        self._told = -1
        self._loop.add(connection.fileno(), lambda: self._hear_client(connection))

    def _hear_client(self, connection: socket.socket) -> None:
        handle = connection.fileno()
        orders = self._clients.receive(connection)
        if orders is None:
            self._loop.drop(handle)
            self._clients.remove(connection)
            return
        for order in orders:
            if order.get("o") == "stop":
                self._tell_guardian(b"stop\n")
                self._kill_at = min(
                    self._kill_at or float("inf"), time.monotonic() + order["grace"] / 1e9
                )

    def _end_children(self) -> None:
        """Leave no process: the guardian has ended by itself unless something went wrong."""
        if self._status < 0:
            os.kill(self._child, signal.SIGKILL)
        self._control.close()
        if self._storage is not None:
            # First: the first process of a namespace cannot end before all others in it are reaped,
            # and the relay, forked after the namespace was made, is in it and is ours to reap.
            self._storage.stop()
        os.waitpid(self._child, 0)
        if self._plan.level == protocol.LEVEL_SESSION:
            # A guardian that was killed could not clear up; its orphans came to us.
            guardian.end_descendants()
        self._oom_kills = self._groups.oom_kills()
        cgroups.remove(self._groups.directories())
        if self._listener is not None:
            self._listener.close()

    def _seal(self) -> "protocol.Message":
        """Log first, then the record, then the report (DESIGN §4, order at an exit)."""
        assert self._log is not None
        for stream in self._streams.values():
            stream.close()
        lines, tail = self._log.seal()
        if lines != self._told:
            self._clients.send({"e": "lines", "n": lines})
        killed_by = os.WTERMSIG(self._status) if os.WIFSIGNALED(self._status) else None
        code = None if killed_by is not None else os.WEXITSTATUS(self._status)
        oom = killed_by == signal.SIGKILL and self._oom_kills > self._survived_oom_kills
        return protocol.ended(
            exit_code=code,
            signal=killed_by,
            oom=oom,
            started=self._started,
            ended=self._ended,
            log_lines=lines,
            tail=tail,
            child_oom=self._oom_kills - oom,
        )
