"""The package `trainshed_reduction` in the cache, as programs of jobs with reducers import it: once for all
jobs and Pythons.

Named by its sources and by the compiler that made its part in C, which is left out where there is none: sums
are native then.
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

from trainshed.reduction import distribution
from trainshed.runtimes.port import BuildFailed, Progress
from trainshed.runtimes.shelf import Shelf, waiting_for
from trainshed.runtimes.trees import let_read

_LAYOUT = "1"
_COMPILERS = ("cc", "gcc", "clang")
_PASSED_ON = ("CC", "PATH", "TMPDIR")
_SECONDS = 60.0
"""Longer than the package itself gives its compiler."""


class Reduction:
    """The package `trainshed_reduction` on its shelf, `root`."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self._shelf = Shelf(root)
        #: Where a compiler is looked for (PATH, CC); None = this process's.
        self._environ = os.environ if environ is None else environ

    @cached_property
    def key(self) -> str:
        """The name that says what is in it."""
        parts = [
            _LAYOUT,
            distribution.digest(),
            platform.system(),
            platform.machine(),
            *(distribution.built() or [self._compiler()]),
        ]
        return f"{distribution.release()}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"

    def find(self) -> Path | None:
        """The directory for PYTHONPATH if it is there. Fast."""
        return self._shelf.path(self.key) if self._shelf.has(self.key) else None

    def used(self) -> None:
        """A program is about to be started with it."""
        self._shelf.used(self.key)

    def build(self, progress: Progress) -> Path:
        """Make it unless it is there. Blocks, a second or two. Raises BuildFailed; leaves nothing then."""

        def fill(draft: Path) -> None:
            progress(
                f"Preparing {distribution.NAME} {distribution.release()} for this job's reducers and workers."
            )
            distribution.unpack(draft)
            said = self._run(draft, "-m", f"{distribution.PACKAGE}.native")
            if said:
                progress(f"Reducers are not used, and all-reduce is native: {said}")
            # Reducers are to be back quickly, and could not keep what they have compiled.
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
        """Run our Python in the draft; what it says if it fails, in a line. Nothing that it does is needed to
        be right."""
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
        """What tells the compiler from another one and from a newer one; "" if there is none."""
        told = shlex.split(self._environ.get("CC", ""))[:1]
        for command in told or _COMPILERS:
            if found := shutil.which(command, path=self._environ.get("PATH")):
                stat = Path(found).resolve().stat()
                return f"{found} {stat.st_size} {stat.st_mtime_ns}"
        zig = None if told else importlib.util.find_spec("ziglang")
        return f"ziglang {zig.origin}" if zig else ""
