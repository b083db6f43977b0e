"""The main function of an agent's process once its modules are loaded (`start` begins it): it reads the
document, makes the node's local engine, runs the agent until that ends, and removes its files."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainshed.core.names import ReplicaId
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.gangs import Begun
from trainshed.engines.local.options import Options
from trainshed.engines.local.spawner import ZygoteHandle
from trainshed.engines.port import ServiceAccess
from trainshed.engines.remote import first_start, messages, node_directory
from trainshed.engines.remote.agent import Agent
from trainshed.engines.remote.channel import ChannelClosed
from trainshed.engines.remote.dialer import Dialer
from trainshed.engines.remote.messages import AgentDocument, News, Order
from trainshed.engines.remote.reachability import own_address
from trainshed.engines.remote.scrubbing import Scrubber
from trainshed.eventloop.background import begin

if TYPE_CHECKING:
    from trainshed.engines.remote.opening import Opening

_TELLING = 20.0
"""Seconds within which the service is told why there will be no agent."""


def main(
    zygote: int,
    connection: socket.socket,
    document: "tuple[bytes, bytes]",
    opened: "Opening | None",
    *,
    begun: float,
) -> None:
    """Read the document, run the agent, remove its files. `zygote`: process id of the zygote, which
    `connection` leads to. `document`: its two parts (`messages.read_document`). `opened`: programs that were
    started before. `begun`: start of this process in seconds since the epoch."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    told = messages.read_document(*document)
    try:
        own, left = (opened.directory, opened.left) if opened else _own_place(told)
    except OSError as failure:
        # A job that waits for this node has to be told, which only the service can do.
        asyncio.run(_refuse(told, str(failure)))
        raise
    threading.Thread(target=node_directory.remove, args=(left,), daemon=True).start()
    programs = [
        Begun(told.job_uid, told.attempt, ReplicaId.parse(replica), plan, shim)
        for replica, plan, shim in (opened.programs if opened else ())
    ]
    is_forsaken = False
    try:
        is_forsaken = asyncio.run(
            _serve(
                told,
                Path(own),
                ZygoteHandle(zygote, connection),
                programs,
                leases=opened.leases if opened else {},
                begun=begun,
            )
        )
    finally:
        node_directory.remove([own])
    if is_forsaken and told.forsaken:
        # Nothing of the agent is needed any more, and this may take as long as the cluster is away.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.execv(told.forsaken[0], told.forsaken)


def _own_place(told: AgentDocument) -> tuple[str, list[str]]:
    """Make the agent's directory; return it, and the directories that killed agents left beside it. Raises
    OSError."""
    node_directory.require_user(told.user)
    name = node_directory.name_of(told.credential.name)
    node_directory.make_ours(told.directory)
    own, left = node_directory.own_directory(told.directory, name)
    for path, text, mode in first_start.certificates(told, Path(own)):
        path.touch(mode=0o600)
        path.write_text(text, "utf-8")
        path.chmod(mode)
    return own, left


async def _refuse(told: AgentDocument, why: str) -> None:
    """Tell the service why nothing can be run here."""
    dialer: Dialer[News, Order] = Dialer(told.credential, Order)
    with contextlib.suppress(OSError, ChannelClosed):
        async with asyncio.timeout(_TELLING):
            connection = await dialer.dial()
            await connection.send(
                messages.Hello(version=messages.VERSION, capabilities=None, failure=why)
            )
            # The service closes the connection once it has read that.
            await connection.receive()


async def _serve(
    document: AgentDocument,
    directory: Path,
    zygote: ZygoteHandle,
    programs: Sequence[Begun],
    *,
    leases: Mapping[str, int],
    begun: float,
) -> bool:
    """Run the agent. Returns whether it ended because its lease was over."""
    dialer: Dialer[News, Order] = Dialer(document.credential, Order)
    doors = first_start.doors(document, directory)
    for path in doors.values():
        path.parent.mkdir(mode=0o700, exist_ok=True)
    listening = [await dialer.listen(door, path) for door, path in doors.items()]
    access = first_start.access(document, directory)
    address = await asyncio.to_thread(
        own_address, document.address, (document.credential.host, document.credential.port)
    )
    engine = LocalEngine(directory, _options(document, access, address), zygote=zygote)
    scrubber = Scrubber(document, directory, begun) if document.alone and os.getpid() == 1 else None
    agent = Agent(document, engine, dialer, address, programs, leases=leases, scrubber=scrubber)
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


def _options(document: AgentDocument, access: ServiceAccess, address: str) -> Options:
    """Return the options of the node's local engine."""
    return Options(
        access=access,
        address=address,
        hosts_file=Path(document.hosts_file) if document.hosts_file else None,
        hidden=tuple(
            path
            for path in map(Path, document.hidden)
            if not document.user or node_directory.is_open(path)
        ),
        read_only=tuple(Path(path) for path in document.read_only),
        visible=tuple(Path(path) for path in document.visible),
        level=document.level,
        processes=document.processes,
        usage_every=document.usage_every,
        disk_enforced=document.disk_enforced,
        warm_idle=document.ready_idle,
        # After a power cut another agent is started, which removes this one's files.
        outlasts_power=False,
        # The same choice as of an earlier agent here, because peers were told its addresses.
        places=document.credential.name.rpartition("/")[0],
    )
