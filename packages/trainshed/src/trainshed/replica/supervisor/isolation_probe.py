"""Finds the strongest sandbox level that works on this machine, by starting a program at each level.

A child of the zygote runs the probe at the request of the local engine (`engines/local/machine.py`).
"""

import errno
import os
import re
import signal
from collections.abc import Sequence

from trainshed.replica import protocol
from trainshed.replica.sandbox import users
from trainshed.replica.supervisor import program, start

_PROBE_USERS = 0x7FFF0000
"""First of the user ids that the probe uses at level `own-user`."""
_TEMPORARY_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_WORKS = "works"
"""The text that the probe's program writes if it runs at the level."""


def probe(slot: str, wanted: Sequence[str]) -> protocol.Message:
    """Find the first of the sandbox levels `wanted` that works on this machine. Return the response to the
    zygote's request.

    The probe starts a program at each level in `slot`, an empty directory. A temporary shortage, such as of
    file descriptors, fails the probe and never leads to a weaker level.
    """
    refused: dict[str, str] = {}
    for level in wanted:
        cause, is_temporary = _find_cause(level, slot)
        if is_temporary:
            return {"failed": "isolation cannot be probed: %s (at level %s)" % (cause, level)}
        if cause is None:
            return {"level": level, "refused": refused}
        refused[level] = cause
    return {"level": "", "refused": refused}


def _find_cause(level: str, slot: str) -> "tuple[str | None, bool]":
    """Return the reason why no program can be started at this sandbox level, or None if one can. The second
    result is whether the reason may be temporary."""
    if level == protocol.LEVEL_SESSION:
        return None, False
    if level in (protocol.LEVEL_OWN, protocol.LEVEL_ROOT) and os.geteuid() != 0:
        return "the service does not run as root", False
    output, report = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(report, _try_level(level, slot, report).encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(report)
    with open(output, encoding="utf-8") as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if not text:
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        # A filter of system calls always kills with SIGSYS. Other signals may result from a temporary lack of
        # memory.
        return "the attempt was killed (signal %d)" % number, number != signal.SIGSYS
    error = re.search(r"\[Errno (\d+)\]", text)
    is_temporary = int(error.group(1)) in _TEMPORARY_ERRORS if error else "MemoryError" in text
    return None if text == _WORKS else text, is_temporary


def _try_level(level: str, slot: str, report: int) -> str:
    """Start a program that creates a file and then writes `_WORKS` to the pipe `report`. Return the error, or
    "" for success."""

    def write_file(main: program.Program) -> None:
        main.switch_user()
        with open("written", "w", encoding="utf-8") as file:
            file.write("x")
        os.write(report, _WORKS.encode())

    hosts = os.path.join(slot, "hosts")
    plan = protocol.LaunchDocument(
        incarnation=1,
        program=protocol.Program(argv=[], environ={}),
        isolation=protocol.Isolation(
            level=level,
            hostname="probe",
            hosts=hosts,
            buckets=[("probe", slot)],
            hidden=[slot],
            users=(_PROBE_USERS, users.COUNT) if level == protocol.LEVEL_OWN else (),
        ),
        limits=protocol.Limits(),
        network=protocol.Network(),
        observation=protocol.Observation(logs=slot),
    )
    try:
        os.makedirs(slot, exist_ok=True)
        with open(hosts, "w", encoding="utf-8") as file:
            file.write("127.0.0.1 localhost\n")
        enclosed = start.enclose(level, write_file)
        if isinstance(enclosed.main, OSError):
            raise enclosed.main
        enclosed.main.await_program(protocol.encode({"slot": slot, "plan": plan.to_message()}))
    except (OSError, MemoryError) as error:
        return str(error) or repr(error)
    return ""
