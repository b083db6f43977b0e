"""Implements the main process's part of a warm start. The main process requests that a preloader forks the
program.

`trainshed.replica.preloader` describes the messages. After any error, the program starts in its own
interpreter (a cold start), and a note to the user states the reason.
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

_ANSWER_TIMEOUT = 1.5
"""Timeout in seconds for the preloader's response, which usually takes milliseconds. It is about as long as a
cold start takes."""
_NO_PRELOADER = "its preloader has exited; a new one starts for later programs"

WARM, COLD = "warm", "cold"
"""The kind of a program's start, in the main process's messages to its shim."""


def note(word: str, text: str) -> tuple[str, str, str]:
    """Return the name, severity and text of the note to the user about a program's start. `word`: `WARM` or
    `COLD`. `text`: the preloaded modules for `WARM`, the reason as a clause for `COLD`."""
    form = "started warm: %s imported" if word == WARM else "started cold: %s"
    return "started_" + word, notes.INFO, form % text


class NotWarm(Exception):
    """Raised if the program must start in its own interpreter (a cold start). The message contains the
    reason, as a clause."""


def become(
    preloader: socket.socket | None,
    main: program.Program,
    plan: protocol.LaunchDocument,
    *,
    owner: int | None,
    connects: bool | None,
    shim: socket.socket,
) -> int:
    """Start the program in a fork of a preloader; return the fork's process ID. The fork joins this process's
    namespaces and becomes a child of the shim, which is process 1 of these namespaces. Raises NotWarm.

    - `preloader`: the connection, opened before the view hid its path, closed here; None = no preloader
      listened.
    - `owner`: file descriptor of the namespace of the program's own users; None = none.
    - `connects`: see `socket_calls.install`.
    - `shim`: socket to which the file descriptor for the fork's socket calls is sent.
    """
    if preloader is None:
        raise NotWarm(_NO_PRELOADER)
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
    preloader.settimeout(_ANSWER_TIMEOUT)
    with preloader:
        try:
            line = json.dumps(message).encode("utf-8") + b"\n"
            unix_sockets.send(preloader, line, *handles, *main.groups.entry_handles)
            answer, filtered = unix_sockets.receive_line(preloader)
            word, _, text = answer.decode("utf-8", "replace").partition(" ")
            if word != "ready":
                raise NotWarm(text or _NO_PRELOADER)
            process = int(text) if text.strip().isdecimal() else 0
            if process <= 1:
                # Code of the job's packages has run in the preloader, so its responses are not trusted. A
                # signal to process 0 or 1 would reach other processes.
                raise NotWarm("the preloader returned no valid process ID for the program")
            for handle in filtered:
                socket_calls.send_handle(shim, handle)
            preloader.sendall(b"go\n")
        except TimeoutError:
            raise NotWarm("the preloader did not respond for %g s" % _ANSWER_TIMEOUT) from None
        except OSError as error:
            raise NotWarm("the preloader exited (%s)" % error) from None
        finally:
            kernel.close_all(entered)
    return process


def _python(main: program.Program, template: str) -> str:
    """Return the path of the interpreter in the program's first argument. Raises NotWarm if it does not
    exist, or is not the Python of the program's environment `template`."""
    binaries = os.path.join(template, "bin")
    name = main.argv[0]
    for place in main.environ.get("PATH", os.defpath).split(":"):
        path = name if "/" in name else os.path.join(place or ".", name)
        if os.access(path, os.X_OK):
            if os.path.dirname(path) == binaries:
                return path
            raise NotWarm("%s is not the Python of the program's runtime" % path)
    raise NotWarm("%s does not exist" % name)
