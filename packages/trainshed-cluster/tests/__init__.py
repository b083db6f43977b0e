"""Belongs to the package `tests` of the repository's root, even if a process imports this directory first."""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[3] / "tests"))
