"""What a list of works can be narrowed to before a record is read: conditions on what stands beside the
records (ADR 74)."""

import enum
from dataclasses import dataclass


class Column(enum.Enum):
    """What is compared as a whole."""

    #: `JobState` or `PipelineState`, its value.
    STATE = enum.auto()
    DISPLAY_NAME = enum.auto()
    JOB_ID = enum.auto()


@dataclass(frozen=True, slots=True)
class Equal:
    """The column holds exactly this text."""

    column: Column
    value: str


@dataclass(frozen=True, slots=True)
class Contains:
    """The display name has this part, as it is spelled."""

    part: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """There is a label with this key."""

    key: str
    #: None = with any value.
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """It was created in a span of time, both ends included; nanoseconds since the epoch."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Every:
    """All of them hold; of none: always true."""

    conditions: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of them holds; of none: never true."""

    conditions: tuple["Condition", ...]


Condition = Equal | Contains | Labelled | Created | Every | Either
