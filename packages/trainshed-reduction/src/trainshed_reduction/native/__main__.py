"""python -m trainshed_reduction.native: builds the C library into the installed package, as for images."""

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

from trainshed_reduction.native import library

# Builds the C library with whatever C compiler there is.

LIMIT = 240.0
"""Seconds that a compiler may take: one or two, and a hundred times as many on a busy machine."""
FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # Multiplications and additions must each be rounded, as in NumPy.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
)


def build(directory: Path, flags: Sequence[str] = ()) -> Tuple[Optional[Path], str]:
    """Build the library in `directory` unless it is there already; return its path, or None, and why.

    The machine that runs it needs only the architecture and the C library of the one that builds it: further
    abilities of its processor are found at run time. Takes at most LIMIT seconds.
    """
    try:
        path = directory / library.name()
        if path.exists() and not flags:
            return path, ""
        compiler = _compiler()
        if not compiler:
            return (
                None,
                "there is no C compiler (cc, gcc, clang, what $CC names, or pip install ziglang)",
            )
        return _compiled([*compiler, *FLAGS, *flags], path)
    except OSError as error:
        return None, str(error)


def _compiler() -> List[str]:
    try:
        named_compiler = shlex.split(os.environ.get("CC", ""))
    except ValueError:  # A quote is not closed.
        named_compiler = [os.environ["CC"]]
    for command in [named_compiler] if named_compiler else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    if not named_compiler and importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return []


def _compiled(command: Sequence[str], path: Path) -> Tuple[Optional[Path], str]:
    sources = [str(library.DIRECTORY / name) for name in library.SOURCES if name.endswith(".c")]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Built beside its place, so that it gets there by one rename, though others may build it as well.
    with tempfile.TemporaryDirectory(prefix=".building-", dir=str(path.parent)) as workspace:
        made = Path(workspace) / path.name
        complaints = Path(workspace) / "said"
        with complaints.open("wb") as output:
            compiler = subprocess.Popen(
                [*command, "-o", str(made), *sources],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # Zig's caches would be in a home directory, which may be missing.
                env={
                    **os.environ,
                    "ZIG_GLOBAL_CACHE_DIR": workspace,
                    "ZIG_LOCAL_CACHE_DIR": workspace,
                },
            )
            try:
                status = compiler.wait(LIMIT)
            except subprocess.TimeoutExpired:
                # The command only starts other processes, which do the work.
                os.killpg(compiler.pid, signal.SIGKILL)
                compiler.wait()
                return None, f"{command[0]} took longer than {LIMIT:g} seconds"
        if status or not made.exists():
            lines = complaints.read_text(errors="replace").strip().splitlines()
            errors = [line for line in lines if "error" in line] or lines
            return None, f"{command[0]} failed: {errors[0] if errors else status}"
        os.replace(str(made), str(path))
    return path, ""


def main() -> int:
    path, why = build(library.DIRECTORY)
    if path is None:
        sys.stderr.write(f"the part in C of trainshed_reduction was not built: {why}\n")
        return 1
    loaded = library.load()
    if loaded is None:
        sys.stderr.write(f"{path} was built and cannot be used: {library.reason()}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
