"""Declares the messages of an agent and its service on their control connection (docs/adr/0061).

The service makes calls, which are those of the engine port for one attempt on one node; each is answered
once. The agent reports what it sees as news, in order, each after the bytes of streams that it announces.
Both sides may repeat anything: on a new connection the agent reports all that it knows again.
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
from trainshed_cluster.remote.channel import LONGEST
from trainshed_cluster.remote.content.manifest import Manifest
from trainshed_cluster.remote.credentials import Credential

VERSION = 4
"""Raised when one side could not understand the other any more."""
TAKEN: Final = b"taken\n"
"""What an agent's process writes to its standard output once it has read its document."""


class AgentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an agent is started with. It contains secrets, so that it is only passed on standard
    input."""

    credential: Credential
    job_uid: JobUid
    attempt: int
    #: The cluster's name of the node.
    node: str
    #: The user as whom it has to run there; None = any.
    user: str | None = None
    #: The node's address by which peers reach the replicas there; None = the one by which the agent reaches
    #: the service.
    address: str | None
    #: Directory on the node in which it makes its own, which it removes at its end.
    directory: str
    #: Seconds without contact to the service after which it ends its programs and itself (`lease`).
    lease: float
    rules: ProgramRules = ProgramRules()
    #: Directories that programs must not see.
    hidden: tuple[str, ...] = ()
    #: The service's cache directory, where the node does not see it; None = it does.
    cache: str | None = None
    #: PEM with the key and chain that endpoints show for Google's hosts; None = those are not served.
    interception: str | None = None
    #: PEM of the authorities that programs trust in that case.
    trust: str | None = None
    #: Names of the service's sockets to which tunnels lead (`hub`).
    sockets: tuple[str, ...] = ()
    #: The node's hosts file, where the agent has the node to itself, as a Pod; None = others use it as well.
    hosts_file: str | None = None
    #: Grace period in seconds of programs when the agent gets SIGTERM from something other than the service;
    #: their ends are then reported. 0 = it ends at once, and its programs with it.
    grace: float = 0.0
    #: Command that the agent becomes when its lease is over and it has ended everything: it gives the
    #: agent's hold back if no other agent has it. () = the hold ends with the agent.
    forsaken: tuple[str, ...] = ()


# --- what the service says ---


class Call(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A call of the service, answered by an `Answer` of the same number."""

    #: Set when it is sent.
    number: int = 0


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """The service's first message on each connection. `sizes`: bytes that it has of the agent's streams, by
    replica and file name; the agent sends the rest."""

    sizes: dict[str, dict[str, int]]


class Alive(msgspec.Struct, frozen=True, tag=True):
    """The answer to a `Beat`, with its number."""

    number: int


class Allocate(Call, frozen=True, tag=True):
    """Allocate slots; answered by `Slots`."""

    requests: tuple[SlotRequest, ...]


class Provide(Call, frozen=True, tag=True):
    """Fetch the content that later plans need, where nodes do not see the service's directories."""

    content: Manifest


class Launch(Call, frozen=True, tag=True):
    """Launch programs. The other tuples have one entry for each plan, in order."""

    #: Plans into which secrets have been put already.
    plans: tuple[LaunchPlan, ...]
    #: Texts that must not get into the log.
    masked: tuple[tuple[str, ...], ...]
    #: The number of the log's next line, for a replica that was on another node before.
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
    """Tell replicas the gang's addresses by hostname, after a replica has moved."""

    hosts: tuple[tuple[str, str], ...]


class WriteLog(Call, frozen=True, tag=True):
    """Write lines into a replica's log as if its program had printed them."""

    replica: ReplicaId
    lines: tuple[str, ...]


class OpenTerminal(Call, frozen=True, tag=True):
    """Open a shell beside a live incarnation, carried on a stream that the agent opens (`hub.expect`)."""

    replica: ReplicaId
    incarnation: int
    request: TerminalRequest
    #: The stream's name.
    stream: str


