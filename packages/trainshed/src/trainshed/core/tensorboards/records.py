"""Tensorboards, their experiments, runs and time series (facts/experiments#tensorboards).

All four are one kind of record at four levels; the points of a series are stored elsewhere.
"""

import enum
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import Struct

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.units import Nanos

T = TypeVar("T")


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
        match = _NAME.fullmatch(name)
        ids = tuple(filter(None, match.groups()[2:])) if match is not None else ()
        if match is None or LEVELS[len(ids) - 1] is not level:
            levels = LEVELS[: LEVELS.index(level) + 1]
            form = "/".join(
                f"{collection}/{collection.upper().removesuffix('S')}" for collection in levels
            )
            text = f"{name!r} is not a name of the form projects/PROJECT/locations/LOCATION/{form}."
            raise InvalidRequest((Violation(of, text),))
        return BoardName(match[1], match[2], ids)


_NAME: Final = re.compile(
    r"projects/([^/]+)/locations/([^/]+)/tensorboards/([^/]+)"
    r"(?:/experiments/([^/]+)(?:/runs/([^/]+)(?:/timeSeries/([^/]+))?)?)?"
)


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


def thinned(items: Sequence[T], most: int) -> Sequence[T]:
    """Return at most `most` of the items, spread evenly. The last one is among them, and if `most` is 2 or
    more the first."""
    if len(items) <= most:
        return items
    last = len(items) - 1
    if most == 1:
        return items[last:]
    return [items[round(number * last / (most - 1))] for number in range(most)]


def spread(points: Sequence[Point], most: int) -> list[Point]:
    """Return about `most` of the points at most, which ascend by step. They are spread evenly over the steps
    rather than over the points, so that points which were spread before stay so when more follow. The first
    and the last are among them."""
    if len(points) <= most:
        return list(points)
    first, last = points[0], points[-1]
    stride = (last.step - first.step) / most
    kept, due = [first], first.step + stride
    for point in points[1:-1]:
        if point.step >= due:
            kept.append(point)
            due = max(due + stride, point.step + stride / 2)
    return [*kept, last]
