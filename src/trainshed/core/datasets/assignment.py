"""Which split a row goes to. A row always goes to the same one: unless the row itself says it, a hash of the
dataset and the row's place decides (facts/datasets#splits)."""

import hashlib
import re
import struct
from array import array
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from trainshed.core.datasets.lines import BadData
from trainshed.core.datasets.plans import SPLITS, Split

_WORDS: Final = struct.Struct(">8Q")
"""Cuts one digest into the places of eight rows."""
_WHOLE: Final = 1 << 64
MAX_CATEGORIES: Final = 100_000
"""The most values of a column by which rows are stratified."""
SAMPLE: Final = 1_000_000
"""The most moments by which the borders between splits are found; of more rows a part is used, chosen by
their places."""


class Places:
    """A number from 0 to 1 for each row of one file: evenly spread, and the same at each reading."""

    def __init__(self, dataset: str, uri: str) -> None:
        self._key = hashlib.blake2b(f"{dataset}\0{uri}".encode(), digest_size=32).digest()
        self._block = -1
        self._words: tuple[int, ...] = ()

    def __call__(self, row: int) -> float:
        return self.word(row) / _WHOLE

    def word(self, row: int) -> int:
        """Return the number as a whole one below 2**64."""
        block = row >> 3
        if block != self._block:
            self._block = block
            self._words = _WORDS.unpack(hashlib.blake2b(b"%d" % block, key=self._key).digest())
        return self._words[row & 7]


def chosen(place: float, fractions: tuple[float, float, float]) -> Split:
    """Return the split of a row at that place."""
    training, validation, test = fractions
    if place < training:
        return Split.TRAINING
    if place < training + validation or not test:
        return Split.VALIDATION if validation else Split.TRAINING
    return Split.TEST


def bounds(fractions: tuple[float, float, float]) -> tuple[int, int]:
    """Return the words (`Places.word`) from which on a row belongs to validation and to test. The same as
    `chosen`, for millions of rows."""
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


def said(text: str) -> Split | None:
    """Return the split that a column, an ML_USE or a label names; None if it names none."""
    return _SAID.get(text.strip().lower())


class Strata:
    """Assigns the rows of each category in the same fractions, whatever their order: each row goes to the
    split that lacks most."""

    def __init__(self, fractions: tuple[float, float, float]) -> None:
        self._fractions = fractions
        self._counts: dict[str, list[int]] = {}

    def assign(self, category: str) -> Split:
        """Return the split of the next row of a category. Raise BadData if there are too many categories."""
        counts = self._counts.get(category)
        if counts is None:
            if len(self._counts) == MAX_CATEGORIES:
                raise BadData(
                    f"The column has more than {MAX_CATEGORIES} different values; stratify by one that has "
                    "few, or split by fractions."
                )
            counts = self._counts[category] = [0, 0, 0]
        number = sum(counts) + 1
        missing = [f * number - c for f, c in zip(self._fractions, counts, strict=True)]
        at = missing.index(max(missing))
        counts[at] += 1
        return SPLITS[at]


_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?[Zz]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(text: str) -> int | None:
    """Return microseconds since the epoch of an RFC 3339 time that ends with Z; None for anything else."""
    text = text.strip()
    if not _MOMENT.fullmatch(text):
        return None
    head, _, parts = text[:-1].partition(".")
    try:
        passed = datetime.fromisoformat(f"{head.upper()}+00:00") - _EPOCH
    except ValueError:
        return None
    return (passed.days * 86_400 + passed.seconds) * 10**6 + int(parts[:6].ljust(6, "0"))


class Borders:
    """Finds the moments between splits: the oldest rows are for training, the youngest for the test."""

    def __init__(self, fractions: tuple[float, float, float]) -> None:
        self._fractions = fractions
        self._limit = 1.0
        self._places = array("d")
        self._moments = array("q")

    def add(self, place: float, at: int) -> None:
        """Add a row."""
        if place >= self._limit:
            return
        self._places.append(place)
        self._moments.append(at)
        if len(self._moments) > SAMPLE:
            self._limit /= 2
            kept = [
                (p, m) for p, m in zip(self._places, self._moments, strict=True) if p < self._limit
            ]
            self._places = array("d", (p for p, _ in kept))
            self._moments = array("q", (m for _, m in kept))

    def found(self) -> tuple[float, float]:
        """Return the first moments that belong to validation and to test. Rows of one moment stay
        together."""
        ordered = sorted(self._moments)
        training, validation, _ = self._fractions
        return (
            _border(ordered, training),
            _border(ordered, training + validation),
        )


def _border(ordered: list[int], fraction: float) -> float:
    at = round(len(ordered) * fraction)
    return float(ordered[at]) if at < len(ordered) else float("inf")


def by_time(at: int, borders: tuple[float, float]) -> Split:
    validation, test = borders
    if at >= test:
        return Split.TEST
    return Split.VALIDATION if at >= validation else Split.TRAINING


def names(columns: Iterable[str]) -> str:
    """Return columns as an error shows them."""
    shown = list(columns)
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    return ", ".join(shown[:20]) + more
