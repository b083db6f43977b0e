"""What an operator, and the service, may choose about an engine of other machines."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from trainshed.engines.port import RegistryAccess, SecretSource
from trainshed.engines.remote.autopsies import CollectorOptions
from trainshed.engines.remote.content.library import Library
from trainshed.engines.remote.failed_starts import PAUSES
from trainshed.engines.remote.messages import AgentDocument
from trainshed.engines.remote.module_bundle import BEGIN, ModuleBundle


class AgentCommand(Struct, frozen=True):
    """How an agent's process is started."""

    argv: Sequence[str]
    #: From the agent's document, and what code is there, to all of the process's standard input.
    parcel: Callable[[bytes, str], bytes] = lambda document, has: document


class RemoteOptions(Struct, frozen=True, kw_only=True):
    """What an operator, and the service, may choose."""

    #: Tells this service from others that use the cluster.
    identity: str
    #: Where the engine's own files lie.
    directory: Path
    #: Seconds without a word of the service after which an agent ends its programs.
    lease: float
    #: The same once the service has said that it ends; no longer than `lease` = that.
    away: float = 0.0
    #: What runs on a node that the cluster gives up is lost at once, though it may live until its agent's
    #: lease is over.
    down_is_lost: bool = False
    #: What every agent is told; its credential, job, node, user (`Owner.user`) and address are filled in.
    agent: Callable[..., AgentDocument]
    #: How an agent is started on a node. It may block: all of the agents' code may have to be read.
    command: Callable[[str], AgentCommand]
    #: What launch plans refer to; None = they may name none.
    secrets: SecretSource | None = None
    #: Nodes of a gang have to reach each other before something is started there; the rest is in `agent`.
    preflight: bool = False
    #: Seconds for which a node is left alone whose preflight failed.
    quarantine: float = 3600.0
    #: The cluster chooses nodes: those that requests name are wishes.
    anywhere: bool = False
    #: Each replica has a hold and an agent of its own, also beside others on its node.
    apart: bool = False
    #: Of what failed replicas left.
    autopsies: CollectorOptions = field(default_factory=CollectorOptions)
    #: Seconds for which what an attempt held is kept for another one that needs the same; 0 = it is not, but
    #: for a retry; None = not for that either.
    keep: float | None = 0.0
    #: As `failed_starts.PAUSES`.
    start_pauses: Sequence[float] = PAUSES
    #: Seconds since the epoch.
    now: Callable[[], float] = time.time
    #: What nodes are sent that do not see the service's files; None = they see them.
    library: Library | None = None
    #: What a node was sent stays there for agents after the one that it was sent to.
    keeps_content: bool = False
    #: The cluster brings the container images of jobs; None = it does not.
    registry_access: RegistryAccess | None = None


def module_command(node: str, bundle: ModuleBundle | None = None) -> AgentCommand:
    """For nodes that see this Python and this package where they are here. `bundle`: its modules."""
    code = bundle.path() if bundle else ""
    return AgentCommand(
        (sys.executable, "-I", "-S", "-c", BEGIN, "trainshed-agent", code, *module_paths())
    )


def module_paths() -> list[str]:
    """Where this process looks for modules: to find site-packages again takes a tenth of an agent's start."""
    return [path for path in sys.path if Path(path).is_dir()]
