"""Filters on a label of items, by which splits select them:
`labels.aiplatform.googleapis.com/ml_use=training`."""

import re
from collections.abc import Callable, Mapping
from typing import Final

NOTHING: Final = "-"
"""The filter that no item passes."""
LabelTest = Callable[[Mapping[str, str]], bool]
_FILTER: Final = re.compile(r'labels\.("?)([^\s=!:()"]+)\1\s*=\s*("?)([^\s()"]+)\3')


class BadFilter(ValueError):
    """The text is no filter on a label."""


def compiled(text: str) -> LabelTest:
    """Return the test for a filter `labels.KEY=VALUE`; no item passes "-". Raise BadFilter for anything
    else."""
    text = text.strip()
    if text == NOTHING:
        return lambda labels: False
    match = _FILTER.fullmatch(text)
    if match is None:
        raise BadFilter(
            f"{text[:100]!r} is not labels.KEY=VALUE, nor - for no items; write the split of each item "
            "into its import file as its ML use, and leave the filters out"
        )
    _, key, _, value = match.groups()
    return lambda labels: labels.get(key) == value
