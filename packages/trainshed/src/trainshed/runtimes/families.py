"""Declares the runtime families and their data sheets. A new family is a sheet here and a folder with its
smoke test and its locks.

TensorFlow's sheet is long and has a module of its own.
"""

from pathlib import Path

from msgspec.structs import replace

from trainshed.core.runtime import REDUCERS, OldWay
from trainshed.runtimes.sheet import (
    ESSENTIAL_SOURCES,
    ESSENTIALS,
    FOUNDATION,
    NCCL,
    SOURCES,
    Change,
    LeftOut,
    Release,
    Sheet,
)
from trainshed.runtimes.tensorflow.sheet import SHEET as TENSORFLOW


def _folder(name: str) -> Path:
    return Path(__file__).parent / name


# Plain Python.

PYTHON = Sheet(
    family="python",
    title="plain Python",
    space="0.8 GB",
    releases=(Release(version="", pythons=((3, 7), (3, 14))),),
    requirements=FOUNDATION,
    sources=SOURCES,
    folder=_folder("python"),
    preferred_pythons=((3, 10), (3, 13)),
)


# scikit-learn: releases of the prebuilt images (facts/packaging#images) and the newest ones.

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
"""Packages that the images of both scikit-learn and XGBoost hold, and that programs for them import."""
OLD_LEARNING = ("google-cloud-bigtable", "google-cloud-pubsub")
"""Packages that only the old images of both hold."""
OLD_DASK = ("dask<2021.4", "distributed<2021.4")
"""XGBoost 1.1 imports dask if it is installed, and newer ones need a newer pandas than fits here."""
LEARNING_SOURCES = ("webapp2==3.0.0b1",)
LEARNING_LEFT_OUT = (LeftOut("crcmod", "there is no wheel of it, and google-crc32c is here"),)

_LATEST = ("numpy>=2,<3", "scipy>=1.13", "xgboost>=3.2,<3.3")
_1_6 = (
    "scikit-learn>=1.6,<1.7",
    "numpy>=1.26,<2; python_version < '3.13'",
    "numpy>=2.1,<3; python_version >= '3.13'",
    "scipy>=1.11,<1.16",
)

