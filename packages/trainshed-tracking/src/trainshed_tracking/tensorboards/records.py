"""Tensorboards with their experiments, runs and time series (facts/experiments#tensorboards), and the names
of a job's curves (facts/experiments#curves). Pure.

All four are one kind of record at four levels. Points of series are in files.
"""

import enum
import hashlib
import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from trainshed.core.lifecycle.records import Job
from trainshed.core.names import PLACE, read_name
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
        """The name of the parent: a location or a resource."""
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
    #: UID in the service, for the stored points of a run or series.
    uid: int
    #: Nanoseconds since the epoch, as is `updated`.
    created: Nanos
    updated: Nanos
    display_name: str = ""
    description: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: Tensorboards: whether it is the default of its location.
    is_default: bool = False
    #: Experiments: the source resource, such as a job.
    source: str = ""
    #: The next three fields are None or empty except for series.
    value_type: ValueType | None = None
    plugin_name: str = ""
    plugin_data: bytes = b""


_MAX_RUN_ID: Final = 100
"""Maximum characters of a run's ID. With the prefix of the job's ID it is also the ID of a context."""


class BoardExperiment(Struct, frozen=True):
    """The experiment for a job's curves in the job's Tensorboard."""

    name: BoardName
    #: The prefix of its run IDs. Trials share the experiment of their tuning job.
    prefix: str = ""


def board_experiment(job: Job) -> BoardExperiment | None:
    """Return the experiment that the SDK links to, or None for a job without a Tensorboard. Its ID is that of
    the client's job, so that all trials of a tuning job share it."""
    if not (name := job.spec.tensorboard):
        return None
    # Use the job's own location, because a name may contain the project's number.
    place = job.name
    board = BoardName(place.project_id, place.location, (name.rpartition("/")[2],))
    if job.parent is not None and job.parent.trial:
        return BoardExperiment(board.child(job.parent.name.job_id), f"trial-{job.parent.trial}")
    return BoardExperiment(board.child(job.name.job_id))


def run_id(shown: str, taken: Mapping[str, str]) -> str:
    """Return the ID of a run with the display name `shown`. `taken`: the names of other runs by ID."""
    plain = re.sub("[^a-zA-Z0-9-]", "-", shown)
    if len(plain) <= _MAX_RUN_ID and taken.get(plain, shown) == shown:
        return plain
    mark = hashlib.sha256(shown.encode()).hexdigest()[:8]
    return f"{plain[: _MAX_RUN_ID - 9]}-{mark}"


def run_name(experiment: BoardExperiment, directory: str) -> str:
    """Return the display name of a directory's run. The log directory itself is `default`."""
    if not experiment.prefix:
        return {"": "default", "default": "./default"}.get(directory, directory)
    return "/".join(filter(None, (experiment.prefix, directory)))
