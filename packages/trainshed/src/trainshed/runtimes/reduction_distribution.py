"""The distribution `trainshed-reduction`: its files for workers' paths, and a wheel for images of users.

Knows its contents and its metadata. Callers decide where the files go and whether the C library is compiled.
The same sources give the same bytes.
"""

import base64
import functools
import hashlib
import io
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path

import trainshed_reduction

PACKAGE = "trainshed_reduction"
NAME = "trainshed-reduction"
REQUIRES_PYTHON = ">=3.8"

_SOURCE = Path(trainshed_reduction.__file__).parent
_SUFFIXES = frozenset({".py", ".c", ".h", ".typed"})
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest date of a zip entry, used for all: file times are not part of the wheel."""


@functools.cache
def content() -> Mapping[str, bytes]:
    """Return every file of the installed distribution, by its path with slashes below `site-packages`."""
    files = {
        f"{PACKAGE}/{path.relative_to(_SOURCE).as_posix()}": path.read_bytes()
        for path in sorted(_SOURCE.rglob("*"))
        if path.suffix in _SUFFIXES and path.is_file()
    }
    information = f"{PACKAGE}-{release()}.dist-info"
    files[f"{information}/METADATA"] = _METADATA.format(
        name=NAME, version=release(), python=REQUIRES_PYTHON
    ).encode()
    files[f"{information}/WHEEL"] = _WHEEL.encode()
    files[f"{information}/entry_points.txt"] = _ENTRY_POINTS.encode()
    files[f"{information}/RECORD"] = _record(files, f"{information}/RECORD").encode()
    return files


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


def wheel_name() -> str:
    """Return the wheel's file name, as pip requires it."""
    return f"{PACKAGE}-{release()}-py3-none-any.whl"


def wheel() -> bytes:
    """Return a wheel for every platform: it has the C sources, which are to be compiled on the platform."""
    import zipfile  # Imported late: only this function needs it.

    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for name, data in content().items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            files.writestr(entry, data)
    return archive.getvalue()


def _record(files: Mapping[str, bytes], own: str) -> str:
    lines = [f"{name},sha256={_hash(data)},{len(data)}\n" for name, data in files.items()]
    return "".join([*lines, f"{own},,\n"])


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


_METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: All-reduce through a Reduction Server, for PyTorch DDP and NumPy
License: Apache-2.0
Requires-Python: {python}
Requires-Dist: numpy
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: trainshed
Root-Is-Purelib: true
Tag: py3-none-any
"""
_ENTRY_POINTS = """\
[torch.backends]
trainshed_reduction = trainshed_reduction.autoload:autoload
"""
