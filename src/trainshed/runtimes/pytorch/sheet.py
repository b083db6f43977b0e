"""The data sheet of PyTorch: one version, as a build for CPUs and as a locked build with CUDA.

The prebuilt images hold older versions, 1.4 to 2.4 (facts/packaging#images). Package indexes have builds of
those that run on CPUs only in places of their own, so the nearest version that can be had everywhere is this
one, and jobs are told.
"""

from pathlib import Path

from trainshed.runtimes.python.contents import FOUNDATION, SOURCES
from trainshed.runtimes.sheet import LeftOut, Release, Sheet

_COMPANIONS = (
    # One build of all three: the extensions of the others are made for one version of the first.
    "torchvision==0.28.0",
    "torchaudio==2.11.0",
    "torchmetrics",
    "tensorboard",
    "scikit-learn",
    "scipy",
)

SHEET = Sheet(
    family="pytorch",
    title="PyTorch",
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
        LeftOut("torch-xla", "no TPU is served here"),
        LeftOut("cloud-tpu-client", "no TPU is served here"),
        LeftOut("tpu-info", "no TPU is served here"),
    ),
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="pytorch",
    own_python=True,
)
