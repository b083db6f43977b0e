"""Makes the command that starts an agent on a node where nothing of ours is, and its input: a loader, the
agent's document, and the code itself if the node does not have it yet."""

import gzip
import hashlib
import importlib.machinery
import importlib.util
import io
import json
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import trainshed
from trainshed_cluster.remote.content import loader

AGENT = "trainshed_cluster.remote.start"
PACKAGES = ("access", "core", "engines", "eventloop", "replica", "telemetry")
"""Of ours: all that engines and replicas import."""
LIBRARIES = ("msgspec", "trainshed_cluster", "trainshed_reduction")
"""Other packages: all that those import where an agent runs, and this one."""
_LEFT_OUT = "__pycache__"
_KINDS = (".pyi",)
READ = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.read(8),16)))"
"""What a Python is told to run that is given a parcel."""
_TIME = 315532800
"""Of all files, so that the same code is the same archive."""


@dataclass(frozen=True, slots=True)
class AgentCode:
    """The code of an agent as it is sent."""

    archive: bytes
    #: Digest of the archive.
    digest: str
    #: How the file names of extension modules end in the versions of Python that the code runs on.
    suffixes: tuple[str, ...] = ()

    @staticmethod
    @cache
    def collect(extensions: tuple[Path, ...] = ()) -> "AgentCode":
        """Pack the code that this process runs. `extensions`: msgspec's extension modules for further
        versions of Python. The first call blocks for half a second. Raises OSError."""
        out = io.BytesIO()
        more = [(f"msgspec/{path.name}", path) for path in extensions]
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, path in sorted([*_files(), *more]):
                content = path.read_bytes()
                member = tarfile.TarInfo(name)
                member.size, member.mtime = len(content), _TIME
                member.mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
                tar.addfile(member, io.BytesIO(content))
        archive = gzip.compress(out.getbuffer(), 9, mtime=_TIME)
        further = (path.name[path.name.index(".") :] for path in extensions)
        suffixes = (importlib.machinery.EXTENSION_SUFFIXES[0], *further)
        return AgentCode(archive, hashlib.sha256(archive).hexdigest(), suffixes)


@dataclass(frozen=True)
class Bootstrap:
    """How agents are started. `code`: the service's own. `python`: a command on the nodes. `directory`:
    absolute path on the nodes, where the code is kept in `code/DIGEST`."""

    code: AgentCode
    python: str
    directory: str
    module: str = AGENT
    #: Source that the Python is given by -c.
    script: str = READ

    @property
    def argv(self) -> Sequence[str]:
        # The first argument only names the process for people.
        return self.python, "-I", "-S", "-c", self.script, "trainshed-agent"

    def parcel(self, document: bytes) -> bytes:
        """Return its whole standard input."""
        header = json.dumps(
            {
                "digest": self.code.digest,
                "size": len(self.code.archive),
                "document": len(document),
                "directory": self.directory,
                "module": self.module,
                "extensions": self.code.suffixes,
            }
        ).encode()
        parts = (_sized(self._loader), _sized(header), document, self.code.archive)
        return b"".join(parts)

    @cached_property
    def _loader(self) -> bytes:
        return Path(loader.__file__).read_bytes()


def _sized(content: bytes) -> bytes:
    return b"%08x" % len(content) + content


def _files() -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, path) of each file."""
    root = Path(trainshed.__file__).parent
    files = [(f"trainshed/{path.name}", path) for path in root.glob("*.py")]
    for package in PACKAGES:
        files += _below(root / package, f"trainshed/{package}")
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"the package {library} is not installed as a directory")
        files += _below(Path(spec.submodule_search_locations[0]), library)
    yield from files


def _below(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    for directory, names, files in os.walk(root):
        names[:] = [file_name for file_name in names if file_name != _LEFT_OUT]
        for file_name in files:
            if not file_name.endswith(_KINDS):
                path = Path(directory, file_name)
                yield f"{name}/{path.relative_to(root)}", path
