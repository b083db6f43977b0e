"""Bundles the compiled modules that agents load in one file, because Python takes as long to find them one by
one as to run them, while programs wait (docs/adr/0100).

The bundle is for nodes that see the service's cache and run the service's own interpreter. A background
process that loads what an agent loads makes it when the first agent of this code is started. That agent does
without it, as do agents that cannot read it, or run another build of Python.
"""

import contextlib
import hashlib
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

BEGIN = """\
import gc, marshal, sys
gc.disable()
sys.path[:0] = sys.argv[3:]
try:
    with open(sys.argv[2], "rb") as code:
        if code.readline() == ascii(sys.version).encode() + b"\\n":
            exec(marshal.loads(code.read(int(code.readline()))), {"code": code, "__name__": "bundle_finder"})
except (OSError, ValueError, EOFError, TypeError):
    pass
from trainshed.engines.remote.start import main
main()
"""
"""What an agent's interpreter is told to run. Its arguments: a name, the bundle's file ("" = there is none),
and where to look for modules."""

_COLLECT = """\
import gc, os, sys
os.nice(19)
gc.disable()
sys.path[:0] = sys.argv[2:]
known = set(sys.modules)
from trainshed.engines.remote import start
from trainshed.replica import zygote
import zlib
first = [name for name in sys.modules if name not in known]
from trainshed.engines.remote import agent_process
rest = [name for name in sys.modules if name not in known and name not in first]
import marshal
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from trainshed.engines.remote import bundle_finder

def collected(names):
    index, codes = [], []
    for name in names:
        spec = getattr(sys.modules[name], "__spec__", None)
        if spec is None or spec.name != name:
            continue
        is_package = spec.submodule_search_locations is not None
        if type(spec.loader) is SourceFileLoader:
            code = marshal.dumps(spec.loader.get_code(name))
        elif type(spec.loader) is ExtensionFileLoader:
            code = b""
        else:
            continue
        index.append((name, spec.origin, is_package, len(code)))
        codes.append(code)
    return marshal.dumps(index), b"".join(codes)

finder = marshal.dumps(bundle_finder.__spec__.loader.get_code(bundle_finder.__name__))
with open(sys.argv[1], "wb") as file:
    file.write(b"%s\\n%d\\n" % (ascii(sys.version).encode(), len(finder)))
    file.write(finder)
    for names in first, rest:
        index, codes = collected(names)
        file.write(b"%d %d\\n" % (len(index), len(codes)))
        file.write(index + codes)
"""
_LONGEST = 300.0
"""Seconds that it may take to make it."""
_OLD = 30 * 86400.0
"""Seconds after which one is removed that no service has used since its start."""
_PACKAGE = Path(__file__).parents[2]


class ModuleBundle:
    """The bundle of this service's code. `cache`: where it is kept, for all services of the same code.
    `paths`: where modules are looked for."""

    def __init__(self, cache: Path, paths: Sequence[str]) -> None:
        self._cache = cache
        self._paths = paths
        self._making: threading.Thread | None = None
        self._path = ""

    def path(self) -> str:
        """Return the bundle's path; "" = it does not exist yet. The first call has it made."""
        if self._making is None:
            self._making = threading.Thread(target=self._make, name="agents' modules", daemon=True)
            self._making.start()
        return self._path

    def wait(self) -> None:
        """Wait until it is made, or cannot be. Called after `path`."""
        if self._making is not None:
            self._making.join()

    def _make(self) -> None:
        try:
            path = self._cache / f"agents-{self._code()}.modules"
            if not path.exists():
                remove_unused(self._cache, "agents-*.*")
                self._cache.mkdir(parents=True, exist_ok=True)
                collect(path, self._paths)
            os.utime(path)
            self._path = str(path)
        except (OSError, subprocess.SubprocessError) as failure:
            told = getattr(failure, "stderr", None) or b""
            log.warning("agents look for their modules one by one: %s %s", failure, told[-500:])

    def _code(self) -> str:
        """Return what identifies this code: Python's build, the installed packages, and this package's
        files."""
        said = hashlib.sha256(ascii((sys.version, sys.executable, *self._paths)).encode())
        # Not the directories: the working directory may be one, and compiled modules come into others.
        installed = (info for path in self._paths for info in sorted(Path(path).glob("*-info")))
        for path in (*installed, *sorted(_PACKAGE.rglob("*.py"))):
            found = path.stat()
            said.update(b"%d %d %d\n" % (found.st_ino, found.st_mtime_ns, found.st_size))
        return said.hexdigest()[:16]


def remove_unused(cache: Path, pattern: str) -> None:
    """Remove files of the cache that no service has used for a month, by their times, which services update.
    Raises OSError."""
    for one in cache.glob(pattern):
        # Another service may remove them as well.
        with contextlib.suppress(FileNotFoundError):
            if one.stat().st_mtime < time.time() - _OLD:
                one.unlink()


def collect(path: Path, paths: Sequence[str]) -> None:
    """Make the bundle at `path`. `paths`: where modules are looked for. Blocks for seconds. Raises OSError,
    SubprocessError."""
    # Another cluster's engine of this service may make the same.
    draft = path.with_suffix(f".{secrets.token_hex(4)}.new")
    command = [sys.executable, "-I", "-S", "-c", _COLLECT, str(draft), *paths]
    subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST)
    draft.chmod(0o644)
    draft.replace(path)
