"""The main function of an agent's process, called by `start`. It reads the agent's startup data (the
document), creates the local engine of the node, runs the agent, and removes the agent's files.

All agents of a user on a node share one directory. This directory may contain files of agents that were
killed.
"""

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

_DIRECTORY_NAME = r"trainshed-[^-]+-\d+-\d+-\d+-.+-[0-9a-f]+"
"""Pattern of the names of agents' directories."""


def name_of(agent: str) -> str:
    """Return the name of an agent's directory. `agent`: the unique name in the agent's certificate."""
    return agent.replace("/", "-")


def require_user(name: str) -> None:
    """Raise OSError if this process does not run as the given user."""
    try:
        wanted = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise OSError(
            f"user {name}, who owns the programs, does not exist on this node; create the user on all nodes"
        ) from None
    if wanted != os.geteuid():
        raise OSError(
            f"user {name} has the ID {wanted} on this node, but this process runs as user {os.geteuid()}; "
            "use the same ID on all machines"
        )


def make_shared_directory(directory: Path) -> None:
    """Create the directory that a user's agents share, if it does not exist. Raises OSError if an existing
    directory is a link, belongs to another user, or is writable for other users. Such a directory may be an
    attack, because the name is easy to guess and all users may have write access to the parent directory."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(0o711)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OSError(
            f"{directory} is a link, belongs to user {status.st_uid}, or is writable for other users; remove "
            "it, or set another directory of the nodes in the engine's settings"
        )


def own_directory(parent: Path, name: str) -> tuple[Path, list[Path]]:
    """Create an agent's directory, locked for the lifetime of this process.

    Returns the new directory, and the directories of agents that were killed. The directories of killed
    agents are renamed, so that no other agent removes them as well. Raises OSError if the directory cannot be
    created.
    """
    lock = os.open(parent, os.O_RDONLY)
    try:
        # Without this lock, another agent could find the new directory before it is locked, and remove it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = parent / name
        directory.mkdir(0o711)
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_EX)
        for other in list(parent.iterdir()):
            if other != directory and re.fullmatch(_DIRECTORY_NAME, other.name) and not _is_locked(other):
                with contextlib.suppress(OSError):
                    other.rename(parent / f".left-{other.name}")
        return directory, list(parent.glob(".left-*"))
    finally:
        os.close(lock)


def _is_locked(directory: Path) -> bool:
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        # Return True, so that the caller ignores the path. The path was just removed, belongs to another
        # user, or is not a directory.
        return True
    try:
        return not durable.try_lock(handle)
    finally:
        os.close(handle)


def remove(directories: Sequence[Path]) -> None:
    """Delete directories of agents, and the control groups of replicas that were killed with their agents.
    Ignores failures. Blocks."""
    for directory in directories:
        with contextlib.suppress(OSError):
            for slot in Layout(directory).slots.glob(f"*/*/*/{protocol.JOURNAL}"):
                cgroups.remove(journal.Entries(str(slot.parent)).groups)
            trees.delete(str(directory))


def is_reachable(path: Path) -> bool:
    """Return whether this process's user can reach a path. Paths that the user cannot reach need not be
    hidden from the user's programs."""
    try:
        path.stat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


_REFUSAL_TIMEOUT = 20.0
"""Maximum seconds to report to the service that the start failed."""
_CERTIFICATE_FILE, _TRUST_FILE, _SOCKET_DIRECTORY = "interception.pem", "trust.pem", "sockets"
_DEADLINE_FILE = "deadline"
"""Names of files in the agent's directory."""


