"""Prepares the package `trainshed_reduction` in the cache, for programs of jobs with reducers. All jobs and
Pythons share it.

Its name depends on its sources and on the compiler of its C part. Without a compiler, the C part is missing,
and the frameworks' own all-reduce is used. After a compiler error, this lasts for an hour.
"""

import functools
import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cached_property, partial
from importlib.metadata import version as installed
from pathlib import Path

import trainshed_reduction
from trainshed.runtimes.port import BuildFailed, Progress
from trainshed.runtimes.shelf import Shelf
from trainshed.runtimes.stop import Stop, kill
from trainshed.runtimes.trees import let_read

PACKAGE = "trainshed_reduction"
NAME = "trainshed-reduction"

_SOURCE = Path(trainshed_reduction.__file__).parent
_SUFFIXES = frozenset({".py", ".c", ".h", ".typed"})


@functools.cache
def content() -> Mapping[str, bytes]:
    """Return every file of the distribution. The keys are paths with slashes, relative to `site-packages`."""
    information = f"{PACKAGE}-{release()}.dist-info"
    sources = (path for path in sorted(_SOURCE.rglob("*")) if path.suffix in _SUFFIXES)
    return {
        **{f"{PACKAGE}/{path.relative_to(_SOURCE).as_posix()}": path.read_bytes() for path in sources},
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {release()}\n".encode(),
        # PyTorch loads the package by this entry point.
        f"{information}/entry_points.txt": (
            b"[torch.backends]\ntrainshed_reduction = trainshed_reduction.autoload:autoload\n"
        ),
    }


def release() -> str:
    """Return the distribution's version, which is the version of the service."""
    return installed("trainshed")


@functools.cache
def digest() -> str:
    """Return a digest of the distribution's files as 64 hexadecimal digits."""
    hashed = hashlib.sha256()
    for name, data in content().items():
        hashed.update(b"%s\0%d\0" % (name.encode(), len(data)))
        hashed.update(data)
    return hashed.hexdigest()


def unpack(directory: Path) -> None:
    """Write the files and the compiled libraries to a directory for PYTHONPATH, which is created if
    necessary. Raises OSError."""
    for name, data in (*content().items(), *compiled_libraries().items()):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def compiled_libraries() -> Mapping[str, bytes]:
    """Return the compiled C libraries that are next to their sources, by path like `content`. Only images of
    the service contain them."""
    libraries = sorted((_SOURCE / "native").glob("*.so"))
    return {f"{PACKAGE}/native/{path.name}": path.read_bytes() for path in libraries}


_LAYOUT = "1"
_COMPILERS = ("cc", "gcc", "clang")
_INHERITED_NAMES = ("CC", "PATH", "TMPDIR")
_STEP_TIMEOUT = 300.0
"""Timeout of each step in seconds. It is longer than the package's own timeout for its compiler."""
_RETRY_INTERVAL = 3600
"""Seconds before a compiler that has failed is tried again. It may have lacked time or memory."""


class _NotCompiled(Exception):
    """A compiler exists, but it could not build the C part."""


class Reduction:
    """Prepares the package `trainshed_reduction` on its shelf, the directory `root`."""

    def __init__(
        self, root: Path, environ: Mapping[str, str] | None = None, closing: Stop | None = None
    ) -> None:
        """`closing`: stops `build`, which then raises BuildFailed."""
        self._shelf, self._closing = Shelf(root), closing or Stop()
        #: Variables that determine the compiler (PATH, CC); None = those of this process.
        self._environ = os.environ if environ is None else environ

    @cached_property
    def key(self) -> str:
        """The name of the package's directory on the shelf. It identifies the content."""
        parts = [
            _LAYOUT,
            digest(),
            platform.system(),
            platform.machine(),
            *(compiled_libraries() or [self._compiler()]),
        ]
        return f"{release()}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"

    @property
    def _key_without_native(self) -> str:
        """The name of the directory on the shelf for the package without its C part. It changes after
        `_RETRY_INTERVAL`, so that a failed compiler is tried again."""
        return f"{self.key}-without-{int(time.time()) // _RETRY_INTERVAL}"

    def find(self) -> Path | None:
        """Return the directory for PYTHONPATH if it is prepared, otherwise None. Records the use. Fast."""
        key = next(filter(self._shelf.has, (self.key, self._key_without_native)), None)
        if key is None:
            return None
        self._shelf.record_use(key)
        return self._shelf.path(key)

    def build(self, progress: Progress) -> Path:
        """Prepare the package unless it exists; return its directory. Blocks for one or two seconds. If it
        raises BuildFailed, it leaves no files."""

        def fill(draft: Path, *, is_whole: bool = True) -> None:
            unpack(draft)
            if is_whole:
                progress(f"Preparing {NAME} {release()} for this job's reducers and workers.")
                if lines := self._run(draft, "-m", f"{PACKAGE}.native"):
                    progress(f"Reducers are not used, and all-reduce is native: {lines}")
                    if self._compiler():
                        raise _NotCompiled
            # Compile in advance: reducers must restart quickly, and cannot store their own compiled modules.
            self._run(draft, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", ".")
            let_read(draft)

        try:
            try:
                return self._shelf.put(self.key, fill, progress=progress)
            except _NotCompiled:
                without = partial(fill, is_whole=False)
                return self._shelf.put(self._key_without_native, without, progress=progress)
        except OSError as failure:
            raise BuildFailed(
                f"{NAME} could not be written: {failure}. Check the disk and the permissions of the cache "
                "directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure

    def _run(self, draft: Path, *arguments: str) -> str | None:
        """Run Python with `arguments` in the directory `draft`. Return the last line of its output on
        failure, otherwise None. A failure never makes results wrong."""
        passed_on = {name: self._environ[name] for name in _INHERITED_NAMES if name in self._environ}
        with subprocess.Popen(
            [sys.executable, "-s", *arguments],
            cwd=draft,
            env={**passed_on, "PYTHONPATH": str(draft), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            self._closing.register(process, partial(kill, process))
            try:
                output, _ = process.communicate(timeout=_STEP_TIMEOUT)
            except subprocess.TimeoutExpired:
                kill(process)
                return f"{arguments[1]} took longer than {_STEP_TIMEOUT:g} s"
            finally:
                self._closing.unregister(process)
        self._closing.check()
        lines = output.decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line), "?") if process.returncode else None

    def _compiler(self) -> str:
        """Return a text that identifies the compiler and its version, or "" if there is no compiler."""
        own = shlex.split(self._environ.get("CC", ""))[:1]
        for command in own or _COMPILERS:
            if path := shutil.which(command, path=self._environ.get("PATH")):
                stat = Path(path).resolve().stat()
                return f"{path} {stat.st_size} {stat.st_mtime_ns}"
        zig = None if own else importlib.util.find_spec("ziglang")
        return f"ziglang {zig.origin}" if zig else ""
