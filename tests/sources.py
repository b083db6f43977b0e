"""Where the source of each distribution is, for processes without the environment of this checkout."""

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
#: The roots of all packages of ours.
SOURCES: Final = tuple(sorted((ROOT / "packages").glob("*/src")))


def search_path(*more: Path | str, root: Path = ROOT) -> str:
    """Return a PYTHONPATH of the sources and of what follows them. `root`: a copy of this checkout."""
    sources = [root / path.relative_to(ROOT) for path in SOURCES]
    return os.pathsep.join(map(str, (*sources, *more)))
