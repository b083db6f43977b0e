"""Commands that tests run."""

import contextlib
import shutil
import subprocess
from collections.abc import Generator
from os import PathLike
from pathlib import Path
from typing import Any

import pytest

from trainshed.replica.system import kernel

needs_compiler = pytest.mark.skipif(
    not shutil.which("cc"), reason="the reducers' C library needs a compiler: NOT tested"
)


def execute(
    *words: str | PathLike[str], check: bool = False, timeout: float | None = 1200, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command; return its output and exit status. `timeout`: seconds after which the test fails.
    `options`: of `subprocess.run`.
    """
    return subprocess.run(words, check=check, timeout=timeout, capture_output=True, text=True, **options)


@contextlib.contextmanager
def running(*words: str | PathLike[str], **options: Any) -> Generator[subprocess.Popen[Any]]:
    """Start an interactive command. It is killed at the end of the block, so that a failed test does not wait
    for it."""
    with subprocess.Popen(words, **options) as process, contextlib.ExitStack() as at_end:
        at_end.callback(process.kill)
        yield process


@contextlib.contextmanager
def disk_of(options: str, place: Path) -> Generator[Path]:
    """Mount a tmpfs at `place`, with a size from `options`."""
    place.mkdir()
    try:
        kernel.mount("tmpfs", str(place), "tmpfs", 0, options)
    except OSError as error:
        pytest.skip(f"this user may not mount anything: {error}")
    try:
        yield place
    finally:
        execute("umount", "-l", place, check=True)


def fill(disk: Path) -> Path:
    """Fill the file system completely. Return the file to delete to free space."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 1000):
            pass
    return filler
