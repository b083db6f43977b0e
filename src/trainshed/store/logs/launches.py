"""Reads how the programs of replicas were started, from what their shims wrote down beside their logs
(spec/program#launches).

`trainshed.replica.observe.launches` writes the stream.
"""

from collections.abc import Iterable

import msgspec

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamKind, Streams, StreamSource


class Launch(msgspec.Struct, frozen=True):
    """One incarnation, as it was started."""

    incarnation: int = 0
    #: Nanoseconds since the epoch.
    at: int = 0
    argv: tuple[str, ...] = ()
    #: Where it started; "" = in a working directory of its own.
    directory: str = ""
    #: Of all its environment variables, sorted.
    names: tuple[str, ...] = ()
    #: Of those of them that the service sets to say where it is.
    values: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    #: "" = the machine's.
    hostname: str = ""
    address: str = ""
    #: Sandbox level.
    level: str = ""
    #: Of the machine's numbers; -1 = the service's own.
    user: int = -1
    #: Bytes, as is `disk`; 0 = no limit.
    memory: int = 0
    disk: int = 0
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
            for line in data[: data.rfind(b"\n") + 1].splitlines():
                try:
                    found.append(_decoder.decode(line))
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue  # What a crash may have left.
    return tuple(found)
