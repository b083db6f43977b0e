"""Reads the failure table: the built-in rows from `table.toml`, and an operator's rows from the configuration
(spec/failures#overrides).

Both are entries of `[[failure_rules]]`, and each entry is a complete row. An entry with the name of a
built-in row is inserted before that row, which still decides the ends that the entry does not match. Any
other name creates a new row. docs/failure-table.md explains the entries to operators.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from trainshed.core.failure.evidence import CLUSTER_LOSSES, Cause
from trainshed.core.failure.messages import FACTS, Message
from trainshed.core.failure.rules import Action, Match, Rule

Entry = Mapping[str, object]
"""One entry of `[[failure_rules]]` as parsed from the configuration."""

MAX_ATTEMPTS: Final = 10
"""Maximum number of attempts of one job, independent of the remaining restarts and retries
(spec/failures#budgets)."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CODES = re.compile(r"(\d{1,3})-(\d{1,3})")
_SECOND = 10**9
_OUR_OWN = {
    *(Action.WAIT, Action.CANCEL, Cause.CANCELLED),
    *(Message.NONE, Message.BUDGET, Message.CANCELLED),
}
"""Values that only built-in rows of the failure table may use, for cancellations and budgets."""
_WORDS = ("causes", "action", "message")
_CAUSES = tuple(cause for cause in Cause if cause not in _OUR_OWN)
_MESSAGES = tuple(message for message in Message if message not in _OUR_OWN)
_ACTIONS = tuple(action for action in Action if action not in _OUR_OWN)
_DEFAULT_PLACE: Final = "out_of_memory"
"""New rows of the failure table are inserted before this row by default: after the rows for success and
reducers, before all failures."""
_OF_A_REPLICA = CLUSTER_LOSSES | {
    Cause.EXITED,
    Cause.SIGNALLED,
    Cause.OUT_OF_MEMORY,
    Cause.OUT_OF_DISK,
    Cause.STALLED,
    Cause.LEFT,
    Cause.LOST,
}
_MAY_HAVE_A_REPLICA = _OF_A_REPLICA | {Cause.SERVICE}
_WITHOUT_CAPACITY = frozenset({Cause.STOCK_OUT, Cause.PREEMPTED, Cause.BUDGET})


class WrongRules(ValueError):
    """The configuration contains invalid entries. `violations` lists all errors with their entry and
    field."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = tuple(violations)


def _pauses(value: float | list[float]) -> tuple[int, ...]:
    return tuple(map(_nanos, value if isinstance(value, list) else [value]))


def _nanos(seconds: float) -> int:
    return round(seconds * _SECOND)


def _exit_codes(value: list[int | str]) -> frozenset[int]:
    codes: set[int] = set()
    for item in value:
        match = _CODES.fullmatch(str(item) if isinstance(item, str) else f"{item}-{item}")
        if match is None or not int(match[1]) <= int(match[2]) <= 255:
            raise ValueError
        codes |= set(range(int(match[1]), int(match[2]) + 1))
    return frozenset(codes)


def _signals(value: list[int | str]) -> frozenset[int]:
    return frozenset(map(_signal, value))


def _signal(value: int | str) -> int:
    if isinstance(value, int):
        if 1 <= value <= 64:
            return value
        raise ValueError
    name = value.upper()
    signal = Signals.__members__.get(name) or Signals.__members__.get(f"SIG{name}")
    if signal is None:
        raise ValueError
    return int(signal)


def _text(value: str) -> str:
    if not value.strip() or set(re.findall(r"\{(.*?)\}", value)) - set(FACTS):
        raise ValueError
    return value


class _Field(NamedTuple):
    """Constraints on one field of an entry."""

    type: Any
    #: The requirement as the end of an error sentence.
    must_be: str
    #: Converts the field's value for `Rule` or `Match`. Raises ValueError if the value is invalid.
    convert: Callable[[Any], Any] = lambda value: value


_Seconds = Annotated[float, Meta(ge=0, le=10**9)]
_Items = Annotated[list[int | str], Meta(min_length=1)]
_COUNT: Final = _Field(Annotated[int, Meta(ge=0)], "a whole number, 0 or more")
_FLAG: Final = _Field(bool, "true or false")
_FACTOR: Final = _Field(Annotated[float, Meta(ge=1, le=10**6)], "a factor, 1 or more")
_SECONDS: Final = "a number of seconds, 0 or more"
_PAUSES: Final = _Field(_Seconds | list[_Seconds], f"{_SECONDS}, or a list of such numbers", _pauses)
_MATCHES: Final = {
    "causes": _Field(
        Annotated[list[Cause], Meta(min_length=1)], f"a list of {', '.join(_CAUSES)}", frozenset
    ),
    "exit_codes": _Field(
        _Items, 'a list of exit codes from 0 to 255 and ranges such as "64-78"', _exit_codes
    ),
    "signals": _Field(_Items, 'a list of numbers from 1 to 64 and names such as "SIGBUS"', _signals),
    "primary": _FLAG,
    "reducer": _FLAG,
}
_GIVES: Final = {
    "action": _Field(Action, f"one of {', '.join(_ACTIONS)}"),
    "code": _Field(Annotated[int, Meta(ge=1, le=16)], "a google.rpc code from 1 to 16, such as 3"),
    "message": _Field(Message, f"one of {', '.join(_MESSAGES)}"),
    "text": _Field(
        str, f"a text, in which {', '.join(f'{{{fact}}}' for fact in FACTS)} are filled in", _text
    ),
    "restarts": _COUNT,
    "window": _Field(_Seconds, _SECONDS, _nanos),
    "spacing": _PAUSES,
    "retries": _COUNT,
    "back_off": _PAUSES,
    "gives_room": _FLAG,
    "memory_growth": _FACTOR,
    "memory_cap": _FACTOR,
    "unstoppable": _FLAG,
}
_FIELDS: Final = {
    "name": _Field(
        Annotated[str, Meta(pattern=f"^{_NAME.pattern}$")],
        "a name; use lowercase letters, digits and _, such as bad_gpu",
    ),
    "before": _Field(str, "the name of a row"),
    **_MATCHES,
    **_GIVES,
}
"""All fields of an entry, in the order in which errors list them."""


def table_with(entries: Sequence[Entry]) -> tuple[Rule, ...]:
    """Return the effective failure table: the built-in rows with an operator's entries, inserted in their
    order. Built-in rows remain, so that every end has a verdict. Raise WrongRules with all violations."""
    table, wrong, seen = list(RULES), list[str](), set[str]()
    for position, entry in enumerate(entries):
        read, faults = _read(entry)
        name = str(read.get("name", ""))
        where = f'failure_rules "{name}"' if name else f"failure_rules[{position}]"
        names = [rule.name for rule in table]
        if name == "cancelled":
            faults.append(
                "name: cancellations do not use the failure table, so a row for them has no "
                "effect; remove the row"
            )
        if name in seen:
            faults.append("name: an earlier entry has the same name; merge the two entries")
        place = read.get("before", name if name in names else _DEFAULT_PLACE)
        if place not in (*names, *seen):
            faults.append(f"before: the row {place!r} does not exist; the rows are {', '.join(names)}")
        seen.add(name)
        if not faults:
            made = _rule(read)
            faults += _contradictions(made)
            # If the row `place` has errors, it is not in the table. Insert this row at the default position
            # instead.
            table.insert(names.index(place if place in names else _DEFAULT_PLACE), made)
        wrong += [f"{where}.{text}" for text in faults]
    if wrong:
        raise WrongRules(wrong)
    return tuple(table)


def _read(entry: Entry, *, is_built_in: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Convert the fields of an entry. Return the converted fields and a list of errors in the form `field:
    text`."""
    read: dict[str, Any] = {}
    wrong: list[str] = []
    for field, value in entry.items():
        rule = _FIELDS.get(field)
        if rule is None:
            wrong.append(f"{field}: unknown field; the fields are {', '.join(_FIELDS)}")
            continue
        try:
            converted = msgspec.convert(value, rule.type)
            words = converted if field == "causes" else [converted]
            if field in _WORDS and not is_built_in and not _OUR_OWN.isdisjoint(words):
                raise ValueError
            read[field] = rule.convert(converted)
        except ValueError:  # This includes errors of msgspec, which are ValueErrors too.
            wrong.append(f"{field}: {value!r} is not {rule.must_be}")
    required = ["name", "causes", "action"]
    if read.get("action") is Action.FAIL:
        required += ["code", *([] if "text" in entry else ["message"])]
    missing = [field for field in required if field not in entry]
    return read, wrong + [f"{field}: required; set {_FIELDS[field].must_be}" for field in missing]


def _rule(read: Mapping[str, Any]) -> Rule:
    """Return an entry of the table as a row. The caller has validated each field. `_contradictions` then
    validates the combination of the fields."""
    match = Match(**{field: read[field] for field in _MATCHES if field in read})
    gives = {field: read[field] for field in _GIVES if field in read}
    return Rule(read["name"], match, **gives)


def _contradictions(rule: Rule) -> Iterator[str]:
    """Yield errors of fields that are valid individually but contradict each other."""
    causes, match = rule.match.causes, rule.match
    if rule.action is not Action.FAIL:
        # Any other action than FAIL requires the end of a single replica. Cause.SERVICE is thus allowed for
        # reducers only: for other replicas, it may be the end of a whole attempt.
        if not causes <= (_MAY_HAVE_A_REPLICA if match.reducer else _OF_A_REPLICA):
            yield (f'action: "{rule.action}" requires that a replica ended; for this cause, use "fail"')
        is_success = match.exit_codes == frozenset({0})
        if rule.action is Action.DONE and not (is_success or match.primary is False or match.reducer is True):
            yield 'action: a job cannot continue without its primary; add "primary = false"'
    if rule.restarts and not causes & _MAY_HAVE_A_REPLICA:
        yield "restarts: no single replica ended, so none can be restarted; use retries"
    if causes & _WITHOUT_CAPACITY and not rule.gives_room:
        yield 'gives_room: the job has no capacity to keep; set "gives_room = true"'


def _built_in_rules() -> Iterator[Rule]:
    text = Path(__file__).with_name("table.toml").read_text("utf-8")
    for entry in tomllib.loads(text)["failure_rules"]:
        read, wrong = _read(entry, is_built_in=True)
        assert not wrong, (entry, wrong)
        yield _rule(read)


RULES: Final = tuple(_built_in_rules())
"""The built-in rows of the failure table."""
