"""Builds the Kubernetes engine of a service from the settings `[engines.kubernetes]`."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final

from trainshed.engines.registry import EngineContext
from trainshed.engines.streams import FileStreams
from trainshed_cluster.kubernetes.manifests import DIRECTORY, HOSTS_FILE, PYTHON
from trainshed_cluster.kubernetes.settings import KubernetesSettings, parse
from trainshed_cluster.remote.content.bootstrap import READ, AgentCode, Bootstrap
from trainshed_cluster.remote.content.extensions import Extensions
from trainshed_cluster.remote.content.library import SHARED_PREFIXES, Library
from trainshed_cluster.remote.engine import RemoteEngine
from trainshed_cluster.remote.messages import AgentDocument
from trainshed_cluster.remote.options import (
    AgentCommand,
    Listening,
    RemoteOptions,
    agent_settings,
    engine_here,
    service_identity,
    service_sockets,
)
from trainshed_cluster.remote.retrying_cluster import RetryingCluster

_AGENT_DIRECTORY: Final = f"{DIRECTORY}/agents"
"""Directory in a Pod for its agent's files."""
_DOCUMENT_TIMEOUT = 60
"""Seconds after which a Pod's process exits if it has not received the startup data of its agent (the
document), for example because the service was killed. Otherwise the service would treat the waiting process
as a running agent."""
_SCRIPT: Final = f"""\
import os,signal
signal.signal(signal.SIGALRM,lambda *_:(os.write(2,b'received no document\\n'),os._exit(78)))
signal.alarm({_DOCUMENT_TIMEOUT})
{READ}
"""
"""Code for `python -c` that reads and executes an agent's input (`Bootstrap.parcel`). It exits if no input
arrives within `_DOCUMENT_TIMEOUT`. It handles SIGALRM itself, because the kernel ignores a signal to process
1 that has no handler."""


def new_engine(context: EngineContext) -> RemoteEngine:
    """Build the engine. Raises ValueError with the errors in the settings."""
    settings = parse(context.settings)
    try:
        from trainshed_cluster.kubernetes.cluster import KubernetesCluster
    except ImportError as failure:
        raise ValueError(
            f"the engine kubernetes needs packages that are not installed ({failure.name}): pip install "
            "'trainshed[kubernetes]'"
        ) from failure
    directory = context.data / "engines" / "kubernetes"
    identity = service_identity(context.data, directory)
    options = RemoteOptions(
        identity=identity,
        directory=directory,
        listening=Listening(settings.address, settings.port, service_sockets(context)),
        lease=settings.lease,
        # Programs on a node that is GONE count as lost at once. A silent node is an exception:
        # `states.node_state` reports that its programs may still run, so they count as lost only when their
        # agents have been silent for a whole lease (a setting, in seconds).
        down_is_lost=True,
        agent=partial(_document, context, settings, cache(partial(agent_settings, context))),
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
        command=pod_command(),
        cache=str(context.cache),
        beside=partial(_interpreter_directories, context),
    )
    return RemoteEngine(
        RetryingCluster(cluster, "kubernetes"),
        FileStreams(context.data / "logs"),
        options,
        engine_here(context, directory / "here"),
    )


def _interpreter_directories(context: EngineContext) -> list[str]:
    """Return the directories of Python interpreters that are outside the cache and that environments use.
    Pods receive these directories in addition to the cache."""
    directories = {prefix.parent for prefix in context.interpreters() if str(prefix) not in SHARED_PREFIXES}
    return sorted(str(home) for home in directories if not home.is_relative_to(context.cache))


def pod_command() -> tuple[str, ...]:
    return tuple(_bootstrap(AgentCode(b"", "")).argv)


def _bootstrap(code: AgentCode) -> Bootstrap:
    return Bootstrap(code, PYTHON, _AGENT_DIRECTORY, script=_SCRIPT)


def _command(extensions: Extensions, node: str) -> AgentCommand:
    """Return the command that starts an agent. The first call blocks for several seconds, because it fetches
    and packs the agents' code."""
    made = _bootstrap(AgentCode.collect(extensions.files()))
    return AgentCommand(made.argv, made.parcel)


def _document(
    context: EngineContext,
    settings: KubernetesSettings,
    document: Callable[[], Mapping[str, Any]],
    **own: Any,
) -> AgentDocument:
    """Create an agent's startup data (its document). `document`: returns the fields that are the same for all
    agents. `own`: the fields of this agent."""
    own["address"] = None  # The agent uses its Pod's address, not the node's.
    return AgentDocument(
        directory=_AGENT_DIRECTORY,
        cache=str(context.cache),
        hosts_file=HOSTS_FILE,
        grace=settings.grace,
        # `own` contains the values that the comment of `RemoteOptions.agent` lists.
        **{**document(), **own},
    )
