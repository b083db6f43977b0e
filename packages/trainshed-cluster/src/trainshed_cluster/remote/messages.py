"""Declares the messages between an agent and its service (docs/adr/0061).

The service sends orders for one attempt on one node. Most of them are calls of methods of the engine port,
and the agent answers each call once. The agent also sends news: it reports events in order. The bytes of a
stream precede the news that announces them. Messages may be repeated, because an agent repeats all its
reports on each new connection.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final

import msgspec

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import ReplicaExited, ReplicaLost, ReplicaNoted, ReplicaStarted
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.terminals import TerminalRequest
from trainshed.core.units import Nanos
from trainshed.engines.launch.documents import Revealed
from trainshed.engines.port import Capabilities, Fault, ProgramRules, Slot, SlotRequest
from trainshed_cluster.remote.channel import MAX_MESSAGE_BYTES
from trainshed_cluster.remote.content.manifest import Manifest
from trainshed_cluster.remote.credentials import Credential

VERSION = 4
"""Version of the protocol. It increases with each incompatible change."""
DOCUMENT_READ: Final = b"taken\n"
"""The line that an agent's process prints after it has read its startup data (`AgentDocument`)."""


class AgentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The startup data of an agent's process. It contains secrets, so it is passed only on standard input."""

    credential: Credential
    job_uid: JobUid
    attempt: int
    #: Name of the node in the cluster.
    node: str
    #: Name of the user that must run the agent; None = any user may.
    user: str | None = None
    #: The address at which other replicas reach the replicas of this agent; None = the source address of the
    #: agent's connections.
    address: str | None
    #: Directory on the node in which the agent creates its own directory. The agent removes its own directory
    #: when it ends.
    directory: str
    #: Seconds without contact to the service after which the agent ends its programs and exits (`lease`).
    lease: float
    rules: ProgramRules = ProgramRules()
    #: Directories that programs must not be able to read.
    hidden: tuple[str, ...] = ()
    #: The service's cache directory, if the node has its own cache at the same path; None = the node shares
    #: the service's cache.
    cache: str | None = None
    #: PEM with a key and a certificate chain, with which replicas' endpoints intercept connections to
    #: Google's hosts; None = they do not intercept.
    interception: str | None = None
    #: PEM with the certificate authorities that programs trust while Google's hosts are intercepted; None =
    #: no interception.
    trust: str | None = None
    #: Names of the service's Unix sockets to which the agent may open tunnels (`hub`).
    sockets: tuple[str, ...] = ()
    #: Path of the hosts file, if the agent may change it because no other agent uses it, as in a Pod; None =
    #: other agents share the file.
    hosts_file: str | None = None
    #: Grace period in seconds for programs after a SIGTERM from outside the service. The agent reports their
    #: ends. 0 = the agent ends at once, with its programs and without reports.
    grace: float = 0.0
    #: Command that the agent executes after it had no contact with the service for a whole lease and its
    #: programs have ended. The command releases the agent's allocation if no other agent uses the allocation.
    #: () = the allocation ends with the agent.
    release_command: tuple[str, ...] = msgspec.field(default=(), name="forsaken")


# --- sent by the service ---


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An order of the service that the agent answers. The `Answer` has the same number."""

    #: Identifies the call on its connection. It is set just before the call is sent.
    number: int = 0


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The service's first message on each connection. `sizes`: bytes of the agent's streams that the service
    already has, by replica and file name. The agent sends the rest."""

    sizes: dict[str, dict[str, int]]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Acknowledges a `Beat`, and has the same number."""

    number: int


class Allocate(Call, frozen=True, tag=True):
    """Allocate the slots (directories and addresses) of replicas. The agent answers with `Slots`."""

    requests: tuple[SlotRequest, ...]


class Provide(Call, frozen=True, tag=True):
    """Fetch the content (environments and other directories) that later launch plans need. Sent only if nodes
    do not share the service's files."""

    content: Manifest


class Launch(Call, frozen=True, tag=True):
    """Launch programs. `masked` and `lines` have one entry for each launch plan."""

    #: Launch plans in which secrets were inserted.
    plans: tuple[LaunchPlan, ...]
    #: By launch plan: texts to mask in the program's log, because they are secrets.
    masked: tuple[tuple[str, ...], ...]
    #: By launch plan: number of the next line in the replica's log. It is not 0 if the replica ran on another
    #: node before.
    lines: tuple[int, ...]


class Stop(Call, frozen=True, tag=True):
    """Stop all replicas on the node."""

    grace: int
    notice: StopNotice | None = None


class StopReplica(Call, frozen=True, tag=True):
    """Stop one run (incarnation) of a replica."""

    replica: ReplicaId
    incarnation: int
    grace: int
    notice: StopNotice | None = None


class Inject(Call, frozen=True, tag=True):
    """Inject a fault into one run (incarnation) of a replica."""

    replica: ReplicaId
    incarnation: int
    fault: Fault


class Hosts(Call, frozen=True, tag=True):
    """Send replicas the current addresses of all replicas by hostname, because a replica has moved."""

    hosts: tuple[tuple[str, str], ...]


class WriteLog(Call, frozen=True, tag=True):
    """Append lines to a replica's log as if its program had printed them."""

    replica: ReplicaId
    lines: tuple[str, ...]


