"""Does the main process's part of a warm start: has a fork of a preloader become the program in its place.

`trainshed.replica.preloader` describes the messages. If anything goes wrong, the program is started in its
own interpreter, and the reason is reported.
"""

import json
import os
import resource
import socket

from trainshed.replica import protocol
from trainshed.replica.observe import notes
from trainshed.replica.sandbox import socket_calls
from trainshed.replica.supervisor import program
from trainshed.replica.system import kernel, unix_sockets

_PATIENCE = 1.5
"""Timeout in seconds for the preloader's answer. It takes milliseconds; in this time, the program could have
started in its own interpreter."""
_ENDED = "its preloader has ended; the next one is made for programs to come"

WARM, COLD = "warm", "cold"
"""How a program began, in the main process's messages to its shim."""


def note(word: str, text: str) -> tuple[str, str, str]:
    """Return name, severity and text of the note about a program's start. `text`: the preloaded modules, or
    the reason for a cold start, as a clause."""
    form = "started warm: %s imported" if word == WARM else "started cold: %s"
    return "started_" + word, notes.INFO, form % text


class NotWarm(Exception):
    """The program must start in its own interpreter. The message contains the reason, as a clause."""


def become(
    preloader: socket.socket | None,
    main: program.Program,
    plan: protocol.LaunchDocument,
    *,
    owner: int | None,
    connects: bool | None,
    shim: socket.socket,
) -> int:
    """Have a fork of a preloader become the program; return its process id. It enters this process's
    namespaces, as a child of the shim, their first process.

    `preloader`: the connection, opened before the view hid its path, and closed here; None = no preloader
    listened. `owner`: handle of the namespace of the program's own users, None = none. `connects`: see
    `socket_calls.be_asked`. `shim`: receives the handle for the fork's socket calls. Raises NotWarm.
    """
    if preloader is None:
        raise NotWarm(_ENDED)
    level, template = plan.isolation.level, plan.warm.template
    namespaces = ["user"] * (level == protocol.LEVEL_USER) + ["mnt", "uts", "ipc", "pid"]
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    message = {
        "namespaces": len(namespaces),
        "level": level,
        "owner": owner is not None,
        "connects": connects,
        "processors": sorted(os.sched_getaffinity(0)),
        "argv": main.argv,
        "environ": main.environ,
        "directory": main.directory,
        "python": _python(main, template),
        "template": template,
        "limits": [(number, resource.getrlimit(number)) for number in limits],
    }
    entered = [os.open("/proc/self/ns/" + name, os.O_RDONLY) for name in namespaces]
    handles = [*entered, main.output, main.errors]
    if owner is not None:
        handles.append(owner)
    preloader.settimeout(_PATIENCE)
    with preloader:
        try:
            line = json.dumps(message).encode("utf-8") + b"\n"
            unix_sockets.send(preloader, line, *handles, *main.groups.ways_in)
            answer, filtered = unix_sockets.receive_line(preloader)
            word, _, text = answer.decode("utf-8", "replace").partition(" ")
            if word != "ready":
                raise NotWarm(text or _ENDED)
            process = int(text) if text.strip().isdecimal() else 0
            if process <= 1:
                # Code of the job's packages has run by then, and a signal to 0 or 1 would meet others.
                raise NotWarm("the preloader does not say which process the program is")
            for handle in filtered:
                socket_calls.hand_over(shim, handle)
            preloader.sendall(b"go\n")
        except TimeoutError:
            raise NotWarm("the preloader did not answer for %g s" % _PATIENCE) from None
        except OSError as error:
            raise NotWarm("the preloader ended (%s)" % error) from None
        finally:
            kernel.close_all(entered)
    return process


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
