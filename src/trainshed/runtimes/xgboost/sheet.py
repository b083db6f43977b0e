"""The data sheet of XGBoost: releases of the prebuilt images (facts/packaging#images) and the newest one."""

from dataclasses import replace
from pathlib import Path

from trainshed.runtimes.python.contents import FOUNDATION, NCCL, SOURCES
from trainshed.runtimes.scikit_learn.sheet import (
    LEARNING,
    LEARNING_LEFT_OUT,
    LEARNING_SOURCES,
    OLD_DASK,
    OLD_LEARNING,
)
from trainshed.runtimes.sheet import Release, Sheet


def _with_nccl(release: Release) -> tuple[Release, Release]:
    """The release for CPUs, and the same for machines with GPUs, several of which talk to each other by
    NCCL."""
    cuda = replace(release, version=f"{release.version}+cuda12", for_gpu=True)
    return replace(release, excluded=NCCL), cuda


SHEET = Sheet(
    family="xgboost",
    title="XGBoost",
    releases=(
        *_with_nccl(
            Release(
                version="3.2",
                pythons=((3, 10), (3, 14)),
                requirements=("xgboost>=3.2,<3.3", "numpy>=2", "scipy", "scikit-learn"),
            )
        ),
        *_with_nccl(
            Release(
                version="2.1",
                pythons=((3, 9), (3, 13)),
                requirements=(
                    "xgboost>=2.1,<2.2",
                    "numpy>=1.26,<2; python_version < '3.13'",
                    "numpy>=2.1,<3; python_version >= '3.13'",
                    "scipy<1.16",
                    "scikit-learn>=1.6,<1.7",
                    "pandas>=2.2",
                ),
            )
        ),
        Release(
            version="1.6",
            pythons=((3, 7), (3, 10)),
            requirements=(
                *("xgboost>=1.6,<1.7", "numpy<1.24", "scipy<1.9"),
                *("scikit-learn>=1.0,<1.1", "pandas<1.6", *OLD_LEARNING),
            ),
        ),
        Release(
            version="1.1",
            pythons=((3, 6), (3, 8)),
            requirements=(
                *("xgboost>=1.1,<1.2", "numpy<1.20", "scipy<1.6"),
                *("scikit-learn>=0.23,<0.24", "pandas<1.1"),
                *(*OLD_LEARNING, *OLD_DASK),
            ),
        ),
    ),
    requirements=(*FOUNDATION, *LEARNING),
    sources=(*SOURCES, *LEARNING_SOURCES),
    left_out=LEARNING_LEFT_OUT,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="xgboost",
)
