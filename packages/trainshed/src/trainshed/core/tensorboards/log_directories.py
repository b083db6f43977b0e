"""Where the programs of a job write their event files (facts/experiments#log-directories).

Pure.
"""

from typing import Final

from trainshed.core.job.spec import JobSpec
from trainshed.core.names import Api

VARIABLE: Final = "AIP_TENSORBOARD_LOG_DIR"
"""The variable that tells a Vertex program the directory."""

_MOUNT: Final = "/gcs/"


def log_directory(spec: JobSpec) -> str:
    """Return the `gs://` URI of the directory below which the job's event files are, without a slash at its
    end; "" for a job that has none.

    For `ml` v1 that is the job's own directory. If the user sets the variable, a Vertex program writes where
    it says; that counts only if it is in a bucket.
    """
    if spec.api is Api.ML:
        return spec.job_dir.rstrip("/")
    value = dict(spec.pools[0].program.env).get(VARIABLE)
    if value is not None:
        return _in_bucket(value)
    base = spec.base_output_directory.removesuffix("/")
    return f"{base}/logs" if base else ""


def _in_bucket(path: str) -> str:
    if path.startswith(_MOUNT):
        path = f"gs://{path.removeprefix(_MOUNT)}"
    # A value that is only known when the program starts is known to the program alone.
    return path.rstrip("/") if path.startswith("gs://") and "$(" not in path else ""
