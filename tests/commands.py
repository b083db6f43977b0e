"""Commands that tests run to their end."""

import subprocess
from os import PathLike
from typing import Any


def execute(
    *words: str | PathLike[str], check: bool = False, timeout: float | None = 1200, **options: Any
) -> subprocess.CompletedProcess[str]:
    """What it printed, and its exit status. `timeout`: seconds after which one that hangs fails its test.
    `options`: of `subprocess.run`."""
    return subprocess.run(
        words, check=check, timeout=timeout, capture_output=True, text=True, **options
    )
