"""Starts a program of `trainshed run`: copies its files into the working directory and executes it. A
restarted replica keeps files that the program has changed.

This module is packed with the program, so it imports no other module of Trainshed, and supports Python 3.6
and later.
"""

import json
import os
import shutil
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def place(files: Path, directory: Path) -> None:
    """Copy the files that the directory does not contain yet. Each file appears there complete or not at
    all."""
    for path in sorted(files.rglob("*")):
        goal = directory / path.relative_to(files)
        if path.is_dir() or "__pycache__" in path.parts or goal.exists():
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        draft = goal.with_name(goal.name + ".trainshed-new")
        shutil.copyfile(str(path), str(draft))
        draft.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        draft.replace(goal)


def place_files() -> None:
    """Copy the program's files into the working directory."""
    place(_HERE / "files", Path.cwd())


def start() -> None:
    """Replace this process with the program, which is the `file` or `module` in `begin.json`. A replica that
    starts warm does not call this function (docs/warm-starts.md)."""
    place_files()
    begin = json.loads((_HERE / "begin.json").read_text(encoding="utf-8"))
    if begin["module"]:
        words = [sys.executable, "-m", begin["module"]]
    elif begin["file"].endswith(".sh"):
        words = ["/bin/bash", begin["file"]]
    else:
        words = [sys.executable, begin["file"]]
    sys.stdout.flush()
    os.execv(words[0], words + sys.argv[1:])
