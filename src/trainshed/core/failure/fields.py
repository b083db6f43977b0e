"""The fields of an operator's entry in the failure table: how each is written and read. Rows are made in `overrides`."""

import re
from collections.abc import Callable, Mapping
from math import isfinite
from signal import Signals
from typing import Any, Final, cast

from trainshed.core.failure.evidence import Cause
from trainshed.core.failure.messages import FACTS, Message
from trainshed.core.failure.rules import Action

Fields = dict[str, Any]
"""Fields of `Rule` and `Match` by name, as they are there; and `enabled`, `before`."""

OF_A_MATCH: Final = ("causes", "exit_codes", "signals", "primary", "reducer")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CODES = re.compile(r"(\d{1,3})-(\d{1,3})")
_SECOND = 10**9
_MOST_CODE = 16
_CAUSES = tuple(cause for cause in Cause if cause is not Cause.CANCELLED)
_MESSAGES = tuple(m for m in Message if m not in (Message.NONE, Message.CANCELLED))
_ACTIONS = tuple(action for action in Action if action is not Action.CANCEL)


def name_of(entry: Mapping[str, object]) -> str:
    """The entry's name, "" if it has none that can be used."""
    name = entry.get("name")
    return name if isinstance(name, str) and _NAME.fullmatch(name) else ""


def read(entry: Mapping[str, object]) -> tuple[Fields, list[str]]:
    """The fields that the entry gives, `name` left out, and what is wrong with them, as `field: words`."""
    found: Fields = {}
    wrong: list[str] = []
    for field, value in entry.items():
        if field == "name":
            continue
        if field not in _READERS:
            wrong.append(f"{field}: there is no such field; the fields are {', '.join(_READERS)}")
            continue
        try:
            found[field] = _READERS[field](value)
        except ValueError as failure:
            wrong.append(f"{field}: {failure}")
    return found, wrong


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number, 0 or more")
    return value


def _code(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_CODE:
        raise ValueError(f"{value!r} is not a google.rpc code from 1 to {_MOST_CODE}, such as 3")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _factor(value: object) -> float:
    if (factor := _number(value)) < 1:
        raise ValueError(f"{value!r} is less than 1; memory is never taken away")
    return factor


def _seconds(value: object) -> int:
    """In nanoseconds."""
    if (seconds := _number(value)) < 0:
        raise ValueError(f"{value!r} is not a number of seconds, 0 or more")
    return round(seconds * _SECOND)


def _pauses(value: object) -> tuple[int, ...]:
    if isinstance(value, list):
        return tuple(_seconds(pause) for pause in cast("list[object]", value))
    return (_seconds(value),)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a text")
    unknown = sorted(set(re.findall(r"\{(.*?)\}", value)) - set(FACTS))
    if unknown:
        known = ", ".join(f"{{{fact}}}" for fact in FACTS)
        raise ValueError(f"nothing stands for {{{unknown[0]}}}; what can be filled in is {known}")
    return value


def _row(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a row")
    return value


def _one_of(words: tuple[Any, ...]) -> Callable[[object], Any]:
    def chosen(value: object) -> Any:
        if value not in words:
            raise ValueError(f"{value!r} is not one of {', '.join(words)}")
        return next(word for word in words if word == value)

    return chosen


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{value!r} is not a list of at least one")
    return cast("list[object]", value)


def _causes(value: object) -> frozenset[Cause]:
    return frozenset(_one_of(_CAUSES)(cause) for cause in _list(value))


def _exit_codes(value: object) -> frozenset[int]:
    codes: set[int] = set()
    for item in _list(value):
        if isinstance(item, str) and (match := _CODES.fullmatch(item)):
            first, last = int(match[1]), int(match[2])
        elif isinstance(item, int) and not isinstance(item, bool):
            first = last = item
        else:
            first, last = 1, 0
        if not 0 <= first <= last <= 255:
            raise ValueError(
                f'{item!r} is not an exit code from 0 to 255, or a range such as "64-78"'
            )
        codes |= set(range(first, last + 1))
    return frozenset(codes)


def _signals(value: object) -> frozenset[int]:
    return frozenset(_signal(item) for item in _list(value))


def _signal(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 64:
        return value
    name = value.upper() if isinstance(value, str) else ""
    known = Signals.__members__
    found = known.get(name) or known.get(f"SIG{name}")
    if found is None:
        raise ValueError(
            f'{value!r} is not a signal; give a number from 1 to 64 or a name such as "SIGBUS"'
        )
    return int(found)


_READERS: Final[dict[str, Callable[[object], Any]]] = {
    "enabled": _flag,
    "before": _row,
    "causes": _causes,
    "exit_codes": _exit_codes,
    "signals": _signals,
    "primary": _flag,
    "reducer": _flag,
    "action": _one_of(_ACTIONS),
    "code": _code,
    "message": _one_of(_MESSAGES),
    "text": _text,
    "restarts": _count,
    "window": _seconds,
    "spacing": _pauses,
    "retries": _count,
    "back_off": _pauses,
    "gives_room": _flag,
    "memory_growth": _factor,
    "memory_cap": _factor,
}
