"""Builds the Slurm engine of a service from the settings `[engines.slurm]`."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from trainshed.engines.registry import EngineContext
from trainshed.engines.streams import FileStreams
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
    agent_settings,
    engine_here,
    module_command,
    service_identity,
    service_sockets,
)
from trainshed_cluster.remote.retrying_cluster import RetryingCluster
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.cluster import SlurmCluster
from trainshed_cluster.slurm.settings import SlurmSettings, is_own, parse
from trainshed_cluster.slurm.users import look_up, node_directory

_OPEN_DIRECTORIES = ("", "environments", "layers", "reduction")
"""Directories of the cache that other users may enter. Images must not be included, because they contain
set-user-ID programs."""
_PRIVATE_DIRECTORY = "uv"
"""The cache's directory of downloads. Other users may not enter it, because jobs do not need it and uv's lock
files in it are writable for all users."""


def new_engine(context: EngineContext) -> RemoteEngine:
    """Build the engine. Raises ValueError with the errors in the settings."""
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
        agent=partial(_document, context, settings, cache(partial(agent_settings, context))),
        command=_command(settings, Extensions(context.cache, directory / "extensions")),
        secrets=context.secrets,
        library=None if settings.shared else Library([context.cache], context.interpreters),
        keep=settings.keep,
        anywhere=settings.queue == "slurm",
    )
    return RemoteEngine(
        RetryingCluster(SlurmCluster(settings, identity), "slurm"),
        FileStreams(context.data / "logs"),
        options,
        engine_here(context, directory / "here"),
    )


def _open_cache(cache: Path) -> None:
    """Give other users search permission on the cache's `_OPEN_DIRECTORIES`. These users can then open a path
    that they know, but cannot list the directories. Raises ValueError if the permissions cannot be set."""
    modes = {**dict.fromkeys(_OPEN_DIRECTORIES, 0o711), _PRIVATE_DIRECTORY: 0o700}
    try:
        for name, mode in modes.items():
            place = cache / name
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(mode)
    except OSError as error:
        raise ValueError(
            f"[engines.slurm] users: cannot make the cache {cache} accessible to these users ({error}); "
            "use a cache that root may change on this machine (--cache)"
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
    """Create an agent's startup data (its document). `document`: returns the fields that are the same for all
    agents. `own`: the fields of this agent."""
    return AgentDocument(
        node=node,
        user=user,
        credential=replace(credential, host=Listening(settings.address).dialed_host),
        directory=node_directory(settings, look_up(user) if user else None),
        cache=None if settings.shared else str(context.cache),
        release_command=commands.release_command(str(Path(settings.command("scancel")).parent)),
        # `own` contains the values that the comment of `RemoteOptions.agent` lists.
        **{**document(), **own},
    )


def _command(settings: SlurmSettings, extensions: Extensions) -> Callable[[str], AgentCommand]:
    """Return a function that returns the command to start an agent on a node. If nodes share the service's
    files, the command runs this package. Otherwise the service sends the agents' code to the nodes. The
    service reads this code when the first agent starts."""

    def command(node: str) -> AgentCommand:
        if settings.shared:
            if settings.python:
                return AgentCommand((settings.python, "-m", AGENT))
            return module_command()
        # Without shared files, all jobs run as the service's own user, so the directory is the same for all.
        python, directory = settings.python or "python3", node_directory(settings, None)
        made = Bootstrap(AgentCode.collect(extensions.files()), python, directory)
        return AgentCommand(made.argv, made.parcel)

    return command
