"""A part of the root's package of tests, also for a process that finds this part first."""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[3] / "tests"))
