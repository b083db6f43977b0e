"""Places in a log as followers say them that come back: what they have seen last, of every writer."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from trainshed.core.errors import InvalidRequest, Violation
from trainshed.core.names import SERVICE, SERVICE_TASK, ReplicaId
from trainshed.store.logs.lines import LogPosition

_PLACE: Final = re.compile(r"(\d{1,9})/([a-z]+[\d-]*)/(\d{1,9})/(\d{1,12})")


def seen_places(texts: Sequence[str]) -> Mapping[int, LogPosition]:
    """By trial (0 = of none), from texts `TRIAL/REPLICA/ATTEMPT/N`. Raises InvalidRequest."""
    found: dict[int, dict[ReplicaId, tuple[int, int]]] = {}
    for text in texts:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise InvalidRequest((_violation(text),))
        try:
            replica = SERVICE if match[2] == SERVICE_TASK else ReplicaId.parse(match[2])
        except ValueError:
            raise InvalidRequest((_violation(text),)) from None
        found.setdefault(int(match[1]), {})[replica] = (int(match[3]), int(match[4]))
    return found


def _violation(text: str) -> Violation:
    return Violation(
        "after",
        f"{text!r} is no place in a log: give the trial (0 = none), replica, attempt and number of the last line that was "
        "seen, as in 0/workerpool0-0/1/17.",
    )
