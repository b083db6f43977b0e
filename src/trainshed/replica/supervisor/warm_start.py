"""Does the guardian's part of a warm start: asks a preloader to fork the program into the replica.

`trainshed.replica.preloader` describes the messages. If anything goes wrong, the program is started in its
own interpreter, and the reason is reported.
"""

import errno
import json
import os
import resource
import signal
import socket
from typing import Any

from trainshed.replica import protocol
from trainshed.replica.sandbox import users as sandbox_users
from trainshed.replica.supervisor import program
from trainshed.replica.system import kernel, processes, unix_sockets

_PATIENCE = 1.5
"""Seconds to wait for each of a preloader's answers. An answer takes milliseconds; in more than this the
program would have started in its own interpreter."""

WARM, COLD = "warm", "cold"
"""How a program began, in the guardian's messages to its shim."""


def note(word: str, text: str) -> tuple[str, str]:
    """Return name and text of the note that says how a program began. `text`: what is imported, or why it is
    not, as a clause."""
    told = "started warm: %s imported" if word == WARM else "started cold: %s"
    return "started_" + word, told % text


class NotWarm(Exception):
    """The program is to be started in its own interpreter. The message says why, as a clause."""


class Fork:
    """The guardian's side of a fork of a preloader, which enters this process's process namespace, becomes
    its child and waits there for the program that it is to be."""

    __slots__ = ("_connection", "_handles", "_process", "_received", "preloader")

    def __init__(self, preloader: str, level: str) -> None:
        """Ask for the fork without waiting. Never raises: if something went wrong, the next use of the fork
        finds that it has ended."""
        self.preloader = preloader
        self._process = 0
        self._received = b""
        self._handles: list[int] = []
        self._connection = unix_sockets.connected(preloader)
        if self._connection is None:
            return
        self._connection.settimeout(_PATIENCE)
        names = ["user"] * (level == protocol.LEVEL_USER) + ["pid"]
        try:
            self.send_with_namespaces({}, names, [])
        except (NotWarm, OSError):
            self.close()

    @property
    def is_there(self) -> bool:
        """Whether the fork was asked for and has not ended since, as far as is known without waiting."""
        if self._connection is None:
            return False
        self._connection.settimeout(0)
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            self._connection.settimeout(_PATIENCE)

    def process(self) -> int:
        """Return its process id, once it waits. Raises NotWarm."""
        if not self._process:
            self._process = int(self.expect("waiting "))
        return self._process

    def end(self) -> None:
        """Kill the fork, which is not needed, and return when it is gone."""
        try:
            if self._process or self.is_there:
                process = self.process()
                processes.send(process, signal.SIGKILL)
                os.waitpid(process, 0)
        except (NotWarm, ChildProcessError):
            pass  # It ends by itself when it finds its connection closed.
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def send_with_namespaces(
        self, message: dict[str, Any], names: list[str], handles: list[int]
    ) -> None:
        """Send a message as `send` does; first the fork is to enter these namespaces of this process."""
        places = [os.open("/proc/self/ns/" + name, os.O_RDONLY | os.O_CLOEXEC) for name in names]
        try:
            self.send(dict(message, namespaces=names), places + handles)
        finally:
            kernel.close_all(places)

    def send(self, message: dict[str, Any], handles: list[int]) -> None:
        """Send the fork a message with handles. Raises NotWarm."""
        text = json.dumps(message).encode("utf-8") + b"\n"
        try:
            if self._connection is None:
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            unix_sockets.send_with(self._connection, text, handles)
        except OSError as error:
            raise NotWarm("the preloader ended (%s)" % error) from None

    def expect(self, start: str) -> str:
        """Wait for a line that starts with `start`; return the rest of it. Raises NotWarm if another line
        comes, or none."""
        line = self._next_line()
        if not line.startswith(start):
            raise NotWarm("the preloader said %r" % line[:100])
        return line[len(start) :]

    def _next_line(self) -> str:
        """Return the next line without its end. Raises NotWarm."""
        while b"\n" not in self._received:
            try:
                self._receive()
            except NotWarm:
                self.close()
                raise
        received, _, self._received = self._received.partition(b"\n")
        line = received.decode("utf-8", "replace")
        if line.startswith("cold "):
            raise NotWarm(line[len("cold ") :])
        return line

    def handle(self) -> int:
        """Return the oldest file handle that was received and not taken yet; -1 = there is none. Which line
        it came with is not known, because several lines may have been read at once."""
        return self._handles.pop(0) if self._handles else -1

    def _receive(self) -> None:
        try:
            if self._connection is None:
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
            more, handles = unix_sockets.receive_beside(self._connection)
        except socket.timeout:
            raise NotWarm("the preloader did not answer for %g s" % _PATIENCE) from None
        except OSError as error:
            raise NotWarm("the preloader ended (%s)" % error) from None
        if not more:
            raise NotWarm("the preloader ended")
        self._received += more
        self._handles += handles


