"""Ages and sizes as settings name them. Pure."""

import re
from typing import Final

_AGE: Final = re.compile(r"(\d{1,5})([hdw])")
_AGES: Final = {"h": 3600 * 10**9, "d": 86400 * 10**9, "w": 7 * 86400 * 10**9}
_SIZE: Final = re.compile(r"(\d{1,9})(MB|GB|TB|MiB|GiB|TiB)")
_SIZES: Final = {
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_age(text: str) -> int:
    """Return `12h`, `30d` or `4w` in nanoseconds; "" = 0. Raise ValueError for anything else."""
    if not text:
        return 0
    match = _AGE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no age such as 12h, 30d or 4w")
    return int(match[1]) * _AGES[match[2]]


def parse_size(text: str) -> int:
    """Return `500MB`, `50GB` or `2TiB` in bytes; "" = 0. Raise ValueError for anything else."""
    if not text:
        return 0
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is no size such as 500MB, 50GB or 2TiB")
    return int(match[1]) * _SIZES[match[2]]
