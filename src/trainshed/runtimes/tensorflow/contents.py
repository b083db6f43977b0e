"""What the runtimes of TensorFlow hold besides what all hold, and how far up each part of it goes.

The documented packages of the images, and what the programs that were written for them import without asking for it.
"""

from collections.abc import Mapping

from trainshed.runtimes.sheet import LeftOut, Minor

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
    # Programs import moviepy.editor, which the second has no longer.
    "moviepy<2",
)
"""Of every release."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "transform": ("tensorflow-transform", "tfx-bsl"),
    "text": ("tensorflow-text",),
    "io": ("tensorflow-io",),
    "models": ("tf-models-official",),
    "agents": ("tf-agents",),
    "nlp": ("keras-nlp",),
}
"""Compiled against one TensorFlow, or tied to it: each is there on the Pythons that it has been released for."""

NOT_NEEDED = (
    # Notebooks, and what talks to services that are not served here; Beam and the models import them where they are used.
    *("jupyter", "notebook", "jupyterlab", "ipykernel", "kaggle", "sacrebleu"),
    *("google-cloud-dlp", "google-cloud-language", "google-cloud-recommendations-ai"),
    *("google-cloud-spanner", "google-cloud-videointelligence", "google-cloud-vision"),
    "grpcio-gcp",
    # Has wheels for few Pythons; tensorflow-datasets reads its own format only by it.
    "array-record",
)


def parts(
    version: str, pythons: tuple[Minor, Minor], until: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    """The requirements of the parts, and what is left out. `until`: the highest minor version of Python 3 that a part is
    to be had for, 0 = none; a part that is not named goes with all of `pythons`."""
    lowest, highest = pythons
    asked: list[str] = []
    left_out: list[LeftOut] = []
    for part, names in PARTS.items():
        last = (3, until.get(part, highest[1]))
        marker = f"; python_version < '3.{last[1] + 1}'" if last < highest else ""
        if last >= lowest:
            asked += [name + marker for name in names]
        if last < highest:
            reason = f"no release of it goes with TensorFlow {version} on this Python"
            without = (max(lowest, (3, last[1] + 1)), highest)
            left_out += [LeftOut(name, reason, without) for name in names]
    return tuple(asked), tuple(left_out)
