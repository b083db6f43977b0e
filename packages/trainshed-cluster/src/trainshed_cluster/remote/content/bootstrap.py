"""Creates the command that starts an agent on a node without an installation of Trainshed. Also creates the
command's input: a loader, the agent's document (its startup data), and the agent's code."""

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
"""Subpackages of `trainshed` that engines and replicas import."""
LIBRARIES = ("msgspec", "trainshed_cluster", "trainshed_reduction")
"""Other packages whose code agents need. The list includes this package."""
_EXCLUDED_DIRECTORY = "__pycache__"
_EXCLUDED_SUFFIXES = (".pyi",)
READ = "import sys;b=sys.stdin.buffer;exec(b.read(int(b.read(8),16)))"
"""Code for `python -c` that reads an agent's input (`Bootstrap.parcel`) from standard input and executes the
loader in it."""
_TIME = 315532800
"""Modification time of all files in the archive. It is constant, so that the same code always yields the same
archive."""


@dataclass(frozen=True, slots=True)
class AgentCode:
    """The code of an agent, packed as an archive."""

    archive: bytes
    #: Digest of the archive.
    digest: str
    #: File suffixes of the packed extension modules. There is one for each supported version of Python.
    suffixes: tuple[str, ...] = ()

    @staticmethod
    @cache
    def collect(extensions: tuple[Path, ...] = ()) -> "AgentCode":
        """Pack the code of this process. The first call blocks for half a second. Raises OSError.

        Args:
            extensions: msgspec's extension modules for other versions of Python.
        """
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
    """The command and the input that start an agent.

    Args:
        code: The service's own code.
        python: The command that starts Python on the nodes.
        directory: Absolute path of a directory on the nodes. Its subdirectory `code/DIGEST` contains the
            code.
    """

    code: AgentCode
    python: str
    directory: str
    module: str = AGENT
    #: Code for `python -c`.
    script: str = READ

    @property
    def argv(self) -> Sequence[str]:
        # The first argument is only the name of the process.
        return self.python, "-I", "-S", "-c", self.script, "trainshed-agent"

    def parcel(self, document: bytes) -> bytes:
        """Return the data for the standard input of an agent's process: the loader, a header, the agent's
        startup data (`document`) and the agent's code."""
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
        parts = (_with_size(self._loader), _with_size(header), document, self.code.archive)
        return b"".join(parts)

    @cached_property
    def _loader(self) -> bytes:
        return Path(loader.__file__).read_bytes()


def _with_size(content: bytes) -> bytes:
    return b"%08x" % len(content) + content


def _files() -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, path) for each file of the agent's code."""
    root = Path(trainshed.__file__).parent
    files = [(f"trainshed/{path.name}", path) for path in root.glob("*.py")]
    for package in PACKAGES:
        files += _below(root / package, f"trainshed/{package}")
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(
                f"the Python package {library} is not installed as a directory, so it cannot be sent to nodes"
            )
        files += _below(Path(spec.submodule_search_locations[0]), library)
    yield from files


def _below(root: Path, name: str) -> Iterator[tuple[str, Path]]:
    for directory, names, files in os.walk(root):
        names[:] = [file_name for file_name in names if file_name != _EXCLUDED_DIRECTORY]
        for file_name in files:
            if not file_name.endswith(_EXCLUDED_SUFFIXES):
                path = Path(directory, file_name)
                yield f"{name}/{path.relative_to(root)}", path
