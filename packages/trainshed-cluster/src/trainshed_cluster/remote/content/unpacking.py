"""Puts one unit into a node's cache. It runs as a process of its own, which an agent starts, tells the unit,
feeds with what the service sends, and may kill at any moment.

It writes lines: `have` (it is there), `need` (send it now), `done`, `failed WHY`. It holds the unit's lock
until its input ends, so that the agent can take its own lease first.
"""

import errno
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import IO, Protocol

from trainshed_cluster.remote.content import shelf as shelves
from trainshed_cluster.remote.content.frames import PIECE, FrameReader, Torn
from trainshed_cluster.remote.content.manifest import Unit
from trainshed_cluster.remote.content.shelf import NodeShelf

_SHARE = 3
"""What is kept takes one of so many parts of its disk, which others need as well."""
_RESERVE = 64 << 20
"""Bytes that stay free on the disk."""
_BLOCK = 1 << 20
_LONGEST_HEADER = 1 << 16
_WHERE = (
    "; it has to lie where it lies on the service's machine, so let that be where jobs may write on nodes, "
    "too ($TRAINSHED_CACHE)"
)
_ON_DISK = 4096
"""Bytes that a file takes on the disk are a multiple of this."""


class ByteSource(Protocol):
    """A source of a tar's bytes."""

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        ...