def main(zygote: int, connection: socket.socket) -> None:
    """Read the agent's startup data from standard input, run the agent, and remove its files.

    Args:
        zygote: Process id of the zygote.
        connection: Connection to the zygote.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    document = messages.read_document(sys.stdin.buffer)
    _confirm_document()
    try:
        own, left = _make_directory(document)
    except OSError as failure:
        # Report the failure to the service, which shows it to the users of waiting jobs.
        asyncio.run(_report_refusal(document, str(failure)))
        raise
    threading.Thread(target=remove, args=(left,), daemon=True).start()
    is_lease_expired = False
    try:
        is_lease_expired = asyncio.run(_serve(document, own, ZygoteHandle(zygote, connection)))
    finally:
        remove([own])
        # Slurm's step created a file on the node for the error output. Remove the file if it is empty.
        with contextlib.suppress(OSError):
            errors = Path("/proc/self/fd/2").readlink()
            if errors.is_file() and not errors.stat().st_size:
                errors.unlink()
    if is_lease_expired and document.release_command:
        # No program needs the agent anymore. The command below retries while the cluster is unavailable, so
        # signals must be able to end it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execv(document.release_command[0], document.release_command)


def _confirm_document() -> None:
    """Confirm that the agent has read its startup data (the document), and close standard input and output.
    The processes at the other ends of these streams may then exit."""
    with contextlib.suppress(OSError):
        os.write(1, messages.DOCUMENT_READ)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _make_directory(document: AgentDocument) -> tuple[Path, list[Path]]:
    """Create the directory of this agent. Returns the new directory, and the directories of agents that were
    killed. Raises OSError if the new directory cannot be created."""
    if document.user is not None:
        require_user(document.user)
    name = name_of(document.credential.name)
    parent = Path(document.directory)
    make_shared_directory(parent)
    own, left = own_directory(parent, name)
    # Programs must be able to read the file with trusted certificate authorities.
    for file, text, mode in (
        (_CERTIFICATE_FILE, document.interception, 0o600),
        (_TRUST_FILE, document.trust, 0o644),
    ):
        if text:
            path = own / file
            path.touch(mode=0o600)
            path.write_text(text, "utf-8")
            path.chmod(mode)
    return own, left


async def _report_refusal(document: AgentDocument, why: str) -> None:
    """Report to the service why this node cannot run programs."""
    dialer: Dialer[News, Order] = Dialer(document.credential, Order)
    with contextlib.suppress(OSError, ChannelClosed):
        async with asyncio.timeout(_REFUSAL_TIMEOUT):
            connection = await dialer.dial()
            await connection.send(messages.Hello(version=messages.VERSION, capabilities=None, failure=why))
            # The service closes the connection after it has read the message.
            await connection.receive()


async def _serve(document: AgentDocument, directory: Path, zygote: ZygoteHandle) -> bool:
    """Run the agent with this startup data until it ends. Return whether it ended because it had no contact
    with the service for a whole lease."""
    dialer: Dialer[News, Order] = Dialer(document.credential, Order)
    sockets = {name: directory / _SOCKET_DIRECTORY / name for name in document.sockets}
    for path in sockets.values():
        path.parent.mkdir(mode=0o700, exist_ok=True)
    listening = [await dialer.listen(name, path) for name, path in sockets.items()]
    access = ServiceAccess(
        storage_socket=sockets.get("buckets"),
        rest_socket=sockets.get("rest"),
        grpc_socket=sockets.get("grpc"),
        certificate=directory / _CERTIFICATE_FILE if document.interception else None,
        trust=directory / _TRUST_FILE if document.trust else None,
    )
    address = await asyncio.to_thread(
        _own_address, document.address, (document.credential.host, document.credential.port)
    )
    deadline = directory / _DEADLINE_FILE
    options = replace(_options(document, access, address), deadline=deadline)
    engine = LocalEngine(directory, options, zygote=zygote)
    agent = Agent(document, engine, dialer, Deadline(str(deadline)))
    running = begin(agent.run(), "the agent")
    loop = asyncio.get_running_loop()
    terminations: list[asyncio.Task[None]] = []

    def terminate() -> None:
        if document.grace and not terminations:
            terminations.append(begin(agent.terminate(), "ending all programs"))
        elif not document.grace:
            # The allocation is ending, and its programs with it, so the agent has nothing to report.
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, terminate)
    try:
        await asyncio.gather(running, return_exceptions=True)
    finally:
        for task in terminations:
            task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            # The agent has ended. Ignore further signals until its files are removed.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        for server in listening:
            server.close()
    return agent.is_lease_expired


def _own_address(name: str | None, service: tuple[str, int]) -> str:
    """Return the IP address at which other nodes reach this node. Blocks. Raises OSError.

    Args:
        name: Name to resolve; None = use the source address of connections to the service.
        service: Address of the service.
    """
    if name:
        return socket.gethostbyname(name)
    # To connect a UDP socket sends no packet, but determines the source address. `min` prefers IPv4.
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
            path for path in map(Path, document.hidden) if document.user is None or is_reachable(path)
        ),
        rules=document.rules,
        # This value determines the addresses of replicas. It is the same for all agents of this allocation
        # and node, because the replicas' peers already know the addresses.
        places=document.credential.name.rpartition("/")[0],
    )
