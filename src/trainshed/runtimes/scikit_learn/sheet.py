"""The data sheet of scikit-learn: releases of the prebuilt images (facts/packaging#images) and the newest
ones."""

from pathlib import Path

from trainshed.runtimes.python.contents import (
    ESSENTIAL_SOURCES,
    ESSENTIALS,
    FOUNDATION,
    NCCL,
    SOURCES,
)
from trainshed.runtimes.sheet import LeftOut, Release, Sheet

LEARNING = (
    "sympy",
    "statsmodels",
    "lightgbm",
    "dask",
    "distributed",
    "google-cloud-datastore",
    "tornado",
    "webob",
    "paste",
)
"""What the images of scikit-learn and of XGBoost hold both, and programs for them import."""
OLD_LEARNING = ("google-cloud-bigtable", "google-cloud-pubsub")
"""What only the old images of both hold."""
OLD_DASK = ("dask<2021.4", "distributed<2021.4")
"""XGBoost 1.1 imports it where it is there, and newer ones want a newer pandas than goes with that."""
LEARNING_SOURCES = ("webapp2==3.0.0b1",)
LEARNING_LEFT_OUT = (LeftOut("crcmod", "there is no wheel of it, and google-crc32c is here"),)

_LATEST = ("numpy>=2,<3", "scipy>=1.13", "xgboost>=3.2,<3.3")
_1_6 = (
    "scikit-learn>=1.6,<1.7",
    "numpy>=1.26,<2; python_version < '3.13'",
    "numpy>=2.1,<3; python_version >= '3.13'",
    "scipy>=1.11,<1.16",
)

SHEET = Sheet(
    family="scikit-learn",
    title="scikit-learn",
    releases=(
        Release(
            version="1.9",
            pythons=((3, 11), (3, 14)),
            requirements=("scikit-learn>=1.9,<1.10", *_LATEST),
            excluded=NCCL,
        ),
        Release(
            version="1.7",
            pythons=((3, 10), (3, 13)),
            requirements=("scikit-learn>=1.7,<1.8", *_LATEST),
            excluded=NCCL,
        ),
        Release(
            version="1.6",
            pythons=((3, 9), (3, 13)),
            requirements=(*_1_6, "xgboost>=2.1,<2.2"),
            excluded=NCCL,
        ),
        Release(
            version="1.6+slim",
            pythons=((3, 9), (3, 13)),
            requirements=(*ESSENTIALS, *_1_6),
            sources=ESSENTIAL_SOURCES,
        ),
        Release(
            version="1.0",
            pythons=((3, 7), (3, 10)),
            # This release and the SciPy of its day use names that NumPy 1.24 removed.
            requirements=(
                *("scikit-learn>=1.0,<1.1", "numpy<1.24", "scipy<1.9", "pandas<1.6"),
                *("xgboost>=1.6,<1.7", *OLD_LEARNING),
            ),
        ),
        Release(
            version="0.23",
            pythons=((3, 6), (3, 8)),
            requirements=(
                *("scikit-learn>=0.23,<0.24", "numpy<1.20", "scipy<1.6", "pandas<1.2"),
                *("xgboost>=1.1,<1.2", *OLD_LEARNING, *OLD_DASK),
            ),
        ),
    ),
    requirements=(*FOUNDATION, *LEARNING),
    sources=(*SOURCES, *LEARNING_SOURCES),
    left_out=LEARNING_LEFT_OUT,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="scikit-learn",
)
