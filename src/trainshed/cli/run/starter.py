"""Starts a program that `trainshed run` has packed: puts its files into the working directory and becomes it.

Travels with the program, so it knows no other module of ours and runs on any Python from 3.6 on. A replica
that is started again finds files that the program has changed as it left them.
"""

import json
import os
import shutil
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


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


def place_files() -> None:
    """Put all files of the program into the working directory."""
    place(_HERE / "files", Path.cwd())


def start() -> None:
    """Become the program. `begin.json` says what that is: a `file` of it, or a `module` to be run by -m in
    its place. A replica that begins warm does that by itself (docs/warm-starts.md)."""
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
