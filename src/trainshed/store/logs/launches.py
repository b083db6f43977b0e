"""Reads how the programs of replicas were started, from what their shims wrote down beside their logs
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
    """One incarnation, as it was started."""

    #: 0 = it is not known.
    incarnation: int = 0
    #: Nanoseconds since the epoch.
    at: Nanos = 0
    argv: tuple[str, ...] = ()
    #: Where it started; "" = in a working directory of its own.
    directory: str = ""
    #: Names of all its environment variables, sorted.
    names: tuple[str, ...] = ()
    #: Values of those that the service sets to say where it is (`replica.observe.launches.SHOWN`).
    values: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: "" = the machine's.
    hostname: str = ""
    #: "" = the machine's.
    address: str = ""
    #: Sandbox level.
    level: str = ""
    #: Number of the Unix user; -1 = the service's own.
    user: int = -1
    #: Bytes; 0 = no limit.
    memory: Bytes = 0
    #: Bytes; 0 = no limit.
    disk: Bytes = 0
    #: Processes and threads; 0 = no limit.
    processes: int = 0
    #: Uuids.
    gpus: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(Launch)


def read_launches(
    held: Iterable[Streams], job_uid: JobUid, attempt: int, replica: ReplicaId
) -> tuple[Launch, ...]:
    """Of a replica in an attempt, in the order in which its programs were started. Blocks for as long as a
    small read takes. () if none was."""
    source = StreamSource(job_uid, attempt, replica)
    found: list[Launch] = []
    for streams in held:
        for part in streams.open(source, StreamKind.LAUNCHES):
            data = part.read(0, part.size())
            found.extend(records(data, _decoder))
    return tuple(found)
