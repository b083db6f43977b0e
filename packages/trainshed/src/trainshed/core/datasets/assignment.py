"""Which split a row goes to. A row always goes to the same one: unless the row itself says it, a hash of the
dataset and the row's place decides (facts/datasets#splits)."""

import hashlib
import struct
from collections.abc import Iterable
from typing import Final

from trainshed.core.datasets.plans import Split

_WORDS: Final = struct.Struct(">8Q")
"""Cuts one digest into the places of eight rows."""
_WHOLE: Final = 1 << 64


class Places:
    """A whole number below 2**64 for each row of one file: evenly spread, and the same at each reading."""

    def __init__(self, dataset: str, uri: str) -> None:
        self._key = hashlib.blake2b(f"{dataset}\0{uri}".encode(), digest_size=32).digest()
        self._block = -1
        self._words: tuple[int, ...] = ()

    def word(self, row: int) -> int:
        """Return the number of a row."""
        block = row >> 3
        if block != self._block:
            self._block = block
            self._words = _WORDS.unpack(hashlib.blake2b(b"%d" % block, key=self._key).digest())
        return self._words[row & 7]


def bounds(fractions: tuple[float, float, float]) -> tuple[int, int]:
    """Return the words (`Places.word`) from which on a row belongs to validation and to test."""
    training, validation, test = fractions
    first = round(training * _WHOLE) if validation or test else _WHOLE
    return first, round((training + validation) * _WHOLE) if test else _WHOLE


_SAID: Final = {
    "training": Split.TRAINING,
    "train": Split.TRAINING,
    "validation": Split.VALIDATION,
    "validate": Split.VALIDATION,
    "test": Split.TEST,
}


def labelled(text: str) -> Split | None:
    """Return the split that a column, an ML_USE or a label names; None if it names none."""
    return _SAID.get(text.strip().lower())


def names(columns: Iterable[str]) -> str:
    """Return columns as an error shows them."""
    shown = list(columns)
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    return ", ".join(shown[:20]) + more
