"""Identifies a directory tree, packs it as a tar, and unpacks it on a node.

The last entry of the tar is `BUILT`. It contains the tree's identity, or the reason why the sender failed. A
tar without this entry is incomplete.

    python -m trainshed_cluster.remote.content.trees DIRECTORY [without-sites]

writes a tree to standard output. It runs in a separate process, so that it does not delay the service.
Therefore this module uses only the standard library.
"""

import hashlib
import io
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol, cast

from trainshed.core.units import Bytes
from trainshed.replica.system import cache_leases
from trainshed_cluster.remote.content.manifest import BUILT

WITHOUT_SITES = "without-sites"
PIECE = 1 << 16
"""Size in bytes of reads and writes."""
_BYTECODE = "__pycache__"
_SITES = ("site-packages", "dist-packages")
_TYPES = {stat.S_IFDIR: tarfile.DIRTYPE, stat.S_IFLNK: tarfile.SYMTYPE, stat.S_IFIFO: tarfile.FIFOTYPE}
_WHOLE, _FAILED = b"+", b"-"
"""First byte of the content of the last entry: `_WHOLE` if the sender succeeded, `_FAILED` if it failed."""
_BROKEN = "the transfer ended early; the service's log may contain the reason"
_ON_DISK = 4096
"""Assumed size of a block of the disk in bytes."""

Entry = tuple[str, os.stat_result]
"""An entry of a tree: its path below the root, and its result of lstat."""


class TransferError(Exception):
    """The received data is not a complete tree. The message contains the reason."""


class ByteSource(Protocol):
    """A source of a tar's bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; b"" = the end."""
        ...


def walk(root: Path, *, without_sites: bool = False) -> Iterator[Entry]:
    """Yield all entries below `root` in order of their names, and each directory before its content. Links
    are not followed. Sockets and devices are skipped. `without_sites`: skip the packages that are installed
    in an interpreter. Raises OSError."""
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        if without_sites and os.path.basename(directory) in _SITES:
            continue
        with os.scandir(root / directory) as scan:
            entries = sorted(scan, key=lambda entry: entry.name)
        below: list[str] = []
        for entry in entries:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if path == BUILT:
                continue  # Skip the file `BUILT`, which each machine writes itself.
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                if _BYTECODE in path:
                    continue  # Skip a temporary file of bytecode, which no longer exists.
                raise
            if stat.S_ISDIR(status.st_mode):
                below.append(path)
            elif not (stat.S_ISREG(status.st_mode) or stat.S_IFMT(status.st_mode) in _TYPES):
                continue
            yield path, status
        waiting += reversed(below)


class Identity:
    """Computes a digest that identifies the content of a directory: names, kinds, permissions, sizes, times
    and link targets.

    File contents are not read, because a rebuilt directory has different modification times. Bytecode is
    ignored, because a machine may add bytecode to its interpreters.
    """

    def __init__(self, root: Path) -> None:
        self.bytes = 0
        self._root = root
        self._digest = hashlib.sha256()

    def add(self, entry: Entry) -> None:
        """Add the next entry of `walk`. Raises OSError."""
        path, status = entry
        self.bytes += status.st_size
        if f"/{_BYTECODE}/" in f"/{path}/":
            return
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            rest = os.readlink(f"{self._root}/{path}")
        elif stat.S_ISDIR(mode):
            # Ignore write permissions of directories, which change while bytecode is added.
            mode, rest = mode & ~0o222, ""
        else:
            rest = f"{status.st_size} {status.st_mtime_ns}"
        line = f"{path}\0{mode:o}\0{rest}\n"
        self._digest.update(line.encode(errors="surrogateescape"))

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def identify(root: Path, *, without_sites: bool = False) -> Identity:
    """Return the identity of a directory tree, which changes with any file in it. Blocks. Raises OSError if a
    file cannot be read."""
    identity = Identity(root)
    for entry in walk(root, without_sites=without_sites):
        identity.add(entry)
    return identity


def pack(root: Path, out: IO[bytes], *, without_sites: bool = False) -> None:
    """Write the tree `root` to `out` as a tar. Raises OSError. The tar is then incomplete, and its reader
    detects that."""
    identity = Identity(root)
    first_names: dict[tuple[int, int], str] = {}
    with _open_tar(out) as tar:
        for path, status in walk(root, without_sites=without_sites):
            identity.add((path, status))
            member = _member(root, path, status)
            if member.isreg() and status.st_nlink > 1:
                first = first_names.setdefault((status.st_dev, status.st_ino), path)
                if first != path:
                    member.type, member.linkname, member.size = tarfile.LNKTYPE, first, 0
            if member.isreg():
                with open(f"{root}/{path}", "rb", opener=_open_plain) as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
        _add_trailer(tar, _WHOLE + identity.digest.encode())


