"""Checks the preconditions of a request on an object's generation and metageneration. Pure.

They mean what they mean in the public API: ``ifGenerationMatch=0`` is "the object must not exist",
``ifGenerationNotMatch=0`` "it must exist"; every given condition has to hold.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from trainshed.buckets.errors import InvalidRequest, NotModified, condition_failed

_MOST_DIGITS = 19


class Conditions(Struct, frozen=True):
    """The four conditions of a request; None where the request does not set one."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    @property
    def must_be_absent(self) -> bool:
        """Whether the request may only create, never replace."""
        return self.generation_match == 0

    def check(self, generation: int, metageneration: int, *, reading: bool = False) -> None:
        """Raise unless all hold; an absent object has generation 0 and metageneration 0.

        Raises ``PreconditionFailed``; for a failed "not match" of a read, ``NotModified``.
        """
        if self.generation_match is not None and generation != self.generation_match:
            raise condition_failed()
        if self.metageneration_match is not None and metageneration != self.metageneration_match:
            raise condition_failed()
        if (self.generation_not_match is not None and generation == self.generation_not_match) or (
            self.metageneration_not_match is not None
            and metageneration == self.metageneration_not_match
        ):
            raise NotModified("Not Modified") if reading else condition_failed()


ALWAYS = Conditions()


def parse_number(query: Mapping[str, str], key: str) -> int | None:
    """An optional int64 of the query; raises ``InvalidRequest`` if it is no decimal number."""
    text = query.get(key)
    if text is None or text == "":
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidRequest(f"Invalid value '{text}' for '{key}': give a decimal number.")
    return -read_digits(digits, key) if digits != text else read_digits(digits, key)


def read_digits(digits: str, where: str) -> int:
    """Returns a number of decimal digits. Raises ``InvalidRequest``, which names ``where``, for a number of
    more than 64 bits; Python itself refuses to read more than 4,300 digits."""
    if len(digits) > _MOST_DIGITS:
        raise InvalidRequest(
            f"Invalid number in '{where}': it has {len(digits)} digits, at most {_MOST_DIGITS} are read."
        )
    return int(digits)


def conditions_of(query: Mapping[str, str], prefix: str = "if") -> Conditions:
    """Read ``ifGenerationMatch`` and its kin; ``prefix`` is ``ifSource`` for a copy's source."""
    return Conditions(
        parse_number(query, prefix + "GenerationMatch"),
        parse_number(query, prefix + "GenerationNotMatch"),
        parse_number(query, prefix + "MetagenerationMatch"),
        parse_number(query, prefix + "MetagenerationNotMatch"),
    )
