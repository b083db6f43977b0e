"""The data sheet of reducers: small, so that the first job with some does not wait long."""

from pathlib import Path

from trainshed.core.runtime import REDUCERS
from trainshed.runtimes.sheet import Release, Sheet

SHEET = Sheet(
    family=REDUCERS,
    title="Reduction Server",
    releases=(Release(version="", pythons=((3, 8), (3, 14))),),
    requirements=("numpy>=1.17",),
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
)
