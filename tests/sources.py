"""Source directories of the distributions, for processes outside this checkout's environment."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: The source roots of all packages of the project.
SOURCES: Final = tuple(sorted((ROOT / "packages").glob("*/src")))


def search_path(*more: Path | str, root: Path = ROOT) -> str:
    """Return a PYTHONPATH of the sources, followed by `more`. `root`: a copy of this checkout."""
    sources = [root / path.relative_to(ROOT) for path in SOURCES]
    return os.pathsep.join(map(str, (*sources, *more)))
