"""The data sheet of scikit-learn: releases of the prebuilt images (facts §5.2) and the newest ones."""

from pathlib import Path

from trainshed.runtimes.python.sheet import FOUNDATION
from trainshed.runtimes.sheet import Release, Sheet

SHEET = Sheet(
    family="scikit-learn",
    title="scikit-learn",
    releases=(
        Release(
            version="1.9",
            pythons=((3, 11), (3, 14)),
            requirements=("scikit-learn>=1.9,<1.10", "numpy>=2", "scipy>=1.13"),
        ),
        Release(
            version="1.7",
            pythons=((3, 10), (3, 13)),
            requirements=("scikit-learn>=1.7,<1.8", "numpy>=2,<3", "scipy>=1.13"),
        ),
        Release(
            version="1.6",
            pythons=((3, 9), (3, 13)),
            requirements=("scikit-learn>=1.6,<1.7", "numpy>=1.26,<3", "scipy>=1.11,<1.16"),
        ),
        Release(
            version="1.0",
            pythons=((3, 7), (3, 10)),
            # This release and the SciPy of its day use names that NumPy 1.24 removed.
            requirements=("scikit-learn>=1.0,<1.1", "numpy<1.24", "scipy<1.9"),
        ),
        Release(
            version="0.23",
            pythons=((3, 6), (3, 8)),
            requirements=("scikit-learn>=0.23,<0.24", "numpy<1.20", "scipy<1.6"),
        ),
    ),
    requirements=FOUNDATION,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="scikit-learn",
    missing=("pandas", "xgboost", "sympy", "google-cloud-bigquery", "google-api-python-client"),
)
