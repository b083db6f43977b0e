"""Lists the requirements that all families' runtimes share: installers, clients, and what programs for the
hosted images expect."""

ESSENTIALS = (
    "pip",
    # Jobs still import pkg_resources, which setuptools 81 no longer has.
    "setuptools<81",
    "wheel",
    "google-cloud-storage<3",
    # Newer ones print a warning into every job's log that this Python is old.
    "google-api-core<2.26; python_version < '3.11'",
)
"""For every runtime, including slim ones: installers and gs:// (spec/program#storage)."""

ESSENTIAL_SOURCES = ("cloudml-hypertune==0.1.0.dev6",)
"""Metric reports (spec/program#metrics-file)."""

FOUNDATION = (
    *ESSENTIALS,
    # Google's clients, in the major versions of the images.
    "google-cloud-aiplatform<2",
    "google-cloud-bigquery<4",
    "google-cloud-logging",
    "google-cloud-resource-manager",
    "google-api-python-client<3",
    "oauth2client",
    "httplib2",
    "grpcio",
    # pandas reads gs:// through it; it brings the fsspec of its own version.
    "gcsfs>=2021",
    "numpy",
    "pandas<3",
    "pandas-gbq",
    "db-dtypes",
    # Newer ones need NumPy 2, and fail only when they are imported.
    "pyarrow<26",
    "h5py",
    "joblib",
    "matplotlib",
    "seaborn",
    "pillow",
    "requests",
    "urllib3",
    "six",
    "future",
    "mock",
    "tqdm",
    "absl-py",
    "gin-config",
    "dill",
    "cloudpickle",
    "psutil",
    "pyyaml",
    "python-dateutil",
    "python-json-logger<4",
    "wrapt",
    "flask",
    "tabulate",
)
"""For every runtime of jobs that is not slim."""

SOURCES = (*ESSENTIAL_SOURCES, "docopt==0.6.2", "wget==3.2")
"""Likewise, the packages that have no wheels."""


NCCL = ("nvidia-nccl-cu12",)
"""Connects several GPUs, in 300 MB; XGBoost loads it only in that case."""
