"""The curves of a job: what its programs logged as scalars, and where these belong in a Tensorboard
(facts/experiments#curves).

Pure.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from trainshed.core.job.spec import JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import Api
from trainshed.core.tensorboards.records import BoardName, Point
from trainshed.core.units import Nanos

MOST_SERIES: Final = 1000
"""The most series of a job; what it logs under further tags is ignored."""

_LATEST: Final = 2**63 - 1
_LONGEST_RUN: Final = 100
"""The most characters of a run's id: with the job's id before it, it is a context's id as well."""


class CurveSeries(Struct, frozen=True):
    """The curve of what a job logged under one tag into one directory."""

    #: The key of its points, in the file of the job's uid.
    uid: int
    #: The directory below the job's log directory, "" = that itself.
    run: str
    tag: str
    #: The point that was read last: its step, when it was measured (ns), and its value; None = no finite
    #: number.
    step: int
    at: Nanos
    value: float | None
    #: Points that were read, including those that came twice.
    count: int


def point(step: int, at: float, value: float) -> Point:
    """Return a point; `at` is the time as a program wrote it, in seconds since the epoch."""
    nanos = at * 1e9
    return Point(step, int(nanos) if math.isfinite(nanos) and 0 <= nanos < _LATEST else 0, value)


class BoardExperiment(Struct, frozen=True):
    """The experiment for a job's curves in the Tensorboard that the job names."""

    name: BoardName
    #: The beginning of its runs' ids: trials share the experiment of their tuning job.
    prefix: str = ""


def board_of(spec: JobSpec) -> str:
    """Return the name of the Tensorboard that a job's spec names; "" = none."""
    if spec.api is Api.ML or '"tensorboard"' not in spec.job_json:
        return ""
    return str(json.loads(spec.job_json).get("tensorboard", ""))


def board_experiment(job: Job) -> BoardExperiment | None:
    """Return the experiment that the SDK links to: its id is that of the job which a client made, so all
    trials of a tuning job share one. None for a job that names no Tensorboard."""
    if not (name := board_of(job.spec)):
        return None
    # In the job's own location, since a name may have the project's number.
    place = job.name
    board = BoardName(place.project_id, place.location, (name.rpartition("/")[2],))
    if job.parent is not None and job.parent.trial:
        return BoardExperiment(board.child(job.parent.name.job_id), f"trial-{job.parent.trial}")
    return BoardExperiment(board.child(job.name.job_id))


def run_id(shown: str, taken: Mapping[str, str]) -> str:
    """Return the id of a run that is shown under the name `shown`. `taken`: the names of other runs by their
    ids."""
    plain = re.sub("[^a-zA-Z0-9-]", "-", shown)
    if len(plain) <= _LONGEST_RUN and taken.get(plain, shown) == shown:
        return plain
    mark = hashlib.sha256(shown.encode()).hexdigest()[:8]
    return f"{plain[: _LONGEST_RUN - 9]}-{mark}"


def run_name(experiment: BoardExperiment, directory: str) -> str:
    """Return the name under which the run of a directory is shown; the log directory itself is `default`."""
    if not experiment.prefix:
        return {"": "default", "default": "./default"}.get(directory, directory)
    return "/".join(filter(None, (experiment.prefix, directory)))


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
