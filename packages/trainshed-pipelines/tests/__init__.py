"""A portion of the root package `tests`, also for a process that imports this portion first."""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[3] / "tests"))
