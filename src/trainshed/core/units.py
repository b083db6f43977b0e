"""What a number counts, where a field or a parameter holds a moment, a duration or a size."""

from typing import TypeAlias

Nanos: TypeAlias = int
"""Nanoseconds: of a moment, since the epoch; of a duration, how long it is."""

Bytes: TypeAlias = int
