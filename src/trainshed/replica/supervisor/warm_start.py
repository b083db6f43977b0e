"""The guardian's side of a warm start: asks a preloader to fork the program into the replica.

`trainshed.replica.preloader` says what is spoken. Whatever goes wrong, the program is started by itself, and
the reason is told. Runs on Python 3.6.
"""

import os
import resource

from trainshed.replica import protocol
from trainshed.replica.sandbox import users as sandbox_users
from trainshed.replica.supervisor import program
from trainshed.replica.system import kernel, processes, unix_sockets
from trainshed.replica.system import lean_json as json
from trainshed.replica.system import lean_signal as signal
from trainshed.replica.system import lean_socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PATIENCE = 1.5
"""Seconds for each of a preloader's answers. It takes milliseconds; who waited longer would have started by
himself meanwhile."""


WARM, COLD = "warm", "cold"
"""How a program began, as the guardian tells its shim."""


def note(word: str, text: str) -> "tuple[str, str]":
    """Name and text of the note that says how a program began. `text`: what is imported, or why it is not, as
    a clause."""
    told = "started warm: %s imported" if word == WARM else "started cold: %s"
    return "started_" + word, told % text


class _NotWarm(Exception):
    """The program is to be started by itself. The message says why, as a clause."""


class WarmStart:
    """One program's. In order: `__init__` before anything is hidden, `prepare` when the view is made,
    `run`."""

    def __init__(self, warm: protocol.WarmStart) -> None:
        """Connects. Never raises."""
        self._warm = warm
        self._python = ""
        self._process = 0
        #: Why the program is to be started by itself, as a clause; "" = it is not.
        self.cold_because = ""
        self._connection: "socket.socket | None" = unix_sockets.connected(warm.preloader)
        if self._connection is None:
            self.cold_because = "its preloader has ended; the next one is made for programs to come"
        else:
            self._connection.settimeout(_PATIENCE)

    @property
    def preloaded(self) -> str:
        """What the program finds imported, for people."""
        return self._warm.preloaded

    def prepare(
        self,
        main: program.Program,
        level: str,
        users: "sandbox_users.Users | None",
        filtered: "bool | None",
    ) -> int:
        """Have a fork of the preloader enter this process's namespaces and wait there.

        `users`: the program's own, None = it has none. `filtered`:
        whether calls of connect are asked about besides those of bind, None = no call is. Returns the handle
        by which the program's are, -1 = none is.
        """
        if self.cold_because:
            return -1
        try:
            owners = users.handle if users is not None else -1
            return self._prepare(main, level, owners, filtered)
        except _NotWarm as why:
            self._give_up(str(why))
            return -1

    def run(self, main: program.Program, groups: "list[int]") -> int:
        """Have it run; `groups`: handles by which it joins its control groups. Returns its process id, 0 = it
        is to be started by itself."""
        if self.cold_because:
            return 0
        try:
            self._run(main, groups)
        except _NotWarm as why:
            processes.send(self._process, signal.SIGKILL)
            self._give_up(str(why))
            return 0
        self._close()
        return self._process

    def _give_up(self, why: str) -> None:
        self.cold_because = why
        self._close()

    def _prepare(
        self, main: program.Program, level: str, owners: int, filtered: "bool | None"
    ) -> int:
        self._python = _python(main, self._warm.template)
        names = ["user"] * (level == protocol.LEVEL_USER) + ["pid", "mnt", "uts", "ipc"]
        places = [os.open("/proc/self/ns/" + name, os.O_RDONLY | os.O_CLOEXEC) for name in names]
        message = {
            "namespaces": names,
            "level": level,
            "owners": owners >= 0,
            "filter": filtered is not None,
            "connect": bool(filtered),
            "processors": sorted(os.sched_getaffinity(0)),
        }
        handles = places + [owners] * (owners >= 0) + [main.output, main.errors]
        try:
            self._send(message, handles)
        finally:
            kernel.close_all(places)
        word, asked = self._answer()
        if not word.startswith("ready "):
            raise _NotWarm("the preloader said %r" % word[:100])
        self._process = int(word[6:])
        return asked

    def _run(self, main: program.Program, groups: "list[int]") -> None:
        limits = [(number, resource.getrlimit(number)) for number in _limits()]
        message = {
            "argv": main.argv,
            "environ": main.environ,
            "directory": main.directory,
            "python": self._python,
            "template": self._warm.template,
            "limits": limits,
        }
        self._send(message, groups)
        word, _ = self._answer()
        if word != "started":
            raise _NotWarm("the preloader said %r" % word[:100])

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, message: "dict[str, Any]", handles: "list[int]") -> None:
        assert self._connection is not None
        text = json.dumps(message).encode("utf-8") + b"\n"
        try:
            unix_sockets.send_with(self._connection, text, handles)
        except OSError as error:
            raise _NotWarm("the preloader ended (%s)" % error) from None

    def _answer(self) -> "tuple[str, int]":
        """The next line, without its end, and the handle beside it, -1 = none."""
        assert self._connection is not None
        text = b""
        found: "list[int]" = []
        while not text.endswith(b"\n"):
            try:
                more, handles = unix_sockets.receive_beside(self._connection)
            except socket.timeout:
                raise _NotWarm("the preloader did not answer for %g s" % _PATIENCE) from None
            except OSError as error:
                raise _NotWarm("the preloader ended (%s)" % error) from None
            if not more:
                raise _NotWarm("the preloader ended")
            text += more
            found += handles
        word = text.decode("utf-8", "replace").rstrip("\n")
        if word.startswith("cold "):
            raise _NotWarm(word[5:])
        return word, found[0] if found else -1


def _python(main: program.Program, template: str) -> str:
    """The interpreter that the program's first argument names, in its environment `template`. Raises
    _NotWarm."""
    binaries = os.path.join(template, "bin")
    name = main.argv[0]
    for place in main.environ.get("PATH", os.defpath).split(":"):
        path = name if "/" in name else os.path.join(place or ".", name)
        if os.access(path, os.X_OK):
            if os.path.dirname(path) == binaries:
                return path
            raise _NotWarm("%s is not its runtime's own Python" % path)
    raise _NotWarm("%s is not there" % name)


def _limits() -> "list[int]":
    """Numbers of all limits that this Python knows."""
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return sorted({getattr(resource, name) for name in names})
