"""The data sheet of TensorFlow: releases of the prebuilt images, of runtime versions, and the newest (facts §5.1, §5.2).

A runtime version was an image with several frameworks, and so were the old TensorFlow images: up to 2.11 a release
holds scikit-learn and XGBoost of its day as well. One environment then serves both.
"""

from dataclasses import replace
from pathlib import Path

from trainshed.runtimes.python.contents import ESSENTIAL_SOURCES, ESSENTIALS
from trainshed.runtimes.sheet import LeftOut, Minor, Release, Sheet, parse_minor

_COMPANIONS = ("numpy", "pandas", "scipy", "scikit-learn")
_NUMPY_1 = ("numpy<2", "pandas<3", "scipy<1.16", "scikit-learn<1.7")
_KERAS_3 = (*_NUMPY_1, "keras<3.10")
_SINCE_2_12 = "protobuf>=3.20.3,<5"
_NUMPY_1_19 = ("numpy<1.20", "pandas<1.2", "scipy<1.6", "scikit-learn>=0.24,<0.25")
_NUMPY_1_23 = ("numpy<1.24", "pandas<1.6", "scipy<1.11", "scikit-learn>=1.0,<1.1")


def _release(
    version: str, low: Minor, high: Minor, *companions: str, protobuf: str = "protobuf<3.20"
) -> Release:
    """`companions`: what goes with it, in the versions that it runs with."""
    # The first patches of some versions take any newer Keras, which then does not fit. With a lower bound release
    # candidates are none.
    keras = (f"keras=={version}.*",) if (2, 6) <= (parse_minor(version) or low) <= (2, 15) else ()
    return Release(
        version=version,
        pythons=(low, high),
        requirements=(f"tensorflow>={version}.0,=={version}.*", *keras, protobuf, *companions),
    )


def _old(version: str, high: Minor, xgboost: str, scikit_learn: str, scipy: str) -> Release:
    """Releases from before NumPy 1.19; h5py 3 returns bytes where they expect text."""
    companions = (
        *("numpy<1.19", "pandas<1.1", f"scipy{scipy}", f"scikit-learn=={scikit_learn}.*"),
        *(f"xgboost=={xgboost}.*", "h5py<3"),
    )
    return _release(version, (3, 7), high, *companions)


def _with_cuda(release: Release) -> tuple[Release, Release]:
    """The release, and the same with the CUDA libraries that it was built against."""
    framework, *others = release.requirements
    cuda = replace(
        release,
        version=f"{release.version}+cuda12",
        requirements=(framework.replace("tensorflow", "tensorflow[and-cuda]"), *others),
        for_gpu=True,
    )
    return release, cuda


SHEET = Sheet(
    family="tensorflow",
    title="TensorFlow",
    releases=(
        *_with_cuda(_release("2.21", (3, 10), (3, 13), *_COMPANIONS, protobuf="protobuf>=6")),
        *_with_cuda(_release("2.17", (3, 9), (3, 12), *_KERAS_3, protobuf=_SINCE_2_12)),
        *_with_cuda(_release("2.16", (3, 9), (3, 12), *_KERAS_3, protobuf=_SINCE_2_12)),
        *_with_cuda(_release("2.15", (3, 9), (3, 11), *_NUMPY_1, protobuf=_SINCE_2_12)),
        _release("2.14", (3, 9), (3, 11), *_NUMPY_1, protobuf=_SINCE_2_12),
        # Newer gRPC asks for a typing-extensions that this one excludes.
        _release("2.13", (3, 8), (3, 11), *_NUMPY_1, "grpcio<1.70", protobuf=_SINCE_2_12),
        _release("2.12", (3, 8), (3, 11), *_NUMPY_1, protobuf=_SINCE_2_12),
        _release("2.11", (3, 7), (3, 10), *_NUMPY_1_23, "xgboost==1.6.*"),
        _release("2.9", (3, 7), (3, 10), *_NUMPY_1_23, "xgboost==1.6.*"),
        _release("2.8", (3, 7), (3, 10), *_NUMPY_1_23, "xgboost==1.5.*"),
        _release("2.7", (3, 7), (3, 9), *_NUMPY_1_23, "xgboost==1.5.*"),
        # The later patches agree with older clients of Cloud Storage only, so they have to be asked for.
        _release("2.6", (3, 7), (3, 9), *_NUMPY_1_19, "xgboost==1.4.*", "tensorflow>=2.6.5"),
        _release("2.5", (3, 7), (3, 9), *_NUMPY_1_19, "xgboost==1.4.*"),
        _release("2.4", (3, 7), (3, 8), *_NUMPY_1_19, "xgboost==1.3.*"),
        _old("2.3", (3, 8), xgboost="1.2", scikit_learn="0.23", scipy="<1.6"),
        _old("2.2", (3, 8), xgboost="1.1", scikit_learn="0.23", scipy="<1.6"),
        _old("2.1", (3, 7), xgboost="0.90", scikit_learn="0.22", scipy="==1.4.1"),
        _old("1.15", (3, 7), xgboost="0.90", scikit_learn="0.20", scipy="<1.3"),
    ),
    requirements=ESSENTIALS,
    sources=ESSENTIAL_SOURCES,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="tensorflow",
    left_out=tuple(
        LeftOut(name, "not locked yet")
        for name in ("sympy", "statsmodels", "google-cloud-bigquery", "google-api-python-client")
    ),
    runtime_versions=True,
)
