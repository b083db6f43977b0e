"""Tensorboards with their experiments, runs and time series (facts/experiments#tensorboards), and where the
curves of a job belong among them (facts/experiments#curves). Pure.

All four are one kind of record at four levels; the points of a series are stored elsewhere.
"""

import enum
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec import Struct

from trainshed.core.job import JobSpec
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import PLACE, Api, read_name
from trainshed.core.units import Nanos


class Level(enum.StrEnum):
    """A level of the hierarchy, each below the one before; the value is the collection in a name."""

    TENSORBOARD = "tensorboards"
    EXPERIMENT = "experiments"
    RUN = "runs"
    SERIES = "timeSeries"


LEVELS: Final = tuple(Level)


class BoardName(Struct, frozen=True, order=True):
    """`projects/P/locations/L/tensorboards/T`, or an experiment, a run or a series below it."""

    project_id: str
    location: str
    #: One to four ids, beginning with the tensorboard's.
    ids: tuple[str, ...]

    @property
    def level(self) -> Level:
        return LEVELS[len(self.ids) - 1]

    @property
    def own_id(self) -> str:
        return self.ids[-1]

    @property
    def parent(self) -> str:
        """The name of the resource above it: a location, or one of these."""
        place = f"projects/{self.project_id}/locations/{self.location}"
        above = zip(LEVELS, self.ids[:-1], strict=False)
        return "/".join((place, *(f"{level}/{identifier}" for level, identifier in above)))

    def __str__(self) -> str:
        return f"{self.parent}/{self.level}/{self.own_id}"

    def child(self, child_id: str) -> "BoardName":
        return BoardName(self.project_id, self.location, (*self.ids, child_id))

    def at(self, level: Level) -> "BoardName":
        """Return itself, or its ancestor at that level."""
        return BoardName(self.project_id, self.location, self.ids[: LEVELS.index(level) + 1])

    @staticmethod
    def parse(name: str, level: Level, *, of: str = "name") -> "BoardName":
        """Read a name of that level. Raise InvalidRequest on the field `of` for anything else."""
        levels = LEVELS[: LEVELS.index(level) + 1]
        form = "/".join((PLACE, *(f"{above}/{above.name}" for above in levels)))
        project_id, location, *ids = read_name(name, form, of)
        return BoardName(project_id, location, tuple(ids))


class ValueType(enum.StrEnum):
    """The type of a series' points; the numbers on the wire count from 1."""

    SCALAR = "SCALAR"
    TENSOR = "TENSOR"
    BLOB_SEQUENCE = "BLOB_SEQUENCE"


class BoardResource(Struct, frozen=True):
    """A tensorboard, an experiment, a run or a series."""

    name: BoardName
    #: Identity in the service, by which the points of a run or of a series are stored.
    uid: int
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    display_name: str = ""
    description: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: Tensorboards: whether it is the one of its location that clients take when they name none.
    is_default: bool = False
    #: Experiments: the resource that it belongs to, such as a job.
    source: str = ""
    #: Only series have these three; elsewhere they are None or empty.
    value_type: ValueType | None = None
    plugin_name: str = ""
    plugin_data: bytes = b""


class Point(NamedTuple):
    """One value of a series; a tuple, since there are thousands in a request."""

    step: int
    #: When it was measured: nanoseconds since the epoch.
    at: Nanos
    #: A scalar, or a serialised tensor.
    value: float | bytes


def folded(values: Sequence[float], ends: Iterable[int]) -> list[int]:
    """Return the places of the first value, of the last one, and of the least and the greatest of each
    stretch between them, ascending. What is no number is passed over, unless a stretch has nothing else.
    `ends`: where the stretches end, ascending."""
    kept, begin = {0, len(values) - 1}, 1
    for end in ends:
        if stretch := list(values[begin:end]):
            # After one that is a number, `min` and `max` never take one that is none.
            is_none = math.isnan(stretch[0])
            numbers = [v for v in stretch if not math.isnan(v)] or stretch if is_none else stretch
            kept |= {begin + stretch.index(extreme(numbers)) for extreme in (min, max)}
        begin = end
    return sorted(kept)


def averaged(values: Sequence[float], most: int) -> list[tuple[int, float]]:
    """Return the place of the last value and the mean of each of `most` stretches of equal length, or of
    each value if there are no more."""
    count = len(values)
    stretches = min(count, most)
    ends = [count * number // (stretches or 1) for number in range(stretches + 1)]
    return [(end - 1, sum(values[begin:end]) / (end - begin)) for begin, end in pairwise(ends)]


def thinned(values: Sequence[float], most: int) -> Sequence[int]:
    """Return the places of at most `most` of some values, ascending: those that stretches of equal length
    are `folded` to. If it is 1, that of the last one."""
    count = len(values)
    if count <= most:
        return range(count)
    stretches = max(0, most - 2) // 2
    ends = [1 + (count - 2) * number // stretches for number in range(1, stretches + 1)]
    return folded(values, ends) if most > 1 else [count - 1]


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


def last_point(series: CurveSeries) -> Point:
    """Return the point of a series that was read last."""
    return Point(series.step, series.at, math.nan if series.value is None else series.value)


class BoardExperiment(Struct, frozen=True):
    """The experiment for a job's curves in the Tensorboard that the job names."""

    name: BoardName
    #: The beginning of its runs' ids: trials share the experiment of their tuning job.
    prefix: str = ""


def board_of(spec: JobSpec) -> str | None:
    """Return the name of the Tensorboard that a job's spec names; None = none."""
    if spec.api is Api.ML or '"tensorboard"' not in spec.job_json:
        return None
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
