"""Runs a sandbox without a program: one shell over the files that a failed replica left, in the view that its
program had.

The zygote forks one process for each such shell. It keeps no record, because the replica has its own already.
If the caller disconnects, the shell is hung up, and everything here ends with it.
"""

import json
import os
import signal
import socket

from trainshed.replica import protocol
from trainshed.replica.supervisor import memory_limit, start
from trainshed.replica.system import cgroups, loop, processes, unix_sockets


def main(order: bytes, connection: socket.socket) -> None:
    """Carry out an order, which the guardian gets as well: JSON, {"autopsy": true, "slot": the directory with
    the files, "plan": a `LaunchDocument` without a program, "shell": an order for a shell}. Answers on
    `connection` as the shim of a live replica does (`shells`). Returns when the shell is over."""
    slot, plan = start.ordered(order)
    os.chdir(slot)
    sandbox = Sandbox(plan, json.loads(order.decode("utf-8"))["shell"], connection)
    try:
        sandbox.run(order)
    except OSError as error:
        sandbox.refuse("its view cannot be made: %s" % error)


class Sandbox:
    """Makes the view, has the guardian open the shell, and cleans up after both."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        shell: protocol.Message,
        connection: socket.socket,
    ) -> None:
        self._plan = plan
        self._shell = shell
        self._connection: socket.socket | None = connection
        self._groups = cgroups.ControlGroups(plan.limits)
        self._loop = loop.Loop()
        self._inbox = b""
        self._ended = False

    def refuse(self, cause: str) -> None:
        """Send the reason why there is no shell, unless the connection was handed to the guardian."""
        if self._connection is not None:
            try:
                self._connection.sendall(protocol.encode({"e": "refused", "cause": cause}))
            except OSError:
                return  # The peer is gone.

    def run(self, order: bytes) -> None:
        """Serve the shell until it is over. Raises OSError."""
        plan = self._plan
        child = start.GuardianHandle(plan.isolation.level)
        watched: memory_limit.MemoryLimit | None = None
        try:
            self._groups.create()
            watched = memory_limit.MemoryLimit(
                groups=self._groups,
                limit=plan.limits.memory_limit,
                polled=plan.limits.memory_polling,
                guardian=child.process,
                events=self._loop,
                has_ended=lambda: self._ended,
            )
            child.announce(order)
            with open(os.devnull) as no_lock:
                child.grant(no_lock.fileno())
            child.control.sendall(b"go\n")
            self._loop.add(child.control.fileno(), lambda: self._hear(child.control))
            watched.listen()
            watched.program_started()
            while not self._ended:
                self._loop.turn(None)
        finally:
            os.kill(child.process, signal.SIGKILL)
            os.waitpid(child.process, 0)
            if plan.isolation.level == protocol.LEVEL_SESSION:
                processes.end_descendants()
            if watched is not None:
                watched.close()
            cgroups.remove(self._groups.directories())

    def _hear(self, control: socket.socket) -> None:
        try:
            data = control.recv(4096)
        except ConnectionResetError:
            data = b""
        self._inbox += data
        *lines, self._inbox = self._inbox.split(b"\n")
        for line in lines:
            word, _, rest = line.decode("utf-8", "replace").partition(" ")
            if word == "started" and self._connection is not None:
                text = b"shell " + protocol.encode(self._shell)
                unix_sockets.send(control, text, self._connection.fileno())
                self._connection.close()
                self._connection = None
            elif word in ("failed", "full"):
                self.refuse("its view cannot be made: %s" % rest)
                self._ended = True
        if not data:
            self._ended = True
