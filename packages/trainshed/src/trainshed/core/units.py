"""Types of numbers, which say what unit a field or a parameter is in."""

from typing import TypeAlias

Nanos: TypeAlias = int
"""Nanoseconds: of a moment, since the epoch; of a duration, how long it is."""

Bytes: TypeAlias = int
