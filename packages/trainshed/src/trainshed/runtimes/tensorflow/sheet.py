"""Declares the data sheet of TensorFlow: releases of the prebuilt images, of runtime versions, and the newest
ones (facts/packaging#runtime-versions, facts/packaging#images).

A runtime version was an image with several frameworks, and so were the TensorFlow images: a release also
holds scikit-learn and XGBoost of its time. So one environment serves both.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from trainshed.runtimes.sheet import FOUNDATION, NCCL, SOURCES, LeftOut, Minor, Release, Sheet

_BEFORE_2_12 = "protobuf<3.20"
# gym: newer versions do not build with current setuptools. pyyaml 5 loads without an explicit loader.
_CLIENTS_1 = (
    *("google-cloud-storage<2", "google-cloud-bigtable<2", "google-cloud-logging<2"),
    *("google-cloud-resource-manager<1", "h5py<3", "tornado<6", "pyyaml<6", "gym==0.17.*"),
    *("pyglet<2", "opencv-python-headless<4.7", _BEFORE_2_12),
)
_OLDEST = (
    *(*_CLIENTS_1, "google-cloud-bigquery<2", "google-cloud-datastore<2"),
    *("google-cloud-pubsub<2", "google-api-python-client<2", "python-json-logger<1"),
)
_OLD = (
    *(*_CLIENTS_1, "google-cloud-bigquery<3", "google-cloud-datastore<3", "google-cloud-pubsub<3"),
    *("google-api-python-client<3", "python-json-logger<3", "mock<5"),
)
_NUMPY_1_19 = (
    *("numpy<1.20", "pandas<1.2", "scipy<1.6", "scikit-learn==0.24.*", "statsmodels==0.12.*"),
    *("sympy==1.8.*", "mock<5", "python-json-logger<3", "gym<0.24,!=0.21.0", "pyyaml<6"),
    *("opencv-python-headless<4.7", "apache-beam>=2.38; python_version >= '3.9'"),
    *("pyarrow>=3; python_version >= '3.9'", _BEFORE_2_12),
)
_NUMPY_1_23 = (
    *("numpy<1.24", "pandas<1.6", "scipy<1.11", "scikit-learn>=1.0,<1.1", "mock<5"),
    *("python-json-logger<3", "google-cloud-resource-manager<2", "gym<0.24,!=0.21.0"),
    *("opencv-python-headless<4.9", "apache-beam>=2.43", "tensorflow-metadata>=1"),
    *("pyarrow>=6; python_version >= '3.10'", _BEFORE_2_12),
)
_SINCE_2_12 = (
    *("numpy<2", "pandas>=2,<3", "scipy<1.16", "scikit-learn<1.7", "protobuf>=3.20.3,<5"),
    *("google-cloud-resource-manager<2", "mock<6", "gym<0.27", "tensorflow-metadata>=1.13"),
    # With newer ones, importing tensorflow-hub prints a warning.
    *("setuptools<80", "pyarrow>=10; python_version >= '3.10'"),
)
# What other packages keep lower than necessary: lower than the gym of that time, the wheels of Python 3.10,
# or the pandas of the images need.
_CLOUDPICKLE = ("cloudpickle>=1.6",)
_PYYAML = ("pyyaml>=5.4",)
_PANDAS_2 = (*_PYYAML, "pandas>=2,<3")
# tfx-bsl keeps pyarrow low where it has a release. Python 3.12 has none of it, and no wheels of such a
# pyarrow.
_PYARROW_OF_3_12 = (
    "pyarrow>=10,<11; python_version < '3.12'",
    "pyarrow>=14,<17; python_version >= '3.12'",
)


def _release(
    version: str,
    pythons: tuple[Minor, Minor],
    day: str,
    *requirements: str,
    overrides: tuple[str, ...] = (),
    until: Mapping[str, int] | None = None,
    lacks: tuple[LeftOut, ...] = (),
) -> Release:
    """Make a release. `until`: as of `parts`. `lacks`: further packages that are left out."""
    companions, left_out = parts(version, pythons, until or {})
    return Release(
        version=version,
        pythons=pythons,
        # With a lower bound, release candidates are excluded.
        requirements=(
            *(f"tensorflow>={version}.0,=={version}.*", *requirements, *IMAGES, *companions),
        ),
        excluded=(*NOT_NEEDED, *NCCL),
        left_out=(*left_out, *lacks),
        day=day,
        only_x86=True,
        overrides=overrides,
    )


def _with_cuda(release: Release) -> tuple[Release, Release]:
    """Return the release, and the same release with the CUDA libraries that it was built against."""
    framework, *others = release.requirements
    cuda = replace(
        release,
        version=f"{release.version}+cuda12",
        requirements=(framework.replace("tensorflow", "tensorflow[and-cuda]"), *others),
        excluded=NOT_NEEDED,
        for_gpu=True,
    )
    return release, cuda


IMAGES = (
    "scipy",
    "scikit-learn",
    "threadpoolctl",
    "statsmodels",
    "sympy",
    "xgboost",
    "opencv-python-headless",
    "tornado",
    "webob",
    "paste",
    "webapp2==3.0.0b1",
    "crcmod",
    "google-cloud-bigtable",
    "google-cloud-datastore",
    "google-cloud-pubsub",
    "tensorboard",
    "tensorflow-datasets",
    "tensorflow-hub",
    "explainable-ai-sdk",
    "apache-beam",
    "gym",
    # Programs import moviepy.editor, which moviepy 2 no longer has.
    "moviepy<2",
)
"""Packages in every release."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "transform": ("tensorflow-transform", "tfx-bsl"),
    "text": ("tensorflow-text",),
    "io": ("tensorflow-io",),
    "models": ("tf-models-official",),
    "agents": ("tf-agents",),
    "nlp": ("keras-nlp",),
}
"""Packages compiled against one TensorFlow, or tied to one: each is installed on the Pythons for which it was
released."""

