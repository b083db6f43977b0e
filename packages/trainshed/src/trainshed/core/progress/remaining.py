"""How long something will still take, in words. Pure."""

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s"))


def remaining_text(remaining: float | None, margin: float | None = None) -> str:
    """Return text such as `about 12 min left`, with a margin `about 12 min left (± 2 min)`; "" = not known.
    Both parameters are in seconds."""
    if remaining is None:
        return ""
    if remaining < 1:
        return "nearly done"
    about = f"about {_rounded(remaining)} left"
    return f"{about} (± {_rounded(margin)})" if margin and margin >= 1 else about


def _rounded(seconds: float) -> str:
    """Format a time to two figures, or nearly: `90 s`, `12 min`, `110 min`, `2.4 h`."""
    size, name = next((unit for unit in _UNITS if seconds >= 2 * unit[0]), _UNITS[-1])
    count = seconds / size
    if count >= 100:
        return f"{round(count, -1):.0f} {name}"
    return f"{count:.0f} {name}" if count >= 10 or name in ("s", "min") else f"{count:.1f} {name}"