class Rest(Call, frozen=True, tag=True):
    """Remove what is left of the attempt, of which nothing lives any more, and wait for another."""


class Adopt(Call, frozen=True, tag=True):
    """Become the agent of another attempt, after `Rest`."""

    job_uid: JobUid
    attempt: int
    #: As in `Welcome`.
    sizes: dict[str, dict[str, int]]


class Leave(Call, frozen=True, tag=True):
    """Remove what is left of the attempt, of which nothing lives any more, and end."""


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
    | Rest
    | Adopt
    | Leave
)
"""All that a service asks for."""

Order = Welcome | Alive | AnyCall
"""All that a service says."""


# --- what the agent says ---


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The first word of each connection."""

    version: int
    #: Capabilities of the local engine; None = unknown, because of `failure`.
    capabilities: Capabilities | None
    #: Why nothing can be run there, in which case this is its last message; None = programs can be
    #: run.
    failure: str | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a call. `failure`: name of the port's exception, with its text in `message`; None = it
    was done."""

    number: int
    failure: str | None = None
    message: str = ""


class Slots(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Allocate`."""

    number: int
    slots: tuple[Slot, ...]


class Appended(msgspec.Struct, frozen=True, tag=True):
    """Bytes of a replica's stream at `offset` of its file."""

    replica: ReplicaId
    file: str
    offset: int
    data: bytes


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """News with moments of the agent's clock, in ns since the epoch."""

    #: What that clock showed when this was sent; None = not told.
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
    """That many lines of a replica can be read."""

    replica: ReplicaId
    lines: int


class Metrics(msgspec.Struct, frozen=True, tag=True):
    """A new measurement of a trial's primary replica can be read."""

    replica: ReplicaId


class Current(msgspec.Struct, frozen=True, tag=True):
    """Everything that the agent knew before this connection has been reported."""


class Ending(msgspec.Struct, frozen=True, tag=True):
    """The agent is ending: it ends its programs, starts nothing more, and then exits."""


class Beat(Timed, frozen=True, tag=True):
    """A sign of life, sent several times within a lease. Its answer renews the lease."""

    number: int


AnyAnswer = Answer | Slots
"""To a call, by its number."""

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
"""All that an agent says."""


def launches(shown: Sequence[Revealed], lines: Mapping[ReplicaId, int]) -> Iterator[Launch]:
    """Yield the orders that launch these plans on a node. Each plan names the whole gang, so that those of a
    large one need several messages. `lines`: as in `Launch`."""
    pieces: list[list[Revealed]] = [[]]
    size = 0
    for item in shown:
        length = len(msgspec.msgpack.encode(item))
        if pieces[-1] and size + length > LONGEST // 2:
            pieces.append([])
            size = 0
        pieces[-1].append(item)
        size += length
    for piece in pieces:
        plans, masked = zip(*piece, strict=True)
        yield Launch(plans=plans, masked=masked, lines=tuple(lines[plan.replica] for plan in plans))


def write_document(document: AgentDocument) -> bytes:
    """Return the standard input of an agent's process: compressed, because Slurm carries a kilobyte at a
    time, after a line with its size, because Kubernetes does not end the input."""
    data = zlib.compress(msgspec.msgpack.encode(document), level=1)
    return b"%d\n" % len(data) + data


def read_document(stream: IO[bytes]) -> AgentDocument:
    """Read what `write_document` wrote. Raises EOFError if the sender was killed, or has changed its mind,
    and ValueError."""
    line = stream.readline()
    try:
        size = int(line or b"0")
        data = stream.read(size)
        if not size or len(data) < size:
            raise EOFError("the agent's document broke off")
        return msgspec.msgpack.decode(zlib.decompress(data), type=AgentDocument)
    except (ValueError, zlib.error) as error:
        raise ValueError(f"the agent's document cannot be read: {error}") from error
