"""List the skipped tests of a run by reason, so that missing coverage is visible."""

import re
from collections import Counter
from collections.abc import Iterable

import pytest


def summary(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return the lines that state how many tests were skipped, why, and which."""
    by_reason: dict[str, Counter[str]] = {}
    for report in reports:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        # A test with parameters is listed once, with the number of its cases.
        name = re.sub(r"\[.*", "", report.nodeid)
        by_reason.setdefault(why.removeprefix("Skipped: "), Counter())[name] += 1
    if not by_reason:
        return []
    count = sum(names.total() for names in by_reason.values())
    lines = [f"Skipped tests: {count}. These were NOT tested here:"]
    for why, names in sorted(by_reason.items(), key=lambda item: -item[1].total()):
        lines.append(f"{names.total()} × {why}")
        lines += [f"    {name}" + f" ({n} cases)" * (n > 1) for name, n in sorted(names.items())]
    return lines