class Unpacking:
    """Unpacks a tar into the directory `root`, which it makes. It only writes into directories that the same
    tar has made, so that no link leads it elsewhere."""

    def __init__(self, root: Path) -> None:
        #: Bytes on disk so far.
        self.bytes = 0
        self._root = root
        self._directories: dict[str, tarfile.TarInfo | None] = {"": None}
        self._files: set[str] = set()
        self._is_root = os.geteuid() == 0

    def take(self, stream: ByteSource) -> None:
        """Raises Torn, OSError."""
        self._root.mkdir(mode=0o700)
        while (member := next_member(stream)) is not None:
            self._make(member, stream)
        # Permissions come last, from the inside out, because nothing can be written into read-only
        # directories.
        for name, member in reversed(self._directories.items()):
            if member is not None:
                self._finish(f"{self._root}/{name}", member)
        self._root.chmod(0o555)

    def _make(self, member: tarfile.TarInfo, stream: ByteSource) -> None:
        name = member.name
        parent = name.rpartition("/")[0]
        is_new = name not in self._directories and name not in self._files
        if parent not in self._directories or not is_new or {"", ".", ".."} & {*name.split("/")}:
            raise Torn(f"what came names {name!r}, which is no place in it")
        path = f"{self._root}/{name}"
        if member.isdir():
            os.mkdir(path, 0o700)
            self._directories[name] = member
        elif member.issym():
            os.symlink(member.linkname, path)
            if self._is_root:
                os.lchown(path, member.uid, member.gid)
        elif member.islnk():
            if member.linkname not in self._files:
                raise Torn(f"what came names {member.linkname!r}, which is no file in it")
            os.link(f"{self._root}/{member.linkname}", path, follow_symlinks=False)
        elif member.isfifo():
            os.mkfifo(path, 0o600)
            self._finish(path, member)
        elif member.isreg():
            self._write(path, member.size, stream)
            self._finish(path, member)
            self._files.add(name)
            self.bytes += -(-member.size // _ON_DISK) * _ON_DISK
        else:
            raise Torn(f"what came has {name!r}, which is neither file, directory nor link")

    def _write(self, path: str, size: int, stream: ByteSource) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(path, flags, 0o600)
        try:
            left = size
            while left:
                piece = memoryview(_exactly(stream, min(left, PIECE)))
                left -= len(piece)
                while piece:
                    piece = piece[os.write(handle, piece) :]
        finally:
            os.close(handle)
        _exactly(stream, -size % tarfile.BLOCKSIZE)

    def _finish(self, path: str, member: tarfile.TarInfo) -> None:
        mode = member.mode
        if self._is_root:
            os.chown(path, member.uid, member.gid, follow_symlinks=False)
        else:
            mode &= ~0o6000  # setuid bits would grant another user's rights.
        os.chmod(path, mode)
        os.utime(path, (member.mtime, member.mtime))


def next_member(stream: ByteSource) -> tarfile.TarInfo | None:
    """Return the next entry's header, completed by its extended header; None at the end. The standard module
    tarfile would read the stream in small pieces, or copy large ones repeatedly. Raises Torn."""
    more: dict[str, str] = {}
    while True:
        try:
            header = _exactly(stream, tarfile.BLOCKSIZE)
            if not any(header):
                return None
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            if member.type != tarfile.XHDTYPE:
                break
            size = member.size
            if size > _LONGEST_HEADER:
                raise Torn("what came cannot be unpacked: a header is too long")
            more = _records(_exactly(stream, size + -size % tarfile.BLOCKSIZE)[:size])
        except (tarfile.TarError, ValueError) as error:
            raise Torn(f"what came cannot be unpacked: {error}") from None
    member.name = more.get("path", member.name).removesuffix("/")
    member.linkname = more.get("linkpath", member.linkname)
    for name in ("size", "uid", "gid"):
        if (text := more.get(name, "")).isdecimal():
            setattr(member, name, int(text))
    return member


def _records(content: bytes) -> dict[str, str]:
    """Parse an extended header: lines `LENGTH NAME=VALUE`. Raises ValueError."""
    records: dict[str, str] = {}
    while content:
        length = int(content[: content.index(b" ")])
        name, _, value = content[:length].partition(b" ")[2].partition(b"=")
        records[name.decode()] = value.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        content = content[length:] if length > 0 else b""
    return records


def _exactly(stream: ByteSource, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise Torn("what came ends too early")
    return data


def fetch(shelf: NodeShelf, unit: Unit, limit: int, stream: IO[bytes]) -> None:
    """Request the unit, unpack it beside its path, move it there. The unit's lock is held. Raises Torn,
    OSError."""
    shelf.make_parents(unit)
    place = Path(unit.path).parent
    disk = shutil.disk_usage(place)
    shelf.make_room(unit.bytes, limit or disk.total // _SHARE, max(0, disk.free - _RESERVE))
    free = shutil.disk_usage(place).free
    if free < unit.bytes + _RESERVE:
        raise OSError(
            errno.ENOSPC,
            f"it takes {unit.bytes >> 20} MiB, and {free >> 20} MiB are free on the disk of {place}",
        )
    draft = shelf.draft(unit.path)
    try:
        tell("need")
        reader = FrameReader(stream.read)
        unpacking = Unpacking(draft)
        unpacking.take(reader)
        if reader.finish() != unit.digest:
            raise Torn("it was built anew meanwhile")
        shelf.place(draft, unit, unpacking.bytes)
    except BaseException:
        shelves.remove(draft)
        raise


def put(shelf: NodeShelf, unit: Unit, limit: int, stream: IO[bytes]) -> str:
    """Make sure that the unit is there. Returns `have` or `done`. Raises Torn, OSError."""
    record = shelf.record(unit.path)
    if record is None and shelf.is_finished(unit):
        return "have"
    if record is not None and record.digest == unit.digest and Path(unit.path).is_dir():
        return "have"
    if not shelf.take_away(unit.path):
        if record is not None:
            raise BlockingIOError(
                errno.EBUSY,
                "programs on this node use what lay there before; it is replaced after them",
            )
        raise FileExistsError(
            errno.EEXIST,
            "what lies there was put there by others and is not finished; if nobody is at it, remove it",
        )
    fetch(shelf, unit, limit, stream)
    return "done"


def main() -> None:
    """Run the process. Its arguments are the cache, its limit in bytes, and the unit as JSON."""
    shelf, limit = NodeShelf(Path(sys.argv[1])), int(sys.argv[2])
    fields = json.loads(sys.argv[3])
    fields["parents"] = tuple((path, mode) for path, mode in fields["parents"])
    unit = Unit(**fields)
    os.umask(0o022)
    stream = sys.stdin.buffer
    try:
        with shelf.locked(unit.path):
            word = put(shelf, unit, limit, stream)
            tell(word)
            while stream.read(_BLOCK):
                pass
        if word == "done":
            shelf.settle(unit.path)
    except (Torn, OSError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) and failure.strerror else failure
        path_of_failure = getattr(failure, "filename", None)
        advice = _WHERE if isinstance(failure, PermissionError) else ""
        tell(f"failed {reason}{f': {path_of_failure}' if path_of_failure else ''}{advice}")
    except Exception as failure:  # The process has no other way to report a failure.
        tell(f"failed {failure!r}")
        raise


def tell(line: str) -> None:
    """Write a line to the process that started this one; exit if that is gone."""
    try:
        os.write(1, " ".join(line.split()).encode(errors="replace") + b"\n")
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
