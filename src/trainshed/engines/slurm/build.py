"""Builds the Slurm engine for a service, by the settings of `[engines.slurm]`."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from trainshed.engines.local import machine
from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.local.spawner import ZygoteHandle
from trainshed.engines.registry import EngineContext
from trainshed.engines.remote.agents import Agents
from trainshed.engines.remote.autopsies import CollectorOptions
from trainshed.engines.remote.content.bootstrap import AGENT, AgentCode, Bootstrap
from trainshed.engines.remote.content.library import Library
from trainshed.engines.remote.credentials import Issuer
from trainshed.engines.remote.engine import PORT, RemoteEngine
from trainshed.engines.remote.hub import Hub
from trainshed.engines.remote.messages import AgentDocument, News, Order
from trainshed.engines.remote.options import RemoteOptions, module_command
from trainshed.engines.slurm.cluster import SlurmCluster
from trainshed.engines.slurm.settings import SlurmSettings, parse
from trainshed.engines.streams import FileStreams


def new_engine(context: EngineContext) -> RemoteEngine:
    """Raises ValueError: what is wrong with the settings."""
    settings = parse(context.settings)
    directory = context.data / "engines" / "slurm"
    identity = machine.identity(context.data)
    doors = {
        door: path
        for door, path in (
            ("buckets", context.access.storage_socket),
            ("rest", context.access.rest_socket),
            ("grpc", context.access.grpc_socket),
        )
        if path is not None
    }
    options = RemoteOptions(
        identity=identity,
        directory=directory,
        lease=settings.lease,
        agent=partial(_document, context, settings, tuple(doors)),
        command=_shared_command(settings) if settings.shared else _sent_along(settings),
        secrets=context.secrets,
        library=None if settings.shared else Library([context.cache], context.interpreters),
        preflight=settings.preflight,
        quarantine=settings.quarantine_minutes * 60,
        autopsies=CollectorOptions(
            round(settings.autopsy_size * 2**30), nodes_directory=settings.node_directory
        ),
    )

    def new_hub(agents: Agents) -> Hub[Order, News]:
        return Hub(
            Issuer.open(directory / "authority", time.time),
            host=settings.host,
            port=settings.port or _last_port(directory),
            received=News,
            doors=doors,
            admits=agents.admits,
            serve=agents.serve,
            introduction=agents.may_introduce,
            content=None if settings.shared else agents.send_content,
            dialled=settings.service_address,
        )

    zygote = context.zygote if isinstance(context.zygote, ZygoteHandle) else None
    here = Options(
        hidden=context.hidden,
        visible=context.rules.visible,
        level=context.rules.isolation,
        keeping=Keeping(context.rules.autopsy_ttl, context.rules.autopsy_limit),
        now=context.now,
    )
    return RemoteEngine(
        SlurmCluster(settings, identity),
        FileStreams(context.data / "logs"),
        options,
        new_hub,
        here=LocalEngine(directory / "here", here, zygote=zygote),
    )


def _document(
    context: EngineContext, settings: SlurmSettings, doors: tuple[str, ...], **own: object
) -> AgentDocument:
    """What all agents are told, and what is one's own."""
    return AgentDocument(
        directory=settings.node_directory,
        level=context.rules.isolation,
        processes=context.rules.max_processes,
        usage_every=context.rules.usage_every,
        disk_enforced=context.rules.enforce_disk,
        hidden=tuple(map(str, context.hidden)),
        visible=tuple(map(str, context.rules.visible)),
        interception=_text(context.access.certificate),
        trust=_text(context.access.trust),
        doors=doors,
        cache="" if settings.shared else str(context.cache),
        cache_limit=0 if settings.shared else round(settings.cache_limit * 2**30),
        preflight=settings.preflight,
        **own,  # pyright: ignore[reportArgumentType] `RemoteOptions.agent` says which
    )


Command = Callable[[bytes], tuple[Sequence[str], bytes]]


def _shared_command(settings: SlurmSettings) -> Command:
    """For nodes that see this package where it is here."""
    if not settings.python:
        return module_command
    return lambda document: ((settings.python, "-m", AGENT), document)


def _sent_along(settings: SlurmSettings) -> Command:
    """For nodes that have nothing of ours but a Python. The code is read when the first agent is started."""
    python = settings.python or "python3"
    made: list[Bootstrap] = []

    def command(document: bytes) -> tuple[Sequence[str], bytes]:
        if not made:
            made.append(Bootstrap(AgentCode.collect(), python, settings.node_directory))
        return made[0].parcel(document)

    return command


def _text(path: Path | None) -> str:
    return path.read_text("utf-8") if path is not None and path.exists() else ""


def _last_port(directory: Path) -> int:
    """Where agents of jobs that run will call; 0 = nowhere yet."""
    try:
        return int((directory / PORT).read_text())
    except (FileNotFoundError, ValueError):
        return 0
