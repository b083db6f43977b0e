"""Declares the messages between an agent and its service (docs/adr/0061).

The service sends calls of the engine port for one attempt on one node. The agent answers each call once. It
reports events in order, as news. The bytes of a stream precede the news that announces them. Messages may be
repeated: on a new connection the agent repeats all its reports.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final

import msgspec

from trainshed.core.launch import LaunchPlan
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import (
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
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
"""Output of an agent's process after it has read its document."""


class AgentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The input of an agent's process. It contains secrets, so it is passed only on standard input."""

    credential: Credential
    job_uid: JobUid
    attempt: int
    #: The node's name in the cluster.
    node: str
    #: The user that the agent must run as; None = any.
    user: str | None = None
    #: The address at which peers reach the replicas; None = the source address of the agent's connections.
    address: str | None
    #: Parent directory of the agent's own directory on the node. The agent removes that when it ends.
    directory: str
    #: Seconds without contact to the service after which the agent ends its programs and exits (`lease`).
    lease: float
    rules: ProgramRules = ProgramRules()
    #: Directories that programs must not see.
    hidden: tuple[str, ...] = ()
    #: The service's cache directory, if the node has its own cache there; None = the node shares the
    #: service's cache.
    cache: str | None = None
    #: PEM with the key and the certificate chain with which endpoints intercept Google's hosts; None = no
    #: interception.
    interception: str | None = None
    #: PEM of the certificate authorities that programs trust if Google's hosts are intercepted.
    trust: str | None = None
    #: Names of the service's sockets for tunnels (`hub`).
    sockets: tuple[str, ...] = ()
    #: The hosts file that the agent may change because no other agent uses it, as in a Pod; None = the file
    #: is shared.
    hosts_file: str | None = None
    #: Grace period in seconds for programs after a SIGTERM from outside the service. The agent reports their
    #: ends. 0 = the agent ends at once, with its programs and without reports.
    grace: float = 0.0
    #: Command that the agent executes after its lease has expired and its programs have ended. The command
    #: releases the agent's allocation if no other agent uses the allocation. () = the allocation ends with
    #: the agent.
    release_command: tuple[str, ...] = msgspec.field(default=(), name="forsaken")


# --- sent by the service ---


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A call of the service. The `Answer` to it has the same number."""

    #: Identifies the call on its connection. It is set when the call is sent.
    number: int = 0


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The service's first message on each connection. `sizes`: bytes of the agent's streams that the service
    already has, by replica and file name. The agent sends the rest."""

    sizes: dict[str, dict[str, int]]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The acknowledgement of a `Beat`, with the same number."""

    number: int


class Allocate(Call, frozen=True, tag=True):
    """Allocate slots. The answer is `Slots`."""

    requests: tuple[SlotRequest, ...]


class Provide(Call, frozen=True, tag=True):
    """Fetch the content that later plans need. Sent only if nodes do not share the service's directories."""

    content: Manifest


class Launch(Call, frozen=True, tag=True):
    """Launch programs. `masked` and `lines` have one entry for each plan."""

    #: Plans with secrets inserted.
    plans: tuple[LaunchPlan, ...]
    #: Texts to mask in the program's log.
    masked: tuple[tuple[str, ...], ...]
    #: Number of the next line in the replica's log. It is not 0 if the replica was on another node before.
    lines: tuple[int, ...]


class Stop(Call, frozen=True, tag=True):
    """Stop all replicas on the node."""

    grace: int
    notice: StopNotice | None = None


class StopReplica(Call, frozen=True, tag=True):
    """Stop one incarnation."""

    replica: ReplicaId
    incarnation: int
    grace: int
    notice: StopNotice | None = None


class Inject(Call, frozen=True, tag=True):
    """Inject a fault into one incarnation."""

    replica: ReplicaId
    incarnation: int
    fault: Fault


class Hosts(Call, frozen=True, tag=True):
    """Send replicas the gang's addresses by hostname, after a replica has moved."""

    hosts: tuple[tuple[str, str], ...]


class WriteLog(Call, frozen=True, tag=True):
    """Append lines to a replica's log as if its program had printed them."""

    replica: ReplicaId
    lines: tuple[str, ...]


class OpenTerminal(Call, frozen=True, tag=True):
    """Open a shell in a live incarnation, whose input and output use a stream that the agent opens
    (`hub.expect`)."""

    replica: ReplicaId
    incarnation: int
    request: TerminalRequest
    #: The stream's name.
    stream: str


class Idle(Call, frozen=True, tag="Rest"):
    """Remove the files of the finished attempt, and wait for another attempt."""


class Adopt(Call, frozen=True, tag=True):
    """Become the agent of another attempt. Sent after `Idle`."""

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
    """The first message of each connection."""

    version: int
    #: Capabilities of the agent's local engine; None = unknown, because of `failure`.
    capabilities: Capabilities | None
    #: The reason why no program can run on the node. In this case, the agent sends no further message. None =
    #: programs can run.
    failure: str | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a call. `failure`: name of the engine port's exception, with its text in `message`; None
    = success."""

    number: int
    failure: str | None = None
    message: str = ""


class Slots(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Allocate`."""

    number: int
    slots: tuple[Slot, ...]


class Appended(msgspec.Struct, frozen=True, tag=True):
    """Bytes of a replica's stream. `offset`: their position in the stream's file."""

    replica: ReplicaId
    file: str
    offset: int
    data: bytes


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """News with times of the agent's clock, in ns since the epoch."""

    #: Time of the agent's clock when the message was sent; None = the message was not sent yet.
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
    """Total number of available lines in a replica's log."""

    replica: ReplicaId
    lines: int


class Metrics(msgspec.Struct, frozen=True, tag=True):
    """A new measurement of a trial's primary replica is available."""

    replica: ReplicaId


class Current(msgspec.Struct, frozen=True, tag=True):
    """The agent has repeated all reports from before this connection."""


class Ending(msgspec.Struct, frozen=True, tag=True):
    """The agent is ending: it ends its programs, starts no new ones, and then exits."""


class Beat(Timed, frozen=True, tag=True):
    """A heartbeat, sent several times within a lease. Its answer renews the lease."""

    number: int


AnyAnswer = Answer | Slots
"""Answers to a call, by its number."""

News = (
    Hello
    | AnyAnswer
    | Appended
    | Started
    | Exited
    | Lost
    | Noted
    | Lines
    | Metrics
    | Current
    | Ending
    | Beat
)
"""All messages of the agent."""


def launches(shown: Sequence[Revealed], lines: Mapping[ReplicaId, int]) -> Iterator[Launch]:
    """Yield the orders that launch these plans on a node. Each plan lists the whole gang, so large gangs need
    several messages. `lines`: see `Launch`."""
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
    """Return the standard input of an agent's process. The document is compressed, because Slurm forwards
    only a kilobyte at a time. A line with its size precedes it, because Kubernetes does not close the
    input."""
    data = zlib.compress(msgspec.msgpack.encode(document), level=1)
    return b"%d\n" % len(data) + data


def read_document(stream: IO[bytes]) -> AgentDocument:
    """Read the output of `write_document`. Raises EOFError if the input is incomplete because the sender was
    killed or cancelled, and ValueError if it is invalid."""
    line = stream.readline()
    try:
        size = int(line or b"0")
        data = stream.read(size)
        if not size or len(data) < size:
            raise EOFError("the agent's document is incomplete")
        return msgspec.msgpack.decode(zlib.decompress(data), type=AgentDocument)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"cannot read the agent's document: {error}") from error