def fork_for(plan: protocol.LaunchDocument) -> Fork | None:
    """Return a fork that is to be this program; None: the program starts in its own interpreter, because no
    preloader is named, or the replica has no namespaces."""
    level = plan.isolation.level
    if not plan.warm.preloader or level == protocol.LEVEL_SESSION:
        return None
    return Fork(plan.warm.preloader, level)


class WarmStart:
    """The warm start of one program. Make it before anything of the machine is hidden, call `prepare` when
    the view is made, then `run`."""

    def __init__(self, warm: protocol.WarmStart, fork: Fork) -> None:
        self._warm = warm
        self._fork = fork
        self._python = ""
        #: Why the program is to start in its own interpreter, as a clause; "" = it is not.
        self.cold_because = ""
        if not fork.is_there:
            self.cold_because = "its preloader has ended; the next one is made for programs to come"

    @property
    def preloaded(self) -> str:
        """What the program finds imported, as a text for people."""
        return self._warm.preloaded

    def prepare(
        self,
        main: program.Program,
        level: str,
        users: sandbox_users.Users | None,
        filtered: bool | None,
    ) -> int:
        """Have the fork of the preloader enter this process's namespaces and wait there.

        `users`: the program's own, None = it has none. `filtered`: whether calls of connect are asked about
        besides those of bind, None = no call is. Returns the handle on which the program's calls are asked
        about, -1 = none are.
        """
        if self.cold_because:
            return -1
        try:
            owners = users.handle if users is not None else -1
            return self._prepare(main, level, owners, filtered)
        except NotWarm as why:
            self._give_up(str(why))
            return -1

    def run(self, main: program.Program, groups: list[int]) -> int:
        """Have the fork become the program. `groups`: handles by which it joins its control groups. Returns
        its process id; 0 = it is to be started in its own interpreter."""
        if self.cold_because:
            return 0
        try:
            self._run(main, groups)
            process = self._fork.process()
        except NotWarm as why:
            self._give_up(str(why))
            return 0
        self._fork.close()
        return process

    def _give_up(self, why: str) -> None:
        self.cold_because = why
        self._fork.end()

    def _prepare(
        self, main: program.Program, level: str, owners: int, filtered: bool | None
    ) -> int:
        self._python = _python(main, self._warm.template)
        message = {
            "level": level,
            "owners": owners >= 0,
            "filter": filtered is not None,
            "connect": bool(filtered),
            "processors": sorted(os.sched_getaffinity(0)),
        }
        handles = [owners] * (owners >= 0) + [main.output, main.errors]
        self._fork.send_with_namespaces(message, ["mnt", "uts", "ipc"], handles)
        self._fork.process()
        self._fork.expect("ready")
        return self._fork.handle()

    def _run(self, main: program.Program, groups: list[int]) -> None:
        limits = [(number, resource.getrlimit(number)) for number in _limits()]
        message = {
            "argv": main.argv,
            "environ": main.environ,
            "directory": main.directory,
            "python": self._python,
            "template": self._warm.template,
            "limits": limits,
        }
        self._fork.send(message, groups)
        self._fork.expect("started")


def _python(main: program.Program, template: str) -> str:
    """Return the path of the interpreter that the program's first argument names, in its environment
    `template`. Raises NotWarm if that is no Python of the environment, or not there."""
    binaries = os.path.join(template, "bin")
    name = main.argv[0]
    for place in main.environ.get("PATH", os.defpath).split(":"):
        path = name if "/" in name else os.path.join(place or ".", name)
        if os.access(path, os.X_OK):
            if os.path.dirname(path) == binaries:
                return path
            raise NotWarm("%s is not its runtime's own Python" % path)
    raise NotWarm("%s is not there" % name)


def _limits() -> list[int]:
    """Return the numbers of all resource limits that this Python knows."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return sorted({getattr(resource, name) for name in names})
