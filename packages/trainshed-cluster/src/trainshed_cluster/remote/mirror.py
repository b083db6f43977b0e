"""Copies the streams of replicas (such as logs) from files on a node to files of the service. The shims on
the node write the original files.

The agent sends the parts of its files that the service's copies lack, by offset. A new connection therefore
continues where the last connection ended. Data is only appended to files. If a replica moves, its output
follows its output on earlier nodes.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.core.units import Bytes
from trainshed.engines.streams import FileStreams
from trainshed_cluster.remote.messages import Appended

BLOCK = 256 << 10
"""Bytes of a file that one message contains."""
_SEGMENT = re.compile(r"\d{12}\.jsonl")
_NAME = re.compile(r"\d{12}\.jsonl|(?:usage|metrics|reduction|launches|progress)\.jsonl")


class StreamGap(Exception):
    """The received bytes do not directly follow the last byte of the copy. The connection must be closed."""


class StreamSender:
    """The agent's side: sends the streams of the replicas of one attempt."""

    def __init__(self, streams: FileStreams, job_uid: JobUid, attempt: int) -> None:
        self._streams = streams
        self._job_uid = job_uid
        self._attempt = attempt
        #: `_sent`: bytes of each file that the service has. `_before`: bytes of each file that the service
        #: had before this agent wrote to the file.
        self._sent: dict[tuple[ReplicaId, str], Bytes] = {}
        self._before: Mapping[tuple[ReplicaId, str], Bytes] | None = None

    def resume(self, sizes: Mapping[str, Mapping[str, int]]) -> None:
        """Start a new connection. `sizes`: by replica, the number of bytes of each file that the service has.
        Raises ValueError if a name is invalid."""
        self._sent = {
            (ReplicaId.parse(replica), file): size
            for replica, files in sizes.items()
            for file, size in files.items()
        }
        # After a power failure, the service may have fewer bytes than at the first connection. Use the
        # smaller number.
        before = self._sent if self._before is None else self._before
        self._before = {key: min(size, before.get(key, 0)) for key, size in self._sent.items()}

    def start_log(self, replica: ReplicaId, line: int) -> None:
        """Create the first segment (file) of a replica's log, which starts at the given line number. Does
        nothing if the node already has a log of the replica. Blocks briefly. Raises OSError."""
        directory = self._streams.directory(StreamSource(self._job_uid, self._attempt, replica))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if line and not any(_SEGMENT.fullmatch(path.name) for path in directory.iterdir()):
            (directory / f"{line:012}.jsonl").touch(mode=0o600)

    def changes(self, replica: ReplicaId) -> Iterator[Appended]:
        """Yield the parts of a replica's files that were not sent yet. A part counts as sent when the caller
        requests the next part. Blocks for small reads."""
        directory = self._streams.directory(StreamSource(self._job_uid, self._attempt, replica))
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(directory.iterdir()):
                if _NAME.fullmatch(path.name):
                    yield from self._changes_of_file(replica, path)

    def _changes_of_file(self, replica: ReplicaId, path: Path) -> Iterator[Appended]:
        key = replica, path.name
        before = (self._before or {}).get(key, 0)
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            # Read only up to the current size. If a program prints without a pause, its output must not delay
            # the news of its end.
            size = os.fstat(file.fileno()).st_size
            file.seek(self._sent.get(key, 0) - before)
            while data := _complete_lines(file, size - file.tell()):
                sent = self._sent.get(key, 0)
                yield Appended(replica, path.name, sent, data)
                self._sent[key] = sent + len(data)


def _complete_lines(file: BinaryIO, left: int) -> bytes:
    """Read complete lines, about one block of them and at most `left` bytes. An incomplete last line is not
    read, because a shim that restarts may remove it."""
    data = file.read(max(0, min(BLOCK, left)))
    while b"\n" not in data and len(data) < left:
        more = file.read(min(BLOCK, left - len(data)))
        if not more:
            break
        data += more
    end = data.rfind(b"\n") + 1
    file.seek(end - len(data), os.SEEK_CUR)
    return data[:end]


class StreamCopies:
    """The service's side: stores copies of the streams of one attempt."""

    def __init__(self, streams: FileStreams, job_uid: JobUid, attempt: int) -> None:
        self._streams = streams
        self._job_uid = job_uid
        self._attempt = attempt

    def sizes(self, replicas: Iterable[ReplicaId]) -> dict[str, dict[str, int]]:
        """Return the size of every copy in bytes, by replica and file name. Blocks briefly."""
        sizes: dict[str, dict[str, int]] = {}
        for replica in replicas:
            with contextlib.suppress(FileNotFoundError):
                sizes[str(replica)] = {
                    entry.name: entry.stat().st_size
                    for entry in os.scandir(self._directory(replica))
                    if _NAME.fullmatch(entry.name)
                }
        return sizes

    def append(self, part: Appended) -> None:
        """Append received bytes to a copy. Blocks while it writes. Raises StreamGap if bytes are missing
        between the copy and the received bytes, and OSError."""
        if not _NAME.fullmatch(part.file):
            raise StreamGap(f"{part.file!r} is not a file that agents send, such as a log segment")
        path = self._directory(part.replica) / part.file
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("ab") as file:
            size = file.tell()
            if part.offset > size:
                raise StreamGap(
                    f"{part.file} has {size} bytes here, but the sender continues at byte {part.offset}, so "
                    "bytes are missing"
                )
            # Skip bytes that the copy already contains, because an agent may send them again.
            file.write(part.data[size - part.offset :])

    def next_line(self, replica: ReplicaId) -> int:
        """Return the number of the next line of a replica's log, at which the log continues on another node.
        Blocks briefly."""
        try:
            names = sorted(
                path for path in self._directory(replica).iterdir() if _SEGMENT.fullmatch(path.name)
            )
        except FileNotFoundError:
            return 0
        if not names:
            return 0
        # Count the newlines, because only complete lines are copied.
        with names[-1].open("rb") as file:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK), b""))
        return int(names[-1].stem) + lines

    def _directory(self, replica: ReplicaId) -> Path:
        return self._streams.directory(StreamSource(self._job_uid, self._attempt, replica))
