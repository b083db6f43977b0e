"""The data sheet of plain Python."""

from pathlib import Path

from trainshed.runtimes.sheet import Release, Sheet

FOUNDATION = (
    "pip",
    # Jobs still import pkg_resources, which setuptools 81 no longer has.
    "setuptools<81",
    "wheel",
    "google-cloud-storage",
    # Newer ones print a warning into every job's log that this Python is old.
    "google-api-core<2.26; python_version < '3.11'",
    "cloudml-hypertune",
)
"""What every runtime holds: installers, gs:// and metric reports (SPEC §3)."""

SHEET = Sheet(
    family="python",
    title="plain Python",
    releases=(Release(version="", pythons=((3, 7), (3, 14))),),
    requirements=FOUNDATION,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
)
