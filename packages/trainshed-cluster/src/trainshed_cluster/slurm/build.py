"""Builds the Slurm engine for a service, by the settings of `[engines.slurm]`."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainshed.engines.registry import EngineContext
from trainshed.engines.streams import FileStreams
from trainshed_cluster.remote.awaited import AwaitedCluster
from trainshed_cluster.remote.content.bootstrap import AGENT, AgentCode, Bootstrap
from trainshed_cluster.remote.content.extensions import Extensions
from trainshed_cluster.remote.content.library import Library
from trainshed_cluster.remote.credentials import Credential
from trainshed_cluster.remote.engine import RemoteEngine
from trainshed_cluster.remote.messages import AgentDocument
from trainshed_cluster.remote.options import (
    AgentCommand,
    Listening,
    RemoteOptions,
    engine_here,
    module_command,
    service_identity,
    service_sockets,
    told_to_agents,
)
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.cluster import SlurmCluster
from trainshed_cluster.slurm.settings import SlurmSettings, is_own, parse
from trainshed_cluster.slurm.users import look_up, node_directory

_OPENED = ("", "environments", "layers", "reduction")
"""Directories of the cache that other users may pass through. Never images: those hold set-user-id
programs."""
_CLOSED = "uv"
"""Directory of downloads, which jobs do not need; uv's lock files in it are writable for everybody."""


def new_engine(context: EngineContext) -> RemoteEngine:
    """Build the engine. Raises ValueError, which says what is wrong with the settings."""
    settings = parse(context.settings)
    if not all(map(is_own, settings.users.values())):
        _open_cache(context.cache)
    directory = context.data / "engines" / "slurm"
    identity = service_identity(context.data, directory)
    options = RemoteOptions(
        identity=identity,
        directory=directory,
        listening=Listening(settings.address, settings.port, service_sockets(context)),
        lease=settings.lease,
        agent=partial(_document, context, settings, cache(partial(told_to_agents, context))),
        command=_command(settings, Extensions(context.cache, directory / "extensions")),
        secrets=context.secrets,
        library=None if settings.shared else Library([context.cache], context.interpreters),
        keep=settings.keep,
        anywhere=settings.queue == "slurm",
    )
    return RemoteEngine(
        AwaitedCluster(SlurmCluster(settings, identity), "slurm"),
        FileStreams(context.data / "logs"),
        options,
        engine_here(context, directory / "here"),
    )


def _open_cache(cache: Path) -> None:
    """Give other users search permission on the cache's directories (`_OPENED`), so that they reach what they
    know the path of. Raises ValueError if the modes cannot be set."""
    modes = {**dict.fromkeys(_OPENED, 0o711), _CLOSED: 0o700}
    try:
        for name, mode in modes.items():
            place = cache / name
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(mode)
    except OSError as error:
        raise ValueError(
            f"[engines.slurm] users: the cache {cache} cannot be opened to them ({error}); name one that "
            "root may change here (--cache)"
        ) from error


def _document(
    context: EngineContext,
    settings: SlurmSettings,
    document: Callable[[], Mapping[str, Any]],
    *,
    node: str,
    user: str | None,
    credential: Credential,
    **own: Any,
) -> AgentDocument:
    """Compose an agent's document from what all agents are told and its own values."""
    return AgentDocument(
        node=node,
        user=user,
        credential=replace(credential, host=Listening(settings.address).dialled),
        directory=node_directory(settings, look_up(user) if user else None),
        cache=None if settings.shared else str(context.cache),
        forsaken=commands.give_back(str(Path(settings.command("scancel")).parent)),
        # `RemoteOptions.agent` lists the agent's own values.
        **{**document(), **own},
    )


def _command(settings: SlurmSettings, extensions: Extensions) -> Callable[[str], AgentCommand]:
    """Return how agents are started: from this package, where nodes see it; otherwise the code is sent along,
    which is read when the first agent is started."""

    def command(node: str) -> AgentCommand:
        if settings.shared:
            if settings.python:
                return AgentCommand((settings.python, "-m", AGENT))
            return module_command()
        # Without shared files all jobs run as the service's own user.
        python, directory = settings.python or "python3", node_directory(settings, None)
        made = Bootstrap(AgentCode.collect(extensions.files()), python, directory)
        return AgentCommand(made.argv, made.parcel)

    return command
