"""Commands that tests run to their end."""

import subprocess
from os import PathLike
from typing import Any


def execute(
    *words: str | PathLike[str], check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """What it printed, and its exit status. `options`: of `subprocess.run`."""
    return subprocess.run(words, check=check, capture_output=True, text=True, **options)
