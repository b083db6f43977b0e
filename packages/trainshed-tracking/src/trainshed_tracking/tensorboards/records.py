"""Records of tensorboards and of their experiments, runs and time series (facts/experiments#tensorboards).
Also the names of a job's curves (facts/experiments#curves). Pure.

The four levels use one kind of record. The points of series are in files.
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
    """A level of the hierarchy, from top to bottom. The value is the name of the collection."""

    TENSORBOARD = "tensorboards"
    EXPERIMENT = "experiments"
    RUN = "runs"
    SERIES = "timeSeries"


LEVELS: Final = tuple(Level)


class BoardName(Struct, frozen=True, order=True):
    """The name of a tensorboard (`projects/P/locations/L/tensorboards/T`), or of an experiment, a run or a
    series below it."""

    project_id: str
    location: str
    #: The IDs of the tensorboard and, depending on the level, of the experiment, the run and the series.
    ids: tuple[str, ...]

    @property
    def level(self) -> Level:
        return LEVELS[len(self.ids) - 1]

    @property
    def own_id(self) -> str:
        return self.ids[-1]

    @property
    def parent(self) -> str:
        """The resource name of the parent: a location for a tensorboard, and otherwise the resource one level
        higher."""
        place = f"projects/{self.project_id}/locations/{self.location}"
        above = zip(LEVELS, self.ids[:-1], strict=False)
        return "/".join((place, *(f"{level}/{identifier}" for level, identifier in above)))

    def __str__(self) -> str:
        return f"{self.parent}/{self.level}/{self.own_id}"

    def child(self, child_id: str) -> "BoardName":
        return BoardName(self.project_id, self.location, (*self.ids, child_id))

    def at_level(self, level: Level) -> "BoardName":
        """Return this name, or the name of its ancestor at that level."""
        return BoardName(self.project_id, self.location, self.ids[: LEVELS.index(level) + 1])

    @staticmethod
    def parse(name: str, level: Level, *, of: str = "name") -> "BoardName":
        """Parse a name at this level. Raise InvalidRequest for the field `of` if the name is invalid."""
        levels = LEVELS[: LEVELS.index(level) + 1]
        form = "/".join((PLACE, *(f"{above}/{above.name}" for above in levels)))
        project_id, location, *ids = read_name(name, form, of)
        return BoardName(project_id, location, tuple(ids))


class ValueType(enum.StrEnum):
    """The type of the points of a series. The numbers in the public enum start at 1."""

    SCALAR = "SCALAR"
    TENSOR = "TENSOR"
    BLOB_SEQUENCE = "BLOB_SEQUENCE"


class BoardResource(Struct, frozen=True):
    """A tensorboard, an experiment, a run or a series."""

    name: BoardName
    #: The UID under which the points of a run or a series are stored.
    uid: int
    #: Creation time in nanoseconds since the epoch. `updated` has the same unit.
    created: Nanos
    updated: Nanos
    display_name: str = ""
    description: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    #: Only for tensorboards: whether it is the default of its location.
    is_default: bool = False
    #: Only for experiments: the source resource, such as a job.
    source: str = ""
    #: This field and the next two are only for series. In other records, they are None or empty.
    value_type: ValueType | None = None
    plugin_name: str = ""
    plugin_data: bytes = b""


_MAX_RUN_ID: Final = 100
"""Maximum length of a run's ID in characters. The limit leaves space for the experiment's ID: both together
are the ID of a context, whose length is limited, too."""


class BoardExperiment(Struct, frozen=True):
    """The experiment in a job's tensorboard that receives the job's curves."""

    name: BoardName
    #: The prefix of its runs' IDs, because all trials of a tuning job share one experiment.
    prefix: str = ""


def board_experiment(job: Job) -> BoardExperiment | None:
    """Return the experiment to which the SDK links, or None for a job without a tensorboard. Its ID is that
    of the job that the client created. Therefore all trials of a tuning job share the experiment."""
    if not (name := job.spec.tensorboard):
        return None
    # Use the location in the job's own name, because the tensorboard's name may contain the project's number.
    place = job.name
    board = BoardName(place.project_id, place.location, (name.rpartition("/")[2],))
    if job.parent is not None and job.parent.trial:
        return BoardExperiment(board.child(job.parent.name.job_id), f"trial-{job.parent.trial}")
    return BoardExperiment(board.child(job.name.job_id))


def run_id(shown: str, taken: Mapping[str, str]) -> str:
    """Return the ID of a run with the display name `shown`: that name with invalid characters replaced, and
    with a hash if the ID would be too long or belongs to another run. `taken`: other runs' display names by
    ID."""
    plain = re.sub("[^a-zA-Z0-9-]", "-", shown)
    if len(plain) <= _MAX_RUN_ID and taken.get(plain, shown) == shown:
        return plain
    mark = hashlib.sha256(shown.encode()).hexdigest()[:8]
    return f"{plain[: _MAX_RUN_ID - 9]}-{mark}"


def run_name(experiment: BoardExperiment, directory: str) -> str:
    """Return the display name of a directory's run. The log directory's own run has the name `default`."""
    if not experiment.prefix:
        return {"": "default", "default": "./default"}.get(directory, directory)
    return "/".join(filter(None, (experiment.prefix, directory)))
