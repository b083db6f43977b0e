"""The main function of an agent's process (`start` begins it): it reads the document, makes the node's local
engine, runs the agent until that ends, and removes its files. Those lie in a directory that all agents of the
same user share there, and in which killed agents may have left theirs."""

import asyncio
import contextlib
import fcntl
import logging
import os
import pwd
import re
import signal
import socket
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.layout import Layout
from trainshed.engines.local.options import Options
from trainshed.engines.local.spawner import ZygoteHandle
from trainshed.engines.port import ServiceAccess
from trainshed.eventloop.background import begin
from trainshed.replica import protocol
from trainshed.replica.supervisor import journal
from trainshed.replica.supervisor.deadline import Deadline
from trainshed.replica.system import cgroups, durable, trees
from trainshed_cluster.remote import messages
from trainshed_cluster.remote.agent import Agent
from trainshed_cluster.remote.channel import ChannelClosed
from trainshed_cluster.remote.dialer import Dialer
from trainshed_cluster.remote.messages import AgentDocument, News, Order

_OWN = r"trainshed-[^-]+-\d+-\d+-\d+-.+-[0-9a-f]+"
"""Names of agents' directories."""


def name_of(agent: str) -> str:
    """Return the name of an agent's directory, from the unique name in its certificate."""
    return agent.replace("/", "-")


def require_user(name: str) -> None:
    """Raise OSError unless this process runs as that user."""
    try:
        wanted = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise OSError(f"this node knows no user {name}, as whom its programs are to run") from None
    if wanted != os.geteuid():
        raise OSError(
            f"user {name} has number {wanted} here, and this is a process of {os.geteuid()}"
        )


def make_ours(directory: Path) -> None:
    """Make the shared directory if needed. Its name is easy to guess, and it may lie where everybody can
    write, so that one of another user is refused. Raises OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(0o711)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(
            f"{directory} is a link, belongs to user {status.st_uid}, or can be written to by others; remove "
            "it, or name another directory of the nodes in the engine's settings"
        )


def own_directory(parent: Path, name: str) -> tuple[Path, list[Path]]:
    """Make a directory, locked for as long as this process lives. Returns it, and the directories that killed
    agents have left, renamed so that no other agent removes them as well. Raises OSError."""
    lock = os.open(parent, os.O_RDONLY)
    try:
        # One agent at a time: another's new directory, which is not locked yet, must not count as left
        # behind.
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = parent / name
        directory.mkdir(0o711)
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
        for other in list(parent.iterdir()):
            if other != directory and re.fullmatch(_OWN, other.name) and not _is_locked(other):
                with contextlib.suppress(OSError):
                    other.rename(parent / f".left-{other.name}")
        return directory, list(parent.glob(".left-*"))
    finally:
        os.close(lock)


def _is_locked(directory: Path) -> bool:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return True  # It was just removed, is another user's, or is no directory.
    try:
        return not durable.try_lock(handle)
    finally:
        os.close(handle)


def remove(directories: Sequence[Path]) -> None:
    """Delete agents' directories as far as possible, whatever programs have made in them, and the control
    groups of replicas that were killed with their agent. Blocks."""
    for directory in directories:
        with contextlib.suppress(OSError):
            for slot in Layout(directory).slots.glob(f"*/*/*/{protocol.JOURNAL}"):
                cgroups.remove(journal.Entries(str(slot.parent)).groups)
            trees.delete(str(directory))


def is_open(path: Path) -> bool:
    """Whether this process's user, who is not the service's, can reach a path at all. What that user cannot
    reach need not be hidden from programs."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


_TELLING = 20.0
"""Seconds within which the service is told why there will be no agent."""
_CERTIFICATE, _TRUST, _SOCKETS = "interception.pem", "trust.pem", "sockets"
_DEADLINE = "deadline"
"""In the agent's directory."""


