"""Starts a program that `trainshed run` has packed: puts its files into the working directory and becomes it.

Travels with the program, so it knows no other module of ours and runs on any Python from 3.6 on. A replica
that is started again finds files that the program has changed as it left them.
"""

import os
import shutil
import sys
from pathlib import Path


def place(files: Path, directory: Path) -> None:
    """Copy what is not there yet; a file is there as a whole or not at all."""
    for path in sorted(files.rglob("*")):
        goal = directory / path.relative_to(files)
        if path.is_dir() or "__pycache__" in path.parts or goal.exists():
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        draft = goal.with_name(goal.name + ".trainshed-new")
        shutil.copyfile(str(path), str(draft))
        draft.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        draft.replace(goal)


def start(entry: str, module: str) -> None:
    """Become the program: `entry` is a file of it, `module` one to be run by -m in its place."""
    place(Path(__file__).resolve().parent / "files", Path.cwd())
    if module:
        words = [sys.executable, "-m", module]
    elif entry.endswith(".sh"):
        words = ["/bin/bash", entry]
    else:
        words = [sys.executable, entry]
    sys.stdout.flush()
    os.execv(words[0], words + sys.argv[1:])
