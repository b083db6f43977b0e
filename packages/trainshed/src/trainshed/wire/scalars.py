"""Converts single JSON values to protobuf values: numbers, texts, masks.

Pure functions. A reader takes the decoded JSON value and returns the Python value of the field; it raises
`Unreadable`, whose text (possibly empty) becomes the tail of the public error text. What is accepted follows
proto3 JSON with the leniency that the public clients need (spec/clients#wire).
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

Reader = Callable[[Any], Any]

_INTEGRAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_NUMERIC = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)
_BASE64_URLSAFE = str.maketrans("-_", "+/")
_FLOAT_MAX: Final = 3.4028234663852886e38
_NAMED_FLOATS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Unreadable(ValueError):
    """The JSON value is no value of the field's type."""


def read_text(value: Any) -> str:
    """Read a string without lone surrogates."""
    if not isinstance(value, str):
        raise Unreadable
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Unreadable("Unpaired surrogate in a string") from None
    return value


def read_bool(value: Any) -> bool:
    """Read `true` or `false`, unquoted."""
    if value is True or value is False:
        return value
    raise Unreadable


def read_bytes(value: Any) -> bytes:
    """Read base64, standard or URL-safe, padded or not."""
    if not isinstance(value, str):
        raise Unreadable
    text = value.translate(_BASE64_URLSAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise Unreadable("Base64 decoding failed") from None


def integer_reader(low: int, high: int) -> Reader:
    """Return a reader of integers in a range: numbers, decimal strings, and floats without a fraction
    (`100.0`)."""

    def read(value: Any) -> int:
        if type(value) is int:
            number = value
        elif isinstance(value, float):
            if not value.is_integer():
                raise Unreadable
            number = int(value)
        elif isinstance(value, str):
            number = _integer_text(value)
        else:
            raise Unreadable
        if low <= number <= high:
            return number
        raise Unreadable

    return read


def _integer_text(text: str) -> int:
    """Convert plain digits exactly; a fraction of zeros or an exponent goes through float."""
    # 40 characters hold every 64-bit integer; longer texts would only cost time.
    match = _INTEGRAL.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise Unreadable
    if match.group(1) is None and match.group(2) is None:
        return int(text)
    number = float(text)
    if not number.is_integer():
        raise Unreadable
    return int(number)


def read_double(value: Any) -> float:
    """Read numbers, numeric strings, and the three names `NaN`, `Infinity`, `-Infinity`."""
    if isinstance(value, str):
        if value in _NAMED_FLOATS:
            return _NAMED_FLOATS[value]
        if _NUMERIC.fullmatch(value) is None:
            raise Unreadable
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise Unreadable from None
    if not math.isfinite(number):
        raise Unreadable
    return number


def read_float(value: Any) -> float:
    """Read a number as `read_double` does, within the range of 32 bits."""
    number = read_double(value)
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise Unreadable
    return number


def enum_reader(numbers: dict[str, int]) -> Reader:
    """Return a reader of enum names, also in lower case and with hyphens as the hosted services take them, or
    known numbers (the SDK sends numbers), also as strings or `1.0`."""
    known = frozenset(numbers.values())
    read_number = integer_reader(-(2**31), 2**31 - 1)

    def read(value: Any) -> int:
        if isinstance(value, str):
            value = value.upper().replace("-", "_")
            if value in numbers:
                return numbers[value]
        try:
            number: int = read_number(value)
        except Unreadable:
            raise Unreadable(enum_choices(value, numbers)) from None
        if number not in known:
            raise Unreadable(enum_choices(value, numbers))
        return number

    return read


def enum_choices(value: Any, names: Iterable[str]) -> str:
    """Return the end of an error text about an unknown `value`: the name that was probably meant, and all
    names."""
    import difflib  # Loaded late: an idle service does without it (docs/adr/0083).

    chosen = [name for name in names if not name.endswith("_UNSPECIFIED")]
    meant = value if isinstance(value, str) else ""
    words = set(meant.split("_"))
    # By letters alone NVIDIA_H100 would be nearer to NVIDIA_B200 than to NVIDIA_H100_80GB.
    near = [name for name in chosen if words <= set(name.split("_"))]
    near = near or difflib.get_close_matches(meant, chosen, n=1)
    question = f"did you mean {near[0]}? The" if near else "the"
    return f"; {question} values are {', '.join(chosen)}."


def read_mask(value: Any) -> list[str]:
    """Read `"labels,jobSpec.network"`, in camel or snake case, as proto paths."""
    if not isinstance(value, str):
        raise Unreadable
    paths = [path.strip() for path in value.split(",")] if value.strip() else []
    if any(not path or " " in path for path in paths):
        raise Unreadable("Illegal field mask; paths must be separated by single commas")
    return [re.sub("[A-Z]", lambda match: "_" + match.group().lower(), path) for path in paths]
