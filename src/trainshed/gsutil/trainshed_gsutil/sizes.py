"""Formats sizes for people. Pure."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def readable(size: float) -> str:
    """A number of bytes as `ls -h` and `du -h` print it."""
    unit = 0
    while unit + 1 < len(_UNITS) and size / 1024.0**unit >= 1024:
        unit += 1
    return "%g %s" % (round(size / 1024.0**unit, 2), _UNITS[unit])


def precise(size: float) -> str:
    """A number of bytes with one decimal, as the line after a transfer has it."""
    unit = 0
    while unit + 1 < len(_UNITS) and size / 1024.0**unit >= 1024:
        unit += 1
    return "%.1f %s" % (size / 1024.0**unit, _UNITS[unit])
