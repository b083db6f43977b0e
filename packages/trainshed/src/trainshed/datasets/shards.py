"""Writes the rows of one split into files of about 64 MB, each of which begins with the header."""

from typing import Final, Protocol

from trainshed.core.datasets.plans import Split, SplitPlan
from trainshed.datasets.port import SplitCounts
from trainshed.datasets.storage import QUANTUM

SHARD: Final = 64 << 20
"""Bytes of a file after which the next one is begun."""
PART: Final = 4 << 20
"""Bytes that are gathered before they are sent."""
_TYPES: Final = {"csv": "text/csv", "jsonl": "application/jsonl"}


class Uploads(Protocol):
    """Uploads files; implemented by `storage.Storage`."""

    def begin_upload(self, uri: str, content_type: str) -> str: ...

    def put_part(self, upload: str, uri: str, part: bytes, at: int, *, is_last: bool) -> None: ...

    def write(self, uri: str, content: bytes, content_type: str) -> None: ...


class Shards:
    """The files of one split. Which row begins a file follows from the rows alone, so a second try writes the
    same files."""

    def __init__(
        self, plan: SplitPlan, split: Split, header: bytes | None, to: Uploads, *, size: int = SHARD
    ) -> None:
        """`header`: None = the files have none. `size`: bytes of a file."""
        self._plan = plan
        self._split = split
        self._header = b"" if header is None else header + b"\n"
        self._to = to
        self._limit = size
        self._rows = 0
        self._total = 0
        self._uris: list[str] = []
        self._open = False
        self._begin()

    def _begin(self) -> None:
        self._pending: list[bytes] = [self._header[:-1]] if self._header else []
        self._gathered = len(self._header)
        self._rest = b""
        self._upload = ""
        self._sent = 0
        self._open = True

    def add(self, row: bytes) -> None:
        """Add a row. It blocks when a part is full and sent."""
        if not self._open:
            self._begin()
        self._pending.append(row)
        self._gathered += len(row) + 1
        self._rows += 1
        if self._sent + len(self._rest) + self._gathered >= self._limit:
            self._end()
        elif self._gathered >= PART:
            self._send()

    def close(self) -> SplitCounts:
        """Write what is left. A split without rows also gets one file, with only the header."""
        if self._open:
            self._end()
        return SplitCounts(self._rows, self._total, tuple(self._uris))

    @property
    def rows(self) -> int:
        return self._rows

    @property
    def _uri(self) -> str:
        return self._plan.shard(self._split, len(self._uris))

    @property
    def _type(self) -> str:
        return _TYPES[self._plan.format]

    def _gather(self) -> bytes:
        if self._pending:
            self._rest += b"\n".join(self._pending) + b"\n"
            self._pending, self._gathered = [], 0
        return self._rest

    def _send(self) -> None:
        whole = self._gather()
        length = len(whole) // QUANTUM * QUANTUM
        if not self._upload:
            self._upload = self._to.begin_upload(self._uri, self._type)
        self._to.put_part(self._upload, self._uri, whole[:length], self._sent, is_last=False)
        self._sent += length
        self._rest = whole[length:]

    def _end(self) -> None:
        rest = self._gather()
        if self._upload:
            self._to.put_part(self._upload, self._uri, rest, self._sent, is_last=True)
        else:
            self._to.write(self._uri, rest, self._type)
        self._total += self._sent + len(rest)
        self._uris.append(self._uri)
        self._open = False
        self._rest = b""
