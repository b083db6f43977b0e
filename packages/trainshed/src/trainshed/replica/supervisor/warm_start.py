"""Does the main process's part of a warm start: asks a preloader to fork the program into the replica.

`trainshed.replica.preloader` describes the messages. If anything goes wrong, the program is started in its
own interpreter, and the reason is reported.
"""

import json
import os
import resource
import signal
from typing import Any

from trainshed.replica import protocol
from trainshed.replica.observe import notes
from trainshed.replica.sandbox import users as sandbox_users
from trainshed.replica.supervisor import program
from trainshed.replica.system import kernel, processes, unix_sockets

_PATIENCE = 1.5
"""Seconds to wait for each of a preloader's answers. An answer takes milliseconds; in more than this the
program would have started in its own interpreter."""

WARM, COLD = "warm", "cold"
"""How a program began, in the main process's messages to its shim."""


def note(word: str, text: str) -> tuple[str, str, str]:
    """Return name, severity and text of the note that says how a program began. `text`: what is imported, or
    why it is not, as a clause."""
    form = "started warm: %s imported" if word == WARM else "started cold: %s"
    return "started_" + word, notes.INFO, form % text


class NotWarm(Exception):
    """The program is to be started in its own interpreter. The message says why, as a clause."""


class WarmStart:
    """The warm start of one program. A fork of its preloader enters this process's namespaces, becomes a
    child of the shim, their first process, and waits there. Make it before anything of the machine is hidden,
    call `prepare` when the view is made, then `run`."""

    def __init__(self, preloader: str, warm: protocol.WarmStart, level: str) -> None:
        """Ask that preloader for the fork without waiting for it."""
        self._warm = warm
        self._process = 0
        self._received = b""
        self._handles: list[int] = []
        self._python = ""
        #: Why the program is to start in its own interpreter, as a clause; None = it is not.
        self.cold_because: str | None = None
        self._connection = unix_sockets.connected(preloader)
        if self._connection is None:
            self.cold_because = "its preloader has ended; the next one is made for programs to come"
            return
        self._connection.settimeout(_PATIENCE)
        try:
            self._send({}, [], ["user"] * (level == protocol.LEVEL_USER) + ["pid"])
        except NotWarm as why:
            self._give_up(why)

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
        owners = [users.handle] if users is not None else []
        message = {
            "level": level,
            "owners": bool(owners),
            "filter": filtered is not None,
            "connect": bool(filtered),
            "processors": sorted(os.sched_getaffinity(0)),
        }
        try:
            self._python = _python(main, self._warm.template)
            self._send(message, [*owners, main.output, main.errors], ["mnt", "uts", "ipc"])
            self._process = int(self._expect("waiting "))
            self._expect("ready")
        except NotWarm as why:
            self._give_up(why)
            return -1
        return self._handles.pop(0) if self._handles else -1

    def run(self, main: program.Program, groups: list[int]) -> int:
        """Have the fork become the program. `groups`: handles by which it joins its control groups. Returns
        its process id; 0 = it is to be started in its own interpreter."""
        if self.cold_because:
            return 0
        message = {
            "argv": main.argv,
            "environ": main.environ,
            "directory": main.directory,
            "python": self._python,
            "template": self._warm.template,
            "limits": [(number, resource.getrlimit(number)) for number in _limits()],
        }
        try:
            self._send(message, groups)
            self._expect("started")
        except NotWarm as why:
            self._give_up(why)
            return 0
        self.close()
        return self._process

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _give_up(self, why: NotWarm) -> None:
        """Kill the fork, if it has come. Otherwise it ends by itself when it finds its connection closed."""
        self.cold_because = str(why)
        if self._process:
            processes.send(self._process, signal.SIGKILL)
        self.close()

    def _send(
        self, message: dict[str, Any], handles: list[int], namespaces: list[str] | None = None
    ) -> None:
        """Send the fork a message with handles. `namespaces`: those of this process that it is to enter
        first. Raises NotWarm."""
        assert self._connection is not None
        places = [
            os.open("/proc/self/ns/" + name, os.O_RDONLY | os.O_CLOEXEC)
            for name in namespaces or ()
        ]
        if namespaces:
            message["namespaces"] = namespaces
        text = json.dumps(message).encode("utf-8") + b"\n"
        try:
            unix_sockets.send(self._connection, text, *places, *handles)
        except OSError as error:
            raise NotWarm("the preloader ended (%s)" % error) from None
        finally:
            kernel.close_all(places)

    def _expect(self, start: str) -> str:
        """Wait for a line that starts with `start`; return the rest of it. Raises NotWarm if another line
        comes, or none."""
        assert self._connection is not None
        while b"\n" not in self._received:
            try:
                data, handles = unix_sockets.receive_beside(self._connection)
            except TimeoutError:
                raise NotWarm("the preloader did not answer for %g s" % _PATIENCE) from None
            except OSError as error:
                raise NotWarm("the preloader ended (%s)" % error) from None
            if not data:
                raise NotWarm("its preloader has ended; the next one is made for programs to come")
            self._received += data
            # Several lines may be read at once: which one a handle came with is not known.
            self._handles += handles
        received, _, self._received = self._received.partition(b"\n")
        line = received.decode("utf-8", "replace")
        if line.startswith("cold "):
            raise NotWarm(line[len("cold ") :])
        if not line.startswith(start):
            raise NotWarm("the preloader said %r" % line[:100])
        return line[len(start) :]


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