NOT_NEEDED = (
    # Notebooks, and clients of services that are not served here; Beam and the models import them only where
    # they use them.
    *("jupyter", "notebook", "jupyterlab", "ipykernel", "kaggle", "sacrebleu"),
    *("google-cloud-dlp", "google-cloud-language", "google-cloud-recommendations-ai"),
    *("google-cloud-spanner", "google-cloud-videointelligence", "google-cloud-vision"),
    "grpcio-gcp",
    # It has wheels for few Pythons; tensorflow-datasets needs it only to read its own format.
    "array-record",
)


def parts(
    version: str, pythons: tuple[Minor, Minor], until: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    """Return the requirements of the parts, and what is left out. `until`: by part, the highest minor version
    of Python 3 for which it is available, 0 = none; a part that is not listed supports all of `pythons`."""
    lowest, highest = pythons
    requirements: list[str] = []
    left_out: list[LeftOut] = []
    for part, names in PARTS.items():
        last = (3, until.get(part, highest[1]))
        marker = f"; python_version < '3.{last[1] + 1}'" if last < highest else ""
        if last >= lowest:
            requirements += [name + marker for name in names]
        if last < highest:
            reason = f"no release of it goes with TensorFlow {version} on this Python"
            without = (max(lowest, (3, last[1] + 1)), highest)
            left_out += [LeftOut(name, reason, without) for name in names]
    return tuple(requirements), tuple(left_out)


SHEET = Sheet(
    family="tensorflow",
    title="TensorFlow",
    space="1.8 to 3.3 GB, and several times as much for GPUs",
    releases=(
        *_with_cuda(
            _release(
                *("2.21", ((3, 10), (3, 13)), "", "pandas<3", "protobuf>=6", "gym<0.27"),
                *("tensorflow-probability", "tf-keras==2.21.*"),
                overrides=_PANDAS_2,
                until={"io": 0, "models": 0, "agents": 0},
            )
        ),
        *_with_cuda(
            _release(
                *("2.17", ((3, 9), (3, 12)), "2025-10-01", *_SINCE_2_12, "sympy==1.12"),
                *("xgboost==2.1.*", "keras<3.10", "tf-keras==2.17.*"),
                "tensorflow-probability==0.24.*",
                overrides=_PANDAS_2,
                until={"transform": 9, "text": 11, "models": 11, "nlp": 11, "agents": 0},
            )
        ),
        *_with_cuda(
            _release(
                *("2.16", ((3, 9), (3, 12)), "2024-12-01", *_SINCE_2_12, "sympy==1.12"),
                *("xgboost==2.0.*", "keras<3.10", "tf-keras==2.16.*"),
                "tensorflow-probability==0.24.*",
                overrides=(*_PANDAS_2, *_PYARROW_OF_3_12),
                until={"transform": 11, "text": 11, "models": 11, "nlp": 11, "agents": 0},
            )
        ),
        *_with_cuda(
            _release(
                *("2.15", ((3, 9), (3, 11)), "2024-12-01", *_SINCE_2_12, "sympy==1.12"),
                *("xgboost==2.0.*", "keras==2.15.*", "tensorflow-probability==0.23.*"),
                # The newest agents keep it lower than Pydantic 2 needs.
                *("tensorflow-io==0.36.*", "typing-extensions>=4.6"),
                overrides=_PANDAS_2,
                # They need a pygame that has no wheels for newer Pythons.
                until={"agents": 10},
            )
        ),
        _release(
            *("2.14", ((3, 9), (3, 11)), "2024-02-15", *_SINCE_2_12, "sympy==1.12"),
            *("xgboost==2.0.*", "keras==2.14.*", "tensorflow-probability==0.22.*"),
            "tensorflow-io==0.35.*",
            overrides=_PANDAS_2,
            until={"transform": 10, "agents": 0},
        ),
        _release(
            *("2.13", ((3, 8), (3, 11)), "2023-12-01", *_SINCE_2_12, "sympy==1.12"),
            *("xgboost==2.0.*", "keras==2.13.*", "tensorflow-probability==0.21.*"),
            "tensorflow-io==0.34.*",
            overrides=_PANDAS_2,
            until={"transform": 10, "text": 10, "models": 10, "nlp": 10, "agents": 10},
        ),
        _release(
            *("2.12", ((3, 8), (3, 11)), "2023-11-01", *_SINCE_2_12, "sympy==1.10.*"),
            *("xgboost==1.6.*", "keras==2.12.*", "tensorflow-probability==0.20.*"),
            "tensorflow-io==0.32.*",
            overrides=_PANDAS_2,
            until={"transform": 9},
        ),
        _release(
            *("2.11", ((3, 7), (3, 10)), "2023-09-01", *_NUMPY_1_23, "sympy==1.10.*"),
            *("xgboost==1.6.*", "keras==2.11.*", "tensorflow-probability==0.19.*"),
            "tensorflow-io>=0.28,<0.32",
            overrides=_PYYAML,
            until={"transform": 9, "nlp": 0},
        ),
        _release(
            *("2.9", ((3, 7), (3, 10)), "2023-09-01", *_NUMPY_1_23, "sympy==1.10.*"),
            *("xgboost==1.6.*", "keras==2.9.*", "tensorflow-probability==0.17.*"),
            "tensorflow-io==0.26.*",
            overrides=_PYYAML,
            until={"transform": 9, "nlp": 0},
        ),
        _release(
            *("2.8", ((3, 7), (3, 10)), "2023-09-01", *_NUMPY_1_23, "sympy==1.9.*"),
            *("xgboost==1.5.*", "keras==2.8.*", "tensorflow-probability==0.16.*"),
            "tensorflow-io>=0.24,<0.26",
            overrides=_PYYAML,
            until={"transform": 9, "nlp": 0},
        ),
        _release(
            *("2.7", ((3, 7), (3, 9)), "2023-09-01", *_NUMPY_1_23, "sympy==1.9.*"),
            *("xgboost==1.5.*", "keras==2.7.*", "tensorflow-probability==0.15.*"),
            "tensorflow-io==0.23.*",
            until={"transform": 8, "nlp": 0},
        ),
        _release(
            *(
                "2.6",
                ((3, 7), (3, 9)),
                "2023-09-01",
                *_NUMPY_1_19,
                "google-cloud-resource-manager<2",
            ),
            *("xgboost==1.4.*", "keras==2.6.*", "tensorflow-probability==0.14.*"),
            # The later patches allow only older clients of Cloud Storage, so they have to be asked for.
            *("tensorflow-io>=0.20,<0.22", "tensorflow>=2.6.5"),
            until={"transform": 8, "nlp": 0},
        ),
        _release(
            *(
                "2.5",
                ((3, 7), (3, 9)),
                "2023-09-01",
                *_NUMPY_1_19,
                "google-cloud-resource-manager<1",
            ),
            *("xgboost==1.4.*", "tensorflow-io==0.19.*", "tensorflow-probability==0.13.*"),
            until={"transform": 8, "nlp": 0},
            lacks=(
                LeftOut("keras", "keras-nightly, which this TensorFlow asks for, is that module"),
            ),
        ),
        _release(
            *("2.4", ((3, 7), (3, 8)), "2023-09-01", *_OLD, "numpy==1.19.*", "pandas==1.1.*"),
            *("scipy==1.5.*", "scikit-learn==0.24.*", "joblib<1.1", "sympy==1.7.*"),
            *("statsmodels==0.12.*", "xgboost==1.3.*", "keras==2.4.*"),
            *("tensorflow-io==0.17.*", "tensorflow-probability==0.12.*"),
            overrides=_CLOUDPICKLE,
            until={"nlp": 0},
        ),
        _release(
            *("2.3", ((3, 7), (3, 8)), "2022-11-01", *_OLD, "numpy==1.18.*", "pandas==1.1.*"),
            *("scipy==1.4.1", "scikit-learn==0.23.*", "joblib<1", "sympy==1.6.*"),
            *("statsmodels==0.12.*", "xgboost==1.2.*", "keras==2.4.*"),
            *("tensorflow-io==0.16.*", "tensorflow-probability==0.11.*"),
            overrides=_CLOUDPICKLE,
            until={"nlp": 0},
        ),
        _release(
            *("2.2", ((3, 7), (3, 8)), "2022-11-01", *_OLDEST, "numpy==1.18.*", "pandas==1.0.*"),
            *("scipy==1.4.1", "scikit-learn==0.23.*", "joblib<1", "sympy==1.6.*", "mock<5"),
            *("statsmodels==0.11.*", "xgboost==1.1.*", "keras==2.4.*"),
            *("tensorflow-io==0.14.*", "tensorflow-probability==0.10.*"),
            overrides=_CLOUDPICKLE,
            until={"transform": 7, "nlp": 0},
        ),
        _release(
            *("2.1", ((3, 7), (3, 7)), "2022-11-01", *_OLDEST, "numpy==1.18.*", "pandas==0.25.*"),
            *("scipy==1.4.1", "scikit-learn==0.22.*", "joblib==0.14.*", "sympy==1.5.*"),
            *("statsmodels==0.10.*", "xgboost==0.90", "wrapt<1.12", "mock<4", "keras==2.3.*"),
            *("tensorflow-io<0.12", "tensorflow-probability==0.9.*"),
            overrides=_CLOUDPICKLE,
            until={"nlp": 0},
        ),
        _release(
            *("1.15", ((3, 7), (3, 7)), "2022-11-01", *_OLDEST, "numpy==1.16.*", "pandas==0.25.*"),
            *("scipy==1.2.*", "scikit-learn==0.20.*", "joblib<0.15", "sympy<1.5"),
            *("statsmodels==0.10.*", "xgboost==0.82", "wrapt<1.12", "mock<4", "keras==2.3.*"),
            *("tensorflow-io<0.9", "tensorflow-probability==0.8.*", "tensorflow-datasets<4"),
            overrides=_CLOUDPICKLE,
            until={"agents": 0, "nlp": 0},
            lacks=(LeftOut("argparse", "it is part of Python"),),
        ),
    ),
    requirements=FOUNDATION,
    sources=SOURCES,
    folder=Path(__file__).parent,
    preferred_pythons=((3, 10), (3, 13)),
    framework="tensorflow",
    preloads=("numpy", "tensorflow"),
    runtime_versions=True,
)
