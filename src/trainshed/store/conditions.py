"""What a list of works can be narrowed to before a record is read: conditions on what stands beside the
records (ADR 74)."""

import enum

from msgspec import Struct


class Column(enum.Enum):
    """What is compared as a whole."""

    #: `JobState` or `PipelineState`, its value.
    STATE = enum.auto()
    DISPLAY_NAME = enum.auto()
    JOB_ID = enum.auto()


class Equal(Struct, frozen=True):
    """The column holds exactly this text."""

    column: Column
    value: str


class Contains(Struct, frozen=True):
    """The display name has this part, as it is spelled."""

    part: str


class Labelled(Struct, frozen=True):
    """There is a label with this key."""

    key: str
    #: None = with any value.
    value: str | None = None


class Created(Struct, frozen=True):
    """It was created in a span of time, both ends included; nanoseconds since the epoch."""

    first: int
    last: int


class Every(Struct, frozen=True):
    """All of them hold; of none: always true."""

    conditions: tuple["Condition", ...]


class Either(Struct, frozen=True):
    """One of them holds; of none: never true."""

    conditions: tuple["Condition", ...]


Condition = Equal | Contains | Labelled | Created | Every | Either
