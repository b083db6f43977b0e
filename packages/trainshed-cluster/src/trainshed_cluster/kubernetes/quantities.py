"""Parses and writes Kubernetes' quantities, such as 500m and 2Gi. Pure."""

import math
import re
from collections.abc import Mapping
from typing import Final

_QUANTITY = re.compile(
    r"([+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?)([eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)?"
)
_DECIMAL: Final[Mapping[str, float]] = {
    **{"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3},
    **{"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18},
}
_BINARY: Final = {f"{letter}i": 2 ** (10 * n) for n, letter in enumerate("KMGTPE", 1)}


def parse(quantity: str | int) -> float:
    """Raises ValueError."""
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity such as 500m or 2Gi")
    number, suffix = float(match[1]), match[2] or ""
    if suffix[:1] in ("e", "E") and suffix != "E" and not suffix.endswith("i"):
        return number * 10.0 ** int(suffix[1:])
    return number * (_BINARY.get(suffix) or _DECIMAL.get(suffix, 1.0))


def whole(quantity: str | int) -> int:
    """Return a quantity of bytes or devices, rounded up. Raises ValueError."""
    return math.ceil(parse(quantity))


def cpus(amount: float) -> str:
    """Write a number of processors, in thousandths and at least one of them."""
    return f"{max(1, math.ceil(amount * 1000))}m"
