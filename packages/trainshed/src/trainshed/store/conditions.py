"""Conditions that narrow a list of works before any record is read: they compare columns beside the records
(ADR 3)."""

import enum
from typing import Final

from msgspec import Struct

PERSON: Final = "@person"
"""Stands among the labels for the address of whoever is responsible for a work; no label has this key."""


class Column(enum.Enum):
    """A column that is compared as a whole."""

    #: The value of a `JobState` or `PipelineState`.
    STATE = enum.auto()
    DISPLAY_NAME = enum.auto()
    JOB_ID = enum.auto()


class Equal(Struct, frozen=True):
    """The column holds exactly this text."""

    column: Column
    value: str


class Contains(Struct, frozen=True):
    """The display name contains this text; case matters."""

    part: str


class Labelled(Struct, frozen=True):
    """There is a label with this key."""

    key: str
    #: None = with any value.
    value: str | None = None


class Created(Struct, frozen=True):
    """The work was created in a span of time, both ends included; nanoseconds since the epoch."""

    first: int
    last: int


class Every(Struct, frozen=True):
    """All conditions hold; without conditions: always true."""

    conditions: tuple["Condition", ...]


class Either(Struct, frozen=True):
    """One of the conditions holds; without conditions: never true."""

    conditions: tuple["Condition", ...]


Condition = Equal | Contains | Labelled | Created | Every | Either
