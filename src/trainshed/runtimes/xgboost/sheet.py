"""The data sheet of XGBoost: releases of the prebuilt images (facts §5.2) and the newest one."""

from pathlib import Path

from trainshed.runtimes.python.sheet import FOUNDATION
from trainshed.runtimes.sheet import Release, Sheet

SHEET = Sheet(
    family="xgboost",
    title="XGBoost",
    releases=(
        Release(
            version="3.2",
            pythons=((3, 10), (3, 14)),
            requirements=("xgboost>=3.2,<3.3", "numpy>=2", "scipy", "scikit-learn", "pandas"),
        ),
        Release(
            version="2.1",
            pythons=((3, 9), (3, 13)),
            requirements=(
                *("xgboost>=2.1,<2.2", "numpy>=1.26,<3", "scipy<1.16"),
                *("scikit-learn>=1.6,<1.7", "pandas>=2.2,<3"),
            ),
        ),
        Release(
            version="1.6",
            pythons=((3, 7), (3, 10)),
            requirements=(
                *("xgboost>=1.6,<1.7", "numpy<1.24", "scipy<1.9"),
                *("scikit-learn>=1.0,<1.1", "pandas<1.6"),
            ),
        ),
        Release(
            version="1.1",
            pythons=((3, 6), (3, 8)),
            requirements=(
                *("xgboost>=1.1,<1.2", "numpy<1.20", "scipy<1.6"),
                *("scikit-learn>=0.23,<0.24", "pandas<1.1"),
            ),
        ),
    ),
    requirements=FOUNDATION,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="xgboost",
    missing=("sympy", "google-cloud-bigquery", "google-api-python-client"),
)
