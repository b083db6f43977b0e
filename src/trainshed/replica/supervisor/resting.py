"""Stands in for a guardian at rest, on its shim's side: does from outside what a guardian does for a running
program.

A guardian at rest is a `reaper`, which only reports who has died. The shim sends the signals then. A shell is
opened by a fork of the shim that joins the replica's namespaces as a child of the reaper, so that it is one
of the replica's processes. Runs on Python 3.6.
"""

import json
import os
import select
import socket

from trainshed.replica import protocol
from trainshed.replica.observe import stall
from trainshed.replica.sandbox import levels, socket_calls
from trainshed.replica.supervisor import program, shells
from trainshed.replica.system import cgroups, kernel, loop, processes, reaper, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable


def offer(number: int, main: program.Program) -> bytes:
    """Return what a guardian sends when it can come to rest: the number of its main process in its namespace,
    and what only the guardian knows of the program. With it travel the read end of the reports and a handle
    of that process."""
    told = {
        "main": number,
        "user": main.user,
        "home": main.environ.get("HOME"),
        "directory": main.directory,
    }
    return json.dumps(told).encode("utf-8")


class RestingGuardian:
    """A guardian that has offered to come to rest. Until it does so, it may still speak over its own
    socket."""

    def __init__(
        self,
        plan: protocol.LaunchDocument,
        process: int,
        told: str,
        handles: "list[int]",
        *,
        events: loop.Loop,
        take_calls: "Callable[[int], None]",
    ) -> None:
        """`process`: the guardian's process id. `told` and `handles`: as of `offer`; the handles are owned by
        this object from here on. `take_calls`: called with a handle on which a shell's socket calls are asked
        about."""
        self._plan = plan
        self._process = process
        self._told: "protocol.Message" = json.loads(told)
        #: Where the reaper reports deaths; readable when there is something to `hear`.
        self.reports, self._main = handles
        self._events = events
        self._take_calls = take_calls
        self._received = b""
        #: Connection to each process that serves a shell, while that lives.
        self._hosts: "list[socket.socket]" = []

    def hear(self) -> "int | None":
        """Read the reports that have come; return the wait status of the main process, None = it has not
        ended. Raises EOFError if the reaper is gone."""
        data = os.read(self.reports, 4096)
        if not data:
            raise EOFError
        self._received += data
        whole = len(self._received) - len(self._received) % reaper.REPORT.size
        reports, self._received = self._received[:whole], self._received[whole:]
        for process, status in reaper.REPORT.iter_unpack(reports):
            if process == self._told["main"]:
                return int(status)
        return None

    def obey(self, order: bytes) -> None:
        """Carry out `stop`, `kill` or `segv` as the guardian would."""
        main = self._number()
        if main:  # Otherwise its end is about to be reported.
            program.obey(order, main)

    def _number(self) -> int:
        """Return the main process's number in our namespace; 0 = it is gone, and its number may be
        another's."""
        for line in processes.read("/proc/self/fdinfo/%d" % self._main).splitlines():
            if line.startswith(b"Pid:"):
                return max(0, int(line.split()[1]))
        return 0

    def open_shell(self, order: "protocol.Message", connection: socket.socket) -> None:
        """Open a shell, answered on the connection, of which the shell has a copy. Raises OSError with the
        reason if none can be opened."""
        if len(self._hosts) >= shells.MOST:
            raise OSError(shells.TOO_MANY)
        ours, theirs = socket.socketpair()
        try:
            child = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            raise OSError(shells.NO_PROCESS % error) from None
        if child == 0:
            try:
                kernel.forbid_inspection()
                kept = {0, 1, 2, connection.fileno(), theirs.fileno()}
                kernel.close_all(each for each in kernel.open_handles() if each not in kept)
                # Its parent ends at once, so that it becomes the reaper's child.
                if os.fork() == 0:
                    _Host(self._plan, self._told, theirs).serve(order, connection, self._process)
            finally:
                os._exit(0)
        theirs.close()
        os.waitpid(child, 0)
        self._hosts.append(ours)
        self._events.add(ours.fileno(), lambda: self._hear_host(ours))

    def _hear_host(self, host: socket.socket) -> None:
        try:
            data, handles = unix_sockets.receive_some(host)
        except BlockingIOError:
            return
        except OSError:
            data, handles = b"", []
        for handle in handles:
            self._take_calls(handle)
        if not data:
            self._events.drop(host.fileno())
            self._hosts.remove(host)
            host.close()


class _Host:
    """A process among the replica's own that serves one shell. It lives as long as the shell, and so does its
    end of `shim`."""

    def __init__(
        self, plan: protocol.LaunchDocument, told: "protocol.Message", shim: socket.socket
    ) -> None:
        environ = plan.program.environ
        if told["home"] is not None:
            environ.setdefault("HOME", told["home"])
        stall.arrange(plan)
        self._plan = plan
        self._shim = shim
        self._groups = cgroups.ControlGroups(plan.limits)
        self._main = program.Program(
            argv=[],
            environ=environ,
            directory=told["directory"],
            output=-1,
            errors=-1,
            groups=self._groups,
        )
        if told["user"] is not None:
            self._main.run_as(*told["user"])

    def serve(
        self, order: "protocol.Message", connection: socket.socket, reaper_process: int
    ) -> None:
        kernel.name_process("ts-guardian")
        try:
            self._join(reaper_process)
        except OSError as error:
            shells.refuse(connection, "its view cannot be entered: %s" % error)
            return
        poll = select.poll()
        wake, children = kernel.child_signals()
        running = shells.Shells(self._main, poll, lambda: self._leave([wake, children]))
        running.open(json.dumps(order).encode("utf-8"), connection.detach())
        running.attend(children)

    def _join(self, process: int) -> None:
        """Enter the program's namespaces and control groups, and give up the same rights. Raises OSError."""
        limits, level = self._plan.limits, self._plan.isolation.level
        self._groups.keep_bases()
        kernel.leave_keyring()
        owners = levels.join(process)
        socket_calls.be_asked(self._shim, self._plan.network)
        self._groups.hold()
        levels.drop_as(level, owners)
        if limits.pids_limit and not limits.pids_base:
            program.limit_processes(limits.pids_limit)

    def _leave(self, handles: "list[int]") -> None:
        """Close, in the child that is to be the shell, what only its host needs."""
        self._shim.close()
        kernel.close_all(handles)