def failure_tar(why: str) -> bytes:
    """Return a tar that contains no files, only the reason why the sender failed."""
    out = io.BytesIO()
    with _open_tar(out) as tar:
        _add_trailer(tar, _FAILED + why.encode(errors="replace"))
    return out.getvalue()


def _open_tar(out: IO[bytes]) -> tarfile.TarFile:
    return tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=PIECE)


def _add_trailer(tar: tarfile.TarFile, content: bytes) -> None:
    member = tarfile.TarInfo(BUILT)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _open_plain(path: str, flags: int) -> int:
    # Do not follow a link that may have replaced the file since `walk` found it.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _member(root: Path, path: str, status: os.stat_result) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.mode = stat.S_IMODE(status.st_mode)
    member.uid, member.gid = status.st_uid, status.st_gid
    # Use whole seconds, like the modification times of sources in bytecode.
    member.mtime = int(status.st_mtime)
    member.type = _TYPES.get(stat.S_IFMT(status.st_mode), tarfile.REGTYPE)
    if member.issym():
        member.linkname = os.readlink(f"{root}/{path}")
    elif member.isreg():
        member.size = status.st_size
    return member


class Unpacking:
    """Unpacks the output of `pack` into the new directory `root`. It prevents path traversal: it only writes
    into directories of the same tar, and never through links."""

    def __init__(self, root: Path) -> None:
        #: Number of bytes that the unpacked files occupy on disk so far.
        self.bytes: Bytes = 0
        self._root = root
        self._names: set[str] = set()
        self._directories = {""}
        self._files: set[str] = set()
        self._add_trailer = b""

    def unpack(self, stream: ByteSource) -> str:
        """Unpack the stream, and return the identity of the tree. Raises TransferError if the data is invalid
        or incomplete, and OSError."""
        self._root.mkdir(mode=0o700)
        try:
            with tarfile.open(
                # The cast is safe, because tarfile calls only the method `read`.
                fileobj=cast("IO[bytes]", stream),
                mode="r|",
                bufsize=PIECE,
                errorlevel=2,
            ) as tar:
                # `_validated_members` has checked the members. This filter keeps their attributes unchanged.
                tar.extraction_filter = lambda member, _: member
                tar.extractall(self._root, members=self._validated_members(tar), numeric_owner=True)
        except tarfile.TarError as error:
            raise TransferError(f"{_BROKEN} ({error})") from None
        if not self._add_trailer:
            raise TransferError(_BROKEN)
        text = self._add_trailer[1:].decode(errors="replace")
        if not self._add_trailer.startswith(_WHOLE):
            raise TransferError(text)
        self._root.chmod(0o555)
        return text

    def _validated_members(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for member in tar:
            name = member.name
            if name == BUILT:
                content = tar.extractfile(member)
                self._add_trailer = content.read() if content else b""
                return
            parent = name.rpartition("/")[0]
            is_new = name not in self._names and not {"", ".", ".."} & {*name.split("/")}
            if parent not in self._directories or not is_new:
                raise TransferError(f"the tar archive contains {name!r}, which is an invalid path")
            self._names.add(name)
            if member.islnk() and member.linkname not in self._files:
                raise TransferError(
                    f"the tar archive contains a link to {member.linkname!r}, which is not a file in the "
                    "archive"
                )
            if member.isdir():
                self._directories.add(name)
            elif member.isreg():
                self._files.add(name)
                self.bytes += -(-member.size // _ON_DISK) * _ON_DISK
            elif not (member.issym() or member.islnk() or member.isfifo()):
                raise TransferError(
                    f"the tar archive contains {name!r}, which is neither a file, a directory nor a link"
                )
            if os.geteuid():
                # Drop the setuid bits, which would grant this user's rights to other users.
                member.mode &= ~0o6000
            yield member


def main() -> None:
    root = Path(sys.argv[1])
    # Hold a lock, so that the directory is not removed during the transfer.
    cache_leases.hold_leases([str(root)])
    try:
        pack(root, sys.stdout.buffer, without_sites=WITHOUT_SITES in sys.argv[2:])
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(1)  # Exit without a message: the receiver has disconnected.
    except OSError as failure:
        sys.stderr.write(f"cannot send {root}: {failure}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
