"""Builds the Kubernetes engine for a service, by the settings of `[engines.kubernetes]`."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

from trainshed.engines.registry import EngineContext
from trainshed.engines.streams import FileStreams
from trainshed_cluster.kubernetes.manifests import DIRECTORY, HOSTS_FILE, PYTHON
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse
from trainshed_cluster.remote.awaited import AwaitedCluster
from trainshed_cluster.remote.content.bootstrap import READ, AgentCode, Bootstrap
from trainshed_cluster.remote.content.extensions import Extensions
from trainshed_cluster.remote.content.library import EVERYBODYS, Library
from trainshed_cluster.remote.engine import RemoteEngine
from trainshed_cluster.remote.messages import AgentDocument
from trainshed_cluster.remote.options import (
    AgentCommand,
    Listening,
    RemoteOptions,
    engine_here,
    service_identity,
    service_sockets,
    told_to_agents,
)

_AGENTS: Final = f"{DIRECTORY}/agents"
"""Where an agent writes in its Pod."""
_WAIT = 60
"""Seconds for which a Pod's process waits for its document: one that nobody comes for, since the service was
killed just then, shall not be taken for an agent."""
_SCRIPT: Final = f"""\
import os,signal
signal.signal(signal.SIGALRM,lambda *_:(os.write(2,b'nobody said what to do\\n'),os._exit(78)))
signal.alarm({_WAIT})
{READ}
"""
"""What they run: what they are sent. As process 1 it would not even get a signal that it has no handler
for."""


def new_engine(context: EngineContext) -> RemoteEngine:
    """Build the engine. Raises ValueError, which says what is wrong with the settings."""
    settings = parse(context.settings)
    try:
        from trainshed_cluster.kubernetes.cluster import KubernetesCluster
    except ImportError as failure:
        raise ValueError(
            f"the engine kubernetes needs packages that are not installed ({failure.name}); install "
            "trainshed[kubernetes]"
        ) from failure
    directory = context.data / "engines" / "kubernetes"
    identity = service_identity(context.data, directory)
    options = RemoteOptions(
        identity=identity,
        directory=directory,
        listening=Listening(settings.address, settings.port, service_sockets(context)),
        lease=settings.lease,
        # A node that is only silent is waited for (`look.node_state`).
        down_is_lost=True,
        agent=partial(_document, context, settings, cache(partial(told_to_agents, context))),
        command=partial(_command, Extensions(context.cache, directory / "extensions")),
        secrets=context.secrets,
        library=Library([context.cache], context.interpreters),
        read_image=settings.registries.read,
        anywhere=settings.queue == "kueue",
        apart=True,
    )

    cluster = KubernetesCluster(
        settings,
        identity,
        command=entry(),
        cache=str(context.cache),
        beside=partial(_homes_of_pythons, context),
    )
    return RemoteEngine(
        AwaitedCluster(cluster, "kubernetes"),
        FileStreams(context.data / "logs"),
        options,
        engine_here(context, directory / "here"),
    )


def _homes_of_pythons(context: EngineContext) -> list[str]:
    """Return the directories of the Pythons that environments are built on, if not in the cache: Pods are
    sent them, too."""
    homes = {prefix.parent for prefix in context.interpreters() if str(prefix) not in EVERYBODYS}
    return sorted(str(home) for home in homes if not home.is_relative_to(context.cache))


def entry() -> tuple[str, ...]:
    return tuple(_bootstrap(AgentCode(b"", "")).argv)


def _bootstrap(code: AgentCode) -> Bootstrap:
    return Bootstrap(code, PYTHON, _AGENTS, script=_SCRIPT)


def _command(extensions: Extensions, node: str) -> AgentCommand:
    """Return how an agent is started. Blocks, the first time for seconds."""
    made = _bootstrap(AgentCode.collect(extensions.files()))
    return AgentCommand(made.argv, made.parcel)


def _document(
    context: EngineContext,
    settings: KubernetesSettings,
    document: Callable[[], Mapping[str, Any]],
    **own: Any,
) -> AgentDocument:
    """Compose an agent's document from what all agents are told and its own values."""
    own["address"] = None  # The agent has its Pod's address, not the node's.
    return AgentDocument(
        directory=_AGENTS,
        cache=str(context.cache),
        hosts_file=HOSTS_FILE,
        grace=settings.grace,
        # `RemoteOptions.agent` lists the agent's own values.
        **{**document(), **own},
    )
