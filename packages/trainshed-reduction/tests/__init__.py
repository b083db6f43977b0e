"""Part of the package `tests` of the repository's root. Processes may import this part first."""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[3] / "tests"))
