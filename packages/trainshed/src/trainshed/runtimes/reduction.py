"""Prepares the package `trainshed_reduction` in the cache, as programs of jobs with reducers import it, once
for all jobs and Pythons.

It is named by its sources and by the compiler that made its part in C. Without a compiler that part is
missing, and sums are native.
"""

import hashlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from trainshed.runtimes import reduction_distribution as distribution
from trainshed.runtimes.port import BuildFailed, Progress
from trainshed.runtimes.shelf import Shelf, waiting_for
from trainshed.runtimes.trees import let_read

_LAYOUT = "1"
_COMPILERS = ("cc", "gcc", "clang")
_PASSED_ON = ("CC", "PATH", "TMPDIR")
_SECONDS = 60.0
"""Seconds for each step; more than the package itself gives its compiler."""


class Reduction:
    """The package `trainshed_reduction` on its shelf, `root`."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self._shelf = Shelf(root)
        #: Variables by which a compiler is found (PATH, CC); None = this process's.
        self._environ = os.environ if environ is None else environ

    @cached_property
    def key(self) -> str:
        """The package's name on the shelf, which identifies its content."""
        parts = [
            _LAYOUT,
            distribution.digest(),
            platform.system(),
            platform.machine(),
            *(distribution.built() or [self._compiler()]),
        ]
        return f"{distribution.release()}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"

    def find(self) -> Path | None:
        """Return the directory for PYTHONPATH if it is prepared. Fast."""
        return self._shelf.path(self.key) if self._shelf.has(self.key) else None

    def used(self) -> None:
        """Record that a program is about to be started with the package."""
        self._shelf.used(self.key)

    def build(self, progress: Progress) -> Path:
        """Prepare the package unless it exists; return its directory. Blocks, a second or two. Raises
        BuildFailed, and leaves nothing in that case."""

        def fill(draft: Path) -> None:
            progress(
                f"Preparing {distribution.NAME} {distribution.release()} for this job's reducers and workers."
            )
            distribution.unpack(draft)
            lines = self._run(draft, "-m", f"{distribution.PACKAGE}.native")
            if lines:
                progress(f"Reducers are not used, and all-reduce is native: {lines}")
            # Reducers are to restart quickly, and could not keep what they have compiled.
            self._run(draft, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", ".")
            let_read(draft)

        try:
            return self._shelf.put(self.key, fill, waiting=waiting_for(progress))
        except OSError as failure:
            raise BuildFailed(
                f"{distribution.NAME} could not be written: {failure}. Check the disk and the "
                "permissions of the cache"
                " directory, or choose another one with $TRAINSHED_CACHE."
            ) from failure

    def _run(self, draft: Path, *arguments: str) -> str:
        """Run our Python in the draft; return the last line of its output if it fails, "" if not. No step is
        needed for correct results."""
        passed_on = {name: self._environ[name] for name in _PASSED_ON if name in self._environ}
        try:
            done = subprocess.run(
                [sys.executable, "-s", *arguments],
                cwd=draft,
                env={**passed_on, "PYTHONPATH": str(draft), "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"{arguments[1]} took longer than {_SECONDS:g} s"
        lines = done.stdout.decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line), "?") if done.returncode else ""

    def _compiler(self) -> str:
        """Return a text that identifies the compiler and its version; "" if there is none."""
        own = shlex.split(self._environ.get("CC", ""))[:1]
        for command in own or _COMPILERS:
            if path := shutil.which(command, path=self._environ.get("PATH")):
                stat = Path(path).resolve().stat()
                return f"{path} {stat.st_size} {stat.st_mtime_ns}"
        zig = None if own else importlib.util.find_spec("ziglang")
        return f"ziglang {zig.origin}" if zig else ""