def main(zygote: int, connection: socket.socket) -> None:
    """Read the document from standard input, run the agent, remove its files. `zygote`: process id of the
    zygote, which `connection` leads to."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    document = messages.read_document(sys.stdin.buffer)
    _say_taken()
    try:
        own, left = _own_place(document)
    except OSError as failure:
        # A job that waits for this node has to be told, which only the service can do.
        asyncio.run(_refuse(document, str(failure)))
        raise
    threading.Thread(target=remove, args=(left,), daemon=True).start()
    is_forsaken = False
    try:
        is_forsaken = asyncio.run(_serve(document, own, ZygoteHandle(zygote, connection)))
    finally:
        remove([own])
        # Slurm's step made a file of it on this node.
        with contextlib.suppress(OSError):
            errors = Path("/proc/self/fd/2").readlink()
            if errors.is_file() and not errors.stat().st_size:
                errors.unlink()
    if is_forsaken and document.forsaken:
        # Nothing of the agent is needed any more, and this may take as long as the cluster is away.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execv(document.forsaken[0], document.forsaken)


def _say_taken() -> None:
    """Confirm that the document was read, and close standard input and output, whose other ends may vanish
    now."""
    with contextlib.suppress(OSError):
        os.write(1, messages.TAKEN)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _own_place(document: AgentDocument) -> tuple[Path, list[Path]]:
    """Make the agent's directory; return it, and the directories that killed agents left beside it. Raises
    OSError."""
    if document.user is not None:
        require_user(document.user)
    name = name_of(document.credential.name)
    parent = Path(document.directory)
    make_ours(parent)
    own, left = own_directory(parent, name)
    # Programs can read the trusted authorities.
    for file, text, mode in (
        (_CERTIFICATE, document.interception, 0o600),
        (_TRUST, document.trust, 0o644),
    ):
        if text:
            path = own / file
            path.touch(mode=0o600)
            path.write_text(text, "utf-8")
            path.chmod(mode)
    return own, left


async def _refuse(document: AgentDocument, why: str) -> None:
    """Tell the service why nothing can be run here."""
    dialer: Dialer[News, Order] = Dialer(document.credential, Order)
    with contextlib.suppress(OSError, ChannelClosed):
        async with asyncio.timeout(_TELLING):
            connection = await dialer.dial()
            await connection.send(
                messages.Hello(version=messages.VERSION, capabilities=None, failure=why)
            )
            # The service closes the connection once it has read that.
            await connection.receive()


async def _serve(document: AgentDocument, directory: Path, zygote: ZygoteHandle) -> bool:
    """Run the agent. Returns whether it ended because its lease was over."""
    dialer: Dialer[News, Order] = Dialer(document.credential, Order)
    sockets = {name: directory / _SOCKETS / name for name in document.sockets}
    for path in sockets.values():
        path.parent.mkdir(mode=0o700, exist_ok=True)
    listening = [await dialer.listen(name, path) for name, path in sockets.items()]
    access = ServiceAccess(
        storage_socket=sockets.get("buckets"),
        rest_socket=sockets.get("rest"),
        grpc_socket=sockets.get("grpc"),
        certificate=directory / _CERTIFICATE if document.interception else None,
        trust=directory / _TRUST if document.trust else None,
    )
    address = await asyncio.to_thread(
        _own_address, document.address, (document.credential.host, document.credential.port)
    )
    deadline = directory / _DEADLINE
    options = replace(_options(document, access, address), deadline=deadline)
    engine = LocalEngine(directory, options, zygote=zygote)
    agent = Agent(document, engine, dialer, Deadline(str(deadline)))
    running = begin(agent.run(), "the agent")
    loop = asyncio.get_running_loop()
    parting: list[asyncio.Task[None]] = []

    def part() -> None:
        if document.grace and not parting:
            parting.append(begin(agent.part(), "ending what runs here"))
        elif not document.grace:
            # Cancelling the allocation ends the programs as well: there is nothing to report any more.
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, part)
    try:
        await asyncio.gather(running, return_exceptions=True)
    finally:
        for task in parting:
            task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            # What is left to do is to remove the files.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        for server in listening:
            server.close()
    return agent.is_forsaken


def _own_address(name: str | None, service: tuple[str, int]) -> str:
    """Return the IP address by which other nodes reach this one: that of its `name`; None = the one from
    which it reaches the service. Blocks. Raises OSError."""
    if name:
        return socket.gethostbyname(name)
    # No packet is sent: connecting a UDP socket only shows the address that it would send from.
    # The lowest family is that of version 4.
    family, _, _, _, there = min(socket.getaddrinfo(*service, type=socket.SOCK_DGRAM))
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(there)
        return probe.getsockname()[0]


def _options(document: AgentDocument, access: ServiceAccess, address: str) -> Options:
    return Options(
        access=access,
        address=address,
        hosts_file=Path(document.hosts_file) if document.hosts_file else None,
        hidden=tuple(
            path for path in map(Path, document.hidden) if document.user is None or is_open(path)
        ),
        rules=document.rules,
        # The same choice as of an earlier agent here, because peers were told its addresses.
        places=document.credential.name.rpartition("/")[0],
    )
