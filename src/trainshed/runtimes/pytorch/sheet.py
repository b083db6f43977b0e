"""The data sheet of PyTorch: one version, as a build for CPUs and as a locked build with CUDA.

The prebuilt images hold older versions, 1.4 to 2.4 (facts §5.2). Package indexes have builds of those that run on CPUs
only in places of their own, so the nearest version that can be had everywhere is this one, and jobs are told.
"""

from pathlib import Path

from trainshed.runtimes.python.sheet import FOUNDATION
from trainshed.runtimes.sheet import Release, Sheet

SHEET = Sheet(
    family="pytorch",
    title="PyTorch",
    releases=(
        Release(
            version="2.13",
            pythons=((3, 10), (3, 14)),
            requirements=("torch==2.13.0", "numpy"),
            # The general index has the build with CUDA under this version, which is ten times as large.
            first=("--torch-backend", "cpu"),
        ),
        Release(
            version="2.13+cuda13",
            pythons=((3, 10), (3, 14)),
            requirements=("torch===2.13.0", "numpy"),
            lock=Path(__file__).with_name("2.13-cuda13.lock"),
            for_gpu=True,
        ),
    ),
    requirements=FOUNDATION,
    smoke=Path(__file__).with_name("smoke.py"),
    preferred_pythons=((3, 10), (3, 13)),
    framework="pytorch",
    own_python=True,
    missing=("torchvision", "torchaudio", "torch-xla", "pandas", "scikit-learn"),
)
