"""What an agent and its service say to each other on their control connection (docs/adr/0061).

The service makes calls, which are those of the engine port for one attempt on one node; each is answered
once. What the agent sees comes as news, in its order, and before it the bytes of streams that the news makes
readable. Both sides may repeat anything: after a new connection the agent tells all that it knows again.
"""

import functools
import zlib

import msgspec

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.replica_events import (
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import TerminalRequest
from trainshed.core.units import Bytes, Nanos
from trainshed.engines.port import Capabilities, Fault, Slot, SlotRequest
from trainshed.engines.remote.content.manifest import Manifest
from trainshed.engines.remote.credentials import Credential

VERSION = 2
"""Raised when one side could not understand the other any more."""


class AgentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All that an agent is started with. It holds secrets: it is given on standard input alone."""

    credential: Credential
    job_uid: JobUid
    attempt: int
    #: The node, as the cluster calls it.
    node: str
    #: The user as whom it has to run there; "" = whoever it is.
    user: str = ""
    #: The node's address by which others reach the replicas there; "" = the one by which the agent reaches
    #: the service.
    address: str
    #: Directory on the node in which it makes one of its own, and removes it.
    directory: str
    #: Seconds without a word of the service after which it ends its programs, and itself (`lease`).
    lease: float
    #: Sandbox level that is demanded; "" = the strongest that works there.
    level: str = ""
    #: How many processes a replica may have; 0 = any number.
    processes: int = 0
    #: Seconds between two looks at what a replica uses; 0 = nobody looks.
    usage_every: float = 0.0
    #: A replica whose files take more than its disk is ended.
    disk_enforced: bool = False
    #: Directories that programs must not see.
    hidden: tuple[str, ...] = ()
    #: What programs may only read, shown even inside hidden ones.
    read_only: tuple[str, ...] = ()
    #: Likewise, by the operator's wish.
    visible: tuple[str, ...] = ()
    #: The service's cache directory, where the node does not see it; "" = it does.
    cache: str = ""
    #: Bytes of what the node keeps of it, beyond which what was not used for longest goes; 0 = any number.
    cache_limit: Bytes = 0
    #: PEM, key and chain, by which Google's hosts are served to programs; "" = they are not.
    interception: str = ""
    #: PEM of the authorities that programs are to believe then.
    trust: str = ""
    #: A file of the node's in which that is already; "" = the agent makes one.
    trust_file: str = ""
    #: Which of the service's sockets are reached through tunnels (`hub`).
    doors: tuple[str, ...] = ()
    #: The node is looked at before it gives out slots (`preflight`).
    preflight: bool = False
    #: The node's hosts file, where the agent has the node to itself, as a Pod; "" = others use it as well.
    hosts_file: str = ""
    #: Directories of file systems that it shares with the service (`shared_files`).
    shared: tuple[str, ...] = ()
    #: Seconds that programs get when the agent is asked to end by others than the service (SIGTERM); their
    #: ends are told then. 0 = it ends at once, and its programs with it.
    grace: float = 0.0
    #: Directory below which all is its own, `/` in a Pod: between two attempts it leaves nothing there
    #: (`scrubbing`). "" = it shares its node.
    alone: str = ""
    #: Directories there that hold what agents were sent, whichever attempt it is for.
    kept: tuple[str, ...] = ()
    #: Seconds without a program after which an interpreter that is up for programs to come ends; 0 = none is.
    ready_idle: float = 0.0


# --- what the service says ---


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One that is answered by an `Answer` of the same number."""

    number: int


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The first word of each connection: what the service has of the agent's streams, by replica and file
    name, in bytes. All else it is to be sent."""

    sizes: dict[str, dict[str, int]]
    #: The service's clock, in seconds since the epoch; 0 = it is not told.
    clock: float = 0.0
    #: As in `AgentDocument`, from now on; 0 = as it was.
    lease: float = 0.0


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The answer to each `Beat`, by its number."""

    number: int


class Allocate(Call, frozen=True, tag=True):
    """Answered by `Slots`."""

    requests: tuple[SlotRequest, ...]


class Provide(Call, frozen=True, tag=True):
    """What plans that follow will need of the service's directories, where nodes do not see those."""

    content: Manifest


class Launch(Call, frozen=True, tag=True):
    """Each of three has one entry for each plan, in their order."""

    #: Secrets are in them already.
    plans: tuple[LaunchPlan, ...]
    #: Texts that must not get into its log.
    masked: tuple[tuple[str, ...], ...]
    #: The number of its log's next line, for a replica that was elsewhere before.
    lines: tuple[int, ...]


class Stop(Call, frozen=True, tag=True):
    """All replicas on the node."""

    grace: int


class StopReplica(Call, frozen=True, tag=True):
    """One incarnation."""

    replica: ReplicaId
    incarnation: int
    grace: int


class Inject(Call, frozen=True, tag=True):
    """Do a fault to one incarnation."""

    replica: ReplicaId
    incarnation: int
    fault: Fault


class DropReducers(Call, frozen=True, tag=True):
    """These HOST:PORT will not come back."""

    places: tuple[str, ...]


class Hosts(Call, frozen=True, tag=True):
    """Where each of the gang is found now, by hostname: a replica has moved."""

    hosts: tuple[tuple[str, str], ...]


class WriteLog(Call, frozen=True, tag=True):
    """Lines as if the replica's program had printed them."""

    replica: ReplicaId
    lines: tuple[str, ...]


class OpenTerminal(Call, frozen=True, tag=True):
    """A shell beside a live incarnation, carried on a stream that the agent opens (`hub.expect`)."""

    replica: ReplicaId
    incarnation: int
    request: TerminalRequest
    #: The stream's name.
    stream: str


class SendFiles(Call, frozen=True, tag=True):
    """What a replica left that has failed, as a tar on a stream that the agent opens (`hub.expect`); nothing
    of it lives. Answered by `FilesAt`, before they are sent."""

    replica: ReplicaId
    #: The stream's name.
    stream: str
    #: Bytes that are taken at most: more are not sent at all.
    limit: int


class Listen(Call, frozen=True, tag=True):
    """For a moment, and tell whoever connects the word. Answered by `Listening`."""

    word: str


class Reach(Call, frozen=True, tag=True):
    """Connect to each of these, who know the word. Answered by `Reached`."""

    places: tuple[tuple[str, int], ...]
    word: str


class Rest(Call, frozen=True, tag=True):
    """Nothing lives there any more: remove what is left, and wait for another attempt. Refused by one that
    is alone there if something is left that it cannot remove."""


class Adopt(Call, frozen=True, tag=True):
    """Be the agent of another attempt, after `Rest`."""

    job_uid: JobUid
    attempt: int
    #: As in `Welcome`.
    sizes: dict[str, dict[str, int]]


class Away(Call, frozen=True, tag=True):
    """The service is about to end, as it should. For so many seconds nothing of what runs there begins
    elsewhere, though nothing is heard of it."""

    seconds: float


class Leave(Call, frozen=True, tag=True):
    """Nothing lives there any more: remove what is left, and end."""


AnyCall = (
    Allocate
    | Provide
    | Launch
    | Stop
    | StopReplica
    | Inject
    | DropReducers
    | Hosts
    | WriteLog
    | OpenTerminal
    | SendFiles
    | Listen
    | Reach
    | Rest
    | Adopt
    | Away
    | Leave
)
"""All that a service asks for."""

Order = (
    Welcome
    | Alive
    | Allocate
    | Provide
    | Launch
    | Stop
    | StopReplica
    | Inject
    | DropReducers
    | Hosts
    | WriteLog
    | OpenTerminal
    | SendFiles
    | Listen
    | Reach
    | Rest
    | Adopt
    | Away
    | Leave
)
"""All that a service says."""


# --- what the agent says ---


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What programs are started by on a node, as long as it is not booted again (`first_start`)."""

    boot: str
    #: Sandbox level.
    level: str
    #: By which others reach it.
    address: str
    #: As in `launch.documents.SharedPaths`, without what is an agent's own.
    hidden: tuple[str, ...]
    read_only: tuple[str, ...]
    visible: tuple[str, ...]
    ambient: dict[str, str]
    commands: str


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first word of each connection."""

    version: int
    #: None = they are not known, because of `failure`.
    capabilities: Capabilities | None
    #: Why nothing can be run there; "" = it can. Then this is its last word.
    failure: str = ""
    #: None = programs are not started there before agents.
    facts: NodeFacts | None = None
    #: After `Rest` nothing is left of what ran there; it refuses that otherwise.
    scrubs: bool = False


class Answer(msgspec.Struct, frozen=True, tag=True):
    """To a call. `failure`: "" = it was done; else the name of what the port raises, `message` what it
    says."""

    number: int
    failure: str = ""
    message: str = ""


class Slots(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Allocate`."""

    number: int
    slots: tuple[Slot, ...]


class FilesAt(msgspec.Struct, frozen=True, tag=True):
    """The answer to `SendFiles`."""

    number: int
    #: Where the program had its files, on the node.
    path: str


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Listen`: where."""

    number: int
    address: str
    port: int


class Reached(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Reach`: for each place why it was not; "" = it was."""

    number: int
    failures: tuple[str, ...]


class Appended(msgspec.Struct, frozen=True, tag=True):
    """Bytes of a replica's stream, which stand in the file from `offset` on. `anew`: the file is another one
    than before, and begins here."""

    replica: ReplicaId
    file: str
    offset: int
    data: bytes
    anew: bool = False


class Started(msgspec.Struct, frozen=True, tag=True):
    event: ReplicaStarted


class Exited(msgspec.Struct, frozen=True, tag=True):
    event: ReplicaExited


class Lost(msgspec.Struct, frozen=True, tag=True):
    event: ReplicaLost


class Noted(msgspec.Struct, frozen=True, tag=True):
    event: ReplicaNoted


class SharedFiles(msgspec.Struct, frozen=True, tag=True):
    """What the node shares with the service does not answer, or answers again. Moments in ns since the
    epoch."""

    #: Since when it was asked in vain.
    since: Nanos
    #: When it answered; 0 = it has not yet.
    until: Nanos = 0


class Lines(msgspec.Struct, frozen=True, tag=True):
    """So many lines of a replica can be read."""

    replica: ReplicaId
    lines: int


class Metrics(msgspec.Struct, frozen=True, tag=True):
    """Something that a trial's primary has measured can be read."""

    replica: ReplicaId


class Current(msgspec.Struct, frozen=True, tag=True):
    """All that was known before this connection has been told."""


class Ending(msgspec.Struct, frozen=True, tag=True):
    """The service was silent for a whole lease: what runs there is ended, nothing more is begun, and then the
    agent ends as well."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """It lives. Said several times within a lease, which is renewed when that is answered."""

    number: int


AnyAnswer = Answer | Slots | FilesAt | Listening | Reached
"""To a call, by its number."""

News = (
    Hello
    | Answer
    | Slots
    | FilesAt
    | Listening
    | Reached
    | Appended
    | Started
    | Exited
    | Lost
    | Noted
    | SharedFiles
    | Lines
    | Metrics
    | Current
    | Ending
    | Beat
)
"""All that an agent says."""


def read_document(data: bytes, trust: bytes = b"") -> AgentDocument:
    """Of the parts that `opening.read` finds. Raises ValueError."""
    try:
        document = msgspec.msgpack.decode(data, type=AgentDocument)
        return msgspec.structs.replace(document, trust=trust.decode())
    except msgspec.MsgspecError as error:
        raise ValueError(f"the agent's document cannot be read: {error}") from error


def write_document(document: AgentDocument, first: bytes = b"") -> bytes:
    """The standard input of an agent's process, but for its last line (`opening.BEGIN`). `first`: what is to
    be begun before the agent is loaded; it comes before the document. Both are compressed, since Slurm
    carries a kilobyte at a time, and apart from them what programs trust, which is large and the same for
    all; before them is a line with the sizes of the first, of what `first` is in it, and of the second."""
    trust = _compressed(document.trust) if document.trust else b""
    own = msgspec.structs.replace(document, trust="")
    data = zlib.compress(first + msgspec.msgpack.encode(own))
    return b"%d %d %d\n" % (len(data), len(first), len(trust)) + data + trust


@functools.lru_cache(maxsize=2)
def _compressed(text: str) -> bytes:
    return zlib.compress(text.encode())
