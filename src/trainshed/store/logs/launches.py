"""Reads how the programs of replicas were started, as their shims recorded it beside their logs
(spec/program#launches).

`trainshed.replica.observe.launches` writes the stream.
"""

from collections.abc import Iterable

import msgspec

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams, StreamSource
from trainshed.core.units import Bytes, Nanos
from trainshed.store.logs.segments import records


class Launch(msgspec.Struct, frozen=True):
    """How one incarnation was started."""

    #: 0 = not known.
    incarnation: int = 0
    #: Nanoseconds since the epoch.
    at: Nanos = 0
    argv: tuple[str, ...] = ()
    #: The directory in which it started; "" = a working directory of its own.
    directory: str = ""
    #: Names of all its environment variables, sorted.
    names: tuple[str, ...] = ()
    #: Values of those variables that the service sets to describe the program's place
    #: (`replica.observe.launches.SHOWN`).
    values: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: "" = the machine's.
    hostname: str = ""
    #: "" = the machine's.
    address: str = ""
    #: The sandbox's isolation level.
    level: str = ""
    #: Number of the Unix user; -1 = the service's own user.
    user: int = -1
    #: Memory limit in bytes; 0 = none.
    memory: Bytes = 0
    #: Disk limit in bytes; 0 = none.
    disk: Bytes = 0
    #: Limit of processes and threads; 0 = none.
    processes: int = 0
    #: UUIDs of its GPUs.
    gpus: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(Launch)


def read_launches(
    held: Iterable[Streams], job_uid: JobUid, attempt: int, replica: ReplicaId
) -> tuple[Launch, ...]:
    """Return the launches of a replica in an attempt, in their order; () if there were none. Blocks for a
    small read."""
    source = StreamSource(job_uid, attempt, replica)
    found: list[Launch] = []
    for streams in held:
        for part in streams.open(source, StreamKind.LAUNCHES):
            data = part.read(0, part.size())
            found.extend(records(data, _decoder))
    return tuple(found)