class OpenTerminal(Call, frozen=True, tag=True):
    """Open a shell next to the running program of a replica. The agent opens a stream to the service for the
    shell's input and output (`hub.expect`)."""

    replica: ReplicaId
    incarnation: int
    request: TerminalRequest
    #: The stream's name.
    stream: str


class Idle(Call, frozen=True, tag="Rest"):
    """Remove the files of the finished attempt, and wait until another attempt adopts the agent."""


class Adopt(Call, frozen=True, tag=True):
    """Become the agent of another attempt. Sent only after `Idle`."""

    job_uid: JobUid
    attempt: int
    #: See `Welcome`.
    sizes: dict[str, dict[str, int]]


class Shutdown(Call, frozen=True, tag="Leave"):
    """Remove the files of the finished attempt, and exit."""


AnyCall = (
    Allocate
    | Provide
    | Launch
    | Stop
    | StopReplica
    | Inject
    | Hosts
    | WriteLog
    | OpenTerminal
    | Idle
    | Adopt
    | Shutdown
)
"""All calls of the service."""

Order = Welcome | Alive | AnyCall
"""All messages of the service."""


# --- sent by the agent ---


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The agent's first message on each connection."""

    version: int
    #: Capabilities of the agent's local engine; None = unknown, because `failure` is set.
    capabilities: Capabilities | None
    #: Why no program can run on the node; None = programs can run. After a message with a failure, the agent
    #: sends no further messages.
    failure: str | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a call. `failure`: the name of an exception of the engine port, whose text is in
    `message`; None = the call succeeded."""

    number: int
    failure: str | None = None
    message: str = ""


class Slots(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Allocate`."""

    number: int
    slots: tuple[Slot, ...]


class Appended(msgspec.Struct, frozen=True, tag=True):
    """Bytes that were appended to a file of a replica's stream. `offset`: position of the first byte in the
    file."""

    replica: ReplicaId
    file: str
    offset: int
    data: bytes


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """News that contains times of the agent's clock, in ns since the epoch."""

    #: Time of the agent's clock when it sent the message; None = it was not sent yet.
    clock: Nanos | None = None


class Started(Timed, frozen=True, tag=True):
    event: ReplicaStarted


class Exited(Timed, frozen=True, tag=True):
    event: ReplicaExited


class Lost(Timed, frozen=True, tag=True):
    event: ReplicaLost


class Noted(Timed, frozen=True, tag=True):
    event: ReplicaNoted


class Lines(msgspec.Struct, frozen=True, tag=True):
    """The total number of lines that are available in a replica's log."""

    replica: ReplicaId
    lines: int


class Metrics(msgspec.Struct, frozen=True, tag=True):
    """The primary replica of a trial has written a new measurement."""

    replica: ReplicaId


class Current(msgspec.Struct, frozen=True, tag=True):
    """The agent has now repeated all reports from before this connection."""


class Ending(msgspec.Struct, frozen=True, tag=True):
    """The agent is ending: it ends its programs, starts no further programs, and will then exit."""


class Beat(Timed, frozen=True, tag=True):
    """A heartbeat, which the agent sends several times per lease. The service's answer renews the lease,
    after which an agent without contact ends its programs."""

    number: int


AnyAnswer = Answer | Slots
"""Answers to a call, by its number."""

News = (
    Hello | AnyAnswer | Appended | Started | Exited | Lost | Noted | Lines | Metrics | Current | Ending | Beat
)
"""All messages of the agent."""


def launches(shown: Sequence[Revealed], lines: Mapping[ReplicaId, int]) -> Iterator[Launch]:
    """Yield the orders that launch these programs on a node. For large gangs, the launch plans are split into
    several orders, because each plan lists the whole gang. `lines`: see `Launch`."""
    pieces: list[list[Revealed]] = [[]]
    size = 0
    for item in shown:
        length = len(msgspec.msgpack.encode(item))
        if pieces[-1] and size + length > MAX_MESSAGE_BYTES // 2:
            pieces.append([])
            size = 0
        pieces[-1].append(item)
        size += length
    for piece in pieces:
        plans, masked = zip(*piece, strict=True)
        yield Launch(plans=plans, masked=masked, lines=tuple(lines[plan.replica] for plan in plans))


def write_document(document: AgentDocument) -> bytes:
    """Return the data for the standard input of an agent's process. It consists of a line with the size of
    the rest, because Kubernetes does not close the input, and of the agent's startup data (`document`). The
    document is compressed, because Slurm forwards only a kilobyte at a time."""
    data = zlib.compress(msgspec.msgpack.encode(document), level=1)
    return b"%d\n" % len(data) + data


def read_document(stream: IO[bytes]) -> AgentDocument:
    """Read an agent's startup data, as `write_document` encodes it. Raises EOFError if the input is
    incomplete, because its sender was killed or cancelled. Raises ValueError if the document is invalid."""
    line = stream.readline()
    try:
        size = int(line or b"0")
        data = stream.read(size)
        if not size or len(data) < size:
            raise EOFError("the agent's startup document is incomplete")
        return msgspec.msgpack.decode(zlib.decompress(data), type=AgentDocument)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"cannot read the agent's startup document: {error}") from error