SCIKIT_LEARN = Sheet(
    family="scikit-learn",
    title="scikit-learn",
    space="1.5 GB",
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
            version="1.9+slim",
            pythons=((3, 11), (3, 14)),
            requirements=(*ESSENTIALS, "scikit-learn>=1.9,<1.10", "numpy>=2,<3", "scipy>=1.13"),
            sources=ESSENTIAL_SOURCES,
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
    folder=_folder("scikit_learn"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="scikit-learn",
    # The last of them loads what most programs use: linear models, selection, metrics, pipelines.
    preloads=("numpy", "sklearn", "sklearn.ensemble"),
)


# XGBoost: releases of the prebuilt images (facts/packaging#images) and the newest one.


def _with_nccl(release: Release) -> tuple[Release, Release]:
    """Return the release for CPUs, and the same release for machines with GPUs, which communicate by NCCL."""
    cuda = replace(release, version=f"{release.version}+cuda12", for_gpu=True)
    return replace(release, excluded=NCCL), cuda


XGBOOST = Sheet(
    family="xgboost",
    title="XGBoost",
    space="1.5 GB",
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
    folder=_folder("xgboost"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="xgboost",
    preloads=("numpy", "sklearn", "xgboost"),
)


# PyTorch: one version, as a build for CPUs and as a locked build with CUDA. The prebuilt images hold older
# versions, 1.4 to 2.4 (facts/packaging#images). Package indexes keep CPU builds of those in separate places,
# so the nearest version that is available everywhere is this one, and jobs are told.

_COMPANIONS = (
    # All three must be one build: the extensions of the others are compiled for one version of the first.
    "torchvision==0.28.0",
    "torchaudio==2.11.0",
    "torchmetrics",
    "tensorboard",
    "scikit-learn",
    "scipy",
)

PYTORCH = Sheet(
    family="pytorch",
    title="PyTorch",
    space="1.7 GB, and several times as much for GPUs",
    releases=(
        Release(
            version="2.13",
            pythons=((3, 10), (3, 14)),
            requirements=("torch==2.13.0", *_COMPANIONS),
            # The general index has the build with CUDA under this version, which is ten times as large.
            first=("--torch-backend", "cpu"),
        ),
        Release(
            version="2.13+cuda13",
            pythons=((3, 10), (3, 14)),
            requirements=("torch===2.13.0", *_COMPANIONS),
            for_gpu=True,
        ),
    ),
    requirements=FOUNDATION,
    sources=SOURCES,
    left_out=(
        LeftOut("torch-xla", "no TPU is served here", device="tpu"),
        LeftOut("cloud-tpu-client", "no TPU is served here", device="tpu"),
        LeftOut("tpu-info", "no TPU is served here", device="tpu"),
    ),
    folder=_folder("pytorch"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="pytorch",
    usual_python=True,
    preloads=("numpy", "torch"),
    changes=(
        Change(
            since=(2, 6),
            before="torch.load() reads objects of any kind",
            old_way=OldWay(
                "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1", unless="TORCH_FORCE_WEIGHTS_ONLY_LOAD"
            ),
        ),
    ),
)


# Reducers: small, so that the first job with reducers does not wait long.

REDUCTION_SERVER = Sheet(
    family=REDUCERS,
    title="Reduction Server",
    releases=(Release(version="", pythons=((3, 8), (3, 14))),),
    requirements=("numpy>=1.17",),
    folder=_folder("reduction_server"),
    preferred_pythons=((3, 10), (3, 13)),
)


# What the service itself shows event files with (docs/tensorboard.md).

TENSORBOARD = Sheet(
    family="tensorboard",
    title="TensorBoard",
    releases=(
        Release(
            version="2.21",
            pythons=((3, 10), (3, 14)),
            requirements=("tensorboard>=2.21,<2.22",),
            # Its data server opens a port without authentication.
            excluded=("tensorboard-data-server", "setuptools"),
        ),
    ),
    requirements=(),
    folder=_folder("tensorboard"),
    preferred_pythons=((3, 10), (3, 13)),
    usual_python=True,
)


GSUTIL = Sheet(
    family="gsutil",
    title="gsutil",
    releases=(
        Release(
            version="5.38",
            # At least the service's own Python is there.
            pythons=((3, 11), (3, 14)),
            requirements=(
                *(
                    "argcomplete>=3.6.2",
                    "boto>=2.49",
                    "fasteners>=0.14.1",
                    "google-apitools>=0.5.32",
                ),
                *("google-auth==2.39.0", "google-auth-httplib2>=0.3.0", "google-reauth>=0.1.0"),
                *("httplib2==0.20.4", "monotonic>=1.4", "oauth2client==4.1.3", "pyopenssl<=26.4.0"),
                *("requests>=2.20", "rsa==4.7.2", "six>=1.17"),
            ),
            sources=(
                *("crcmod==1.7", "gcs-oauth2-boto-plugin==3.3", "gsutil==5.38"),
                *("pyu2f==0.1.5", "retry-decorator==1.1.1"),
            ),
        ),
    ),
    requirements=(),
    folder=_folder("gsutil"),
    preferred_pythons=((3, 11), (3, 13)),
    usual_python=True,
    command=_folder("gsutil") / "command.py",
)


FAMILIES: tuple[Sheet, ...] = (
    SCIKIT_LEARN,
    PYTHON,
    XGBOOST,
    PYTORCH,
    TENSORFLOW,
    REDUCTION_SERVER,
    TENSORBOARD,
    GSUTIL,
)
"""All families; the first one is the service's default."""


def sheet_of(family: str) -> Sheet | None:
    """Return the sheet of a family; None if it is not registered."""
    return next((sheet for sheet in FAMILIES if sheet.family == family), None)
