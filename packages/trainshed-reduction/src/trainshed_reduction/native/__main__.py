"""python -m trainshed_reduction.native: builds the C library inside the installed package, for example in an
image."""

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

COMPILER_TIMEOUT = 240.0
"""Maximum seconds for which the compiler may run. It usually takes one or two seconds, and much longer on a
busy machine."""
FLAGS = (
    "-std=c11",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    # Round after each multiplication and after each addition, as NumPy does.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
)


def build(directory: Path, flags: Sequence[str] = ()) -> Tuple[Optional[Path], str]:
    """Build the library in `directory`, unless it exists there. Return (path, "") on success, or (None, error
    message).

    The library runs on machines with the same architecture and C library. It detects other features of the
    processor at run time. Takes up to COMPILER_TIMEOUT.
    """
    try:
        path = directory / library.name()
        if path.exists() and not flags:
            return path, ""
        compiler = _compiler()
        if not compiler:
            return (None, "no C compiler was found: install cc, gcc or clang, set CC, or pip install ziglang")
        return _compile([*compiler, *FLAGS, *flags], path)
    except OSError as error:
        return None, str(error)


def _compiler() -> List[str]:
    try:
        named_compiler = shlex.split(os.environ.get("CC", ""))
    except ValueError:  # The variable CC contains unbalanced quotes, so treat it as a path.
        named_compiler = [os.environ["CC"]]
    for command in [named_compiler] if named_compiler else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    if not named_compiler and importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    return []


def _compile(command: Sequence[str], path: Path) -> Tuple[Optional[Path], str]:
    sources = [str(library.DIRECTORY / name) for name in library.SOURCES if name.endswith(".c")]
    path.parent.mkdir(parents=True, exist_ok=True)
    # Build in a temporary directory and then rename the file, because other processes may build the library
    # at the same time.
    with tempfile.TemporaryDirectory(prefix=".building-", dir=str(path.parent)) as workspace:
        made = Path(workspace) / path.name
        complaints = Path(workspace) / "errors"
        with complaints.open("wb") as output:
            compiler = subprocess.Popen(
                [*command, "-o", str(made), *sources],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                # Set Zig's cache directories: by default, Zig stores its caches in the home directory, which
                # may not exist.
                env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": workspace, "ZIG_LOCAL_CACHE_DIR": workspace},
            )
            try:
                status = compiler.wait(COMPILER_TIMEOUT)
            except subprocess.TimeoutExpired:
                # Kill the whole process group, because child processes of the compiler do the work.
                os.killpg(compiler.pid, signal.SIGKILL)
                compiler.wait()
                return None, f"{command[0]} took longer than {COMPILER_TIMEOUT:g} seconds"
        if status or not made.exists():
            lines = complaints.read_text(errors="replace").strip().splitlines()
            errors = [line for line in lines if "error" in line] or lines
            return None, f"{command[0]} failed: {errors[0] if errors else status}"
        os.replace(str(made), str(path))
    return path, ""


def main() -> int:
    path, why = build(library.DIRECTORY)
    if path is None:
        sys.stderr.write(f"the C library of trainshed_reduction was not built: {why}\n")
        return 1
    loaded = library.load()
    if loaded is None:
        sys.stderr.write(f"{path} was built but is unusable: {library.reason()}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
