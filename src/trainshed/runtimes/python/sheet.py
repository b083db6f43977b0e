"""The data sheet of plain Python."""

from pathlib import Path

from trainshed.runtimes.python.contents import FOUNDATION, SOURCES
from trainshed.runtimes.sheet import Release, Sheet

SHEET = Sheet(
    family="python",
    title="plain Python",
    releases=(Release(version="", pythons=((3, 7), (3, 14))),),
    requirements=FOUNDATION,
    sources=SOURCES,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
)
