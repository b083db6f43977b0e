"""The distribution `trainshed-reduction`: its files for workers' paths.

Knows its contents and its metadata. Callers decide where the files go and whether the C library is compiled.
"""

import functools
import hashlib
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path

import trainshed_reduction

PACKAGE = "trainshed_reduction"
NAME = "trainshed-reduction"

_SOURCE = Path(trainshed_reduction.__file__).parent
_SUFFIXES = frozenset({".py", ".c", ".h", ".typed"})


@functools.cache
def content() -> Mapping[str, bytes]:
    """Return every file of the distribution, by its path with slashes below `site-packages`."""
    information = f"{PACKAGE}-{release()}.dist-info"
    sources = (path for path in sorted(_SOURCE.rglob("*")) if path.suffix in _SUFFIXES)
    return {
        **{
            f"{PACKAGE}/{path.relative_to(_SOURCE).as_posix()}": path.read_bytes()
            for path in sources
        },
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {release()}\n".encode(),
        # PyTorch loads it by this.
        f"{information}/entry_points.txt": (
            b"[torch.backends]\ntrainshed_reduction = trainshed_reduction.autoload:autoload\n"
        ),
    }


def release() -> str:
    """Return the distribution's version, which is the service's."""
    return installed("trainshed")


@functools.cache
def digest() -> str:
    """Return a digest of the distribution's files, 64 hexadecimal digits."""
    hashed = hashlib.sha256()
    for name, data in content().items():
        hashed.update(b"%s\0%d\0" % (name.encode(), len(data)))
        hashed.update(data)
    return hashed.hexdigest()


def unpack(directory: Path) -> None:
    """Write the files and the libraries that are built already to a directory for PYTHONPATH, which is made
    if needed. Raises OSError."""
    for name, data in (*content().items(), *built().items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def built() -> Mapping[str, bytes]:
    """Return the compiled C libraries that lie beside their sources, as in an image of the service; by their
    paths, like `content`."""
    libraries = sorted((_SOURCE / "native").glob("*.so"))
    return {f"{PACKAGE}/native/{path.name}": path.read_bytes() for path in libraries}
