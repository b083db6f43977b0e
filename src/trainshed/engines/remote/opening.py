"""Starts a node's first programs before its agent is loaded, from what the service composed for that
(`first_start`). It is small and imports the standard library alone, because programs wait for everything that
is loaded here.

Nothing is started unless the node is still as it described itself before. The agent takes over what was
started, and does everything else itself.
"""

import json
import os
import select
import socket
import sys
import time

from trainshed.engines.local.hosts_file import MachineHosts
from trainshed.engines.remote import node_directory
from trainshed.engines.remote.content import leases
from trainshed.replica.system import cgroups, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

_LONGEST_START = 0.5
"""Seconds for which an agent waits for programs to start."""
_FIRST_LINES = 0.1
"""The same for their first lines, once they were started."""
_WORDS = 4096
"""Bytes of what a shim says, more than a start's."""
_BOOT = "/proc/sys/kernel/random/boot_id"
BEGIN = b"begin\n"
"""The last line of an agent's standard input: what it was given may begin."""
TAKEN = b"taken\n"
"""Line of an agent's standard output: it has read all of its input, and begins."""


class Opening:
    """The programs that were started. `directory`: the agent's own. `left`: directories that killed agents
    have left beside it."""

    def __init__(self, directory: str, left: "list[str]") -> None:
        self.directory = directory
        self.left = left
        #: (replica's name, launch document, connection to the shim) of each program.
        self.programs: "list[tuple[str, dict[str, Any], socket.socket]]" = []
        #: Handles that keep programs' environments from being removed, by path.
        self.leases: "dict[str, int]" = {}


def boot() -> str:
    """Return the identity of the node's current boot; "" = the system does not tell it."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def read(stream: "IO[bytes]") -> "tuple[bytes, bytes, bytes]":
    """Read the programs to start, the agent's document, and the trusted authorities, as
    `messages.write_document` composes them, and then the permission to begin. Raises EOFError if the sender
    was killed or has changed its mind, and ValueError."""
    sizes = stream.readline()
    try:
        size, first, trust = map(int, sizes.split() or (0, 0, 0))
    except ValueError:
        raise ValueError(
            "the agent's document cannot be read: it begins with %r" % sizes[:40]
        ) from None
    data, trusted = stream.read(size), stream.read(trust)
    if not size or len(data) < size or len(trusted) < trust:
        raise EOFError("the agent's document broke off")
    # Imported here: the zygote, which does not need it, was forked before.
    import zlib

    data, trusted = zlib.decompress(data), zlib.decompress(trusted) if trusted else b""
    if stream.readline() != BEGIN:
        raise EOFError("the agent was not told to begin")
    return data[:first], data[first:], trusted


def say_taken() -> None:
    """Confirm that the input was read, and close standard input and output, whose other ends may vanish
    now."""
    try:
        os.write(1, TAKEN)
    except OSError:
        pass
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def begin(text: bytes, zygote: socket.socket, trust: bytes = b"") -> "Opening | None":
    """Start the programs of a `first_start` by the zygote at the other end. `trust`: their trusted
    authorities, PEM. None = nothing was started and nothing is left of it, because there is nothing to start,
    or the node is not as the service thinks, which is written to stderr.
    """
    if not text:
        return None
    kept: "dict[str, int]" = {}
    try:
        message = json.loads(text.decode("utf-8"))
        _require(message)
        for unit in message["units"]:
            kept[unit["path"]] = leases.hold_as_recorded(unit, ("", boot()))
        node_directory.make_ours(message["parent"])
        directory, left = node_directory.own_directory(message["parent"], message["name"])
    except (OSError, ValueError, KeyError) as failure:
        _give_up(kept, failure)
        return None
    opening = Opening(directory, left)
    opening.leases = kept
    try:
        _lay_out(directory, message, trust)
        _fit(message)
    except (OSError, ValueError, KeyError) as failure:
        _give_up(kept, failure)
        node_directory.remove([directory])
        return None
    for program in message["programs"]:
        ours, theirs = socket.socketpair()
        line = json.dumps({"slot": program["slot"], "plan": program["plan"]}).encode("utf-8")
        with theirs:
            try:
                unix_sockets.send(zygote, line + b"\n", theirs.fileno())
            except OSError:
                # The zygote is dead: the agent starts another one, and by it the missing programs.
                ours.close()
                break
        opening.programs.append((program["replica"], program["plan"], ours))
    return opening


def _give_up(kept: "dict[str, int]", why: Exception) -> None:
    sys.stderr.write("programs are not started before the agent: %r\n" % why)
    for handle in kept.values():
        os.close(handle)


def _require(message: "dict[str, Any]") -> None:
    """Raise OSError if the node is not as the service thinks."""
    if not message["boot"] or boot() != message["boot"]:
        raise OSError("the node was booted since it told of itself")
    for path in message["needs"]:
        os.stat(path)
    for address, port in message["ports"]:
        with socket.socket() as probe:
            probe.bind((address, port))


def _lay_out(directory: str, message: "dict[str, Any]", trust: bytes) -> None:
    for name, mode in message["directories"]:
        os.makedirs(os.path.join(directory, name), mode, exist_ok=True)
    for name, text, mode in message["files"]:
        path = os.path.join(directory, name)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
    if message["trust"]:
        path = os.path.join(directory, message["trust"])
        with open(path, "xb") as file:
            file.write(trust)
        os.chmod(path, 0o644)
    if message["hosts_file"]:
        MachineHosts(message["hosts_file"]).write(message["hosts"])


def _fit(message: "dict[str, Any]") -> None:
    """Complete the launch documents with what only this process knows of its place on the node."""
    memory_base, cpu_base, pids_base = cgroups.find_bases()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if limit := cgroups.memory_limit(memory_base):
        memory = min(memory, limit)
    processes = cgroups.process_share(pids_base)
    for program in message["programs"]:
        plan = program["plan"]
        plan.update(memory_base=memory_base, cpu_base=cpu_base, pids_base=pids_base)
        plan["memory_polling"] = not memory_base
        plan["pids_limit"] = cgroups.bounded(plan["pids_limit"], processes)
        for name in ("memory_limit", "shm_bytes"):
            plan[name] = min(plan[name], memory)


def give_precedence(opening: "Opening | None") -> None:
    """If the starting programs use all processors, wait until each has written a line, or its shim has
    reported anything but its start, because loading the agent would slow them down. Wait at most
    `_FIRST_LINES` after the last start, because readers of lines wait for the agent."""
    if opening is None or len(opening.programs) < (os.cpu_count() or 1) - busy():
        return
    shims = {connection.fileno(): connection for _, _, connection in opening.programs}
    silent, unstarted = set(shims), set(shims)
    until = time.monotonic() + _LONGEST_START
    # Edge-triggered: the messages stay in the socket for the agent to read.
    with select.epoll() as poll:
        for handle in shims:
            poll.register(handle, select.EPOLLIN | select.EPOLLET)
        while silent and (rest := until - time.monotonic()) > 0:
            for handle, _ in poll.poll(rest):
                unstarted.discard(handle)
                if not _was_only_started(shims[handle]):
                    silent.discard(handle)
                if not unstarted:
                    until = min(until, time.monotonic() + _FIRST_LINES)


def _was_only_started(shim: socket.socket) -> bool:
    """Whether a shim has only reported its program's start so far."""
    try:
        said = shim.recv(_WORDS, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return b'"started"' in said and said.count(b"\n") == 1


def busy() -> int:
    """Return how many processors other processes use just now; 0 = the system does not tell."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            running = int(file.read().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0
    return running - 1
