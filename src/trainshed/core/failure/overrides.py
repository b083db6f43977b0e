"""An operator's rows of the failure table: entries of `[[failure_rules]]` in the configuration
(spec/failures#overrides).

An entry with the name of a built-in row changes the fields that it gives, or drops the row; any other name
makes a new row. docs/failure-table.md explains this to operators.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from signal import Signals
from typing import Any, Final, cast

from msgspec.structs import replace

from trainshed.core.failure.evidence import CLUSTER_LOSSES, Cause
from trainshed.core.failure.messages import (
    FACTS,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    Message,
)
from trainshed.core.failure.rules import Action, Match, Rule
from trainshed.core.failure.table import RULES

Entry = Mapping[str, object]
"""An entry as the configuration has it."""

Fields = dict[str, Any]
"""The fields of an entry after reading: those of `Rule` and `Match` by their names, `enabled` and
`before`."""

_OF_A_MATCH: Final = ("causes", "exit_codes", "signals", "primary", "reducer")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_CODES = re.compile(r"(\d{1,3})-(\d{1,3})")
_SECOND = 10**9
_MOST_CODE = 16
_CAUSES = tuple(cause for cause in Cause if cause is not Cause.CANCELLED)
_MESSAGE_CHOICES = tuple(m for m in Message if m not in (Message.NONE, Message.CANCELLED))
_ACTIONS = tuple(action for action in Action if action is not Action.CANCEL)
_DEFAULT_PLACE: Final = "out_of_memory"
"""The row before which a new one is put: after those of success and of reducers, before every failure."""

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
_WITHOUT_CAPACITY = frozenset({Cause.STOCK_OUT, Cause.PREEMPTED})
_MESSAGES = {
    **dict.fromkeys(_OF_A_REPLICA, (INVALID_ARGUMENT, Message.LOST)),
    Cause.OUT_OF_MEMORY: (INVALID_ARGUMENT, Message.OUT_OF_MEMORY),
    Cause.OUT_OF_DISK: (INVALID_ARGUMENT, Message.OUT_OF_DISK),
    Cause.PACKAGE: (INVALID_ARGUMENT, Message.PACKAGE),
    Cause.DATA: (INVALID_ARGUMENT, Message.DATA),
    Cause.REJECTED: (FAILED_PRECONDITION, Message.REJECTED),
    Cause.SERVICE: (INTERNAL, Message.INTERNAL),
    Cause.STOCK_OUT: (RESOURCE_EXHAUSTED, Message.STOCK_OUT),
    Cause.PREEMPTED: (RESOURCE_EXHAUSTED, Message.STOCK_OUT),
    Cause.CLUSTER_PREEMPTED: (RESOURCE_EXHAUSTED, Message.STOCK_OUT),
}
"""Code and message of a new row that names none, by its cause."""
_BUILT_IN = frozenset(rule.name for rule in RULES)


def _name_of(entry: Entry) -> str:
    """Return the entry's name; "" if it has none that can be used."""
    name = entry.get("name")
    return name if isinstance(name, str) and _NAME.fullmatch(name) else ""


def _read_fields(entry: Entry) -> tuple[Fields, list[str]]:
    """Read the fields that the entry gives, except `name`. Return them, and what is wrong with them, as
    `field: words`."""
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
    """Read seconds, and return nanoseconds."""
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
    "message": _one_of(_MESSAGE_CHOICES),
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


class WrongRules(ValueError):
    """Entries that cannot be used. `violations` lists all that is wrong, each with its entry and field."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = tuple(violations)


def table_with(entries: Sequence[Entry], rules: tuple[Rule, ...] = RULES) -> tuple[Rule, ...]:
    """Return the table in force: `rules` with an operator's entries, which apply in their order. Raise
    WrongRules with all violations."""
    built_in = {rule.name for rule in rules}
    table, wrong, seen, open_causes = list(rules), list[str](), set[str](), set[Cause]()
    for position, entry in enumerate(entries):
        name = _name_of(entry)
        where = f'failure_rules "{name}"' if name else f"failure_rules[{position}]"
        read, said = _read_fields(entry)
        said += _no_place(table, seen, read)
        if not name:
            said.insert(
                0,
                f"name: {entry.get('name')!r} is not a name; give small letters, digits and _, such as "
                "bad_gpu",
            )
        elif name in seen:
            said.insert(0, "name: an entry of this name came before; put both into one")
        else:
            seen.add(name)
            said = _apply(table, name, entry, read, said, is_new=name not in built_in)
        if said and name not in built_in:
            open_causes |= _meant(entry, read)
        wrong += [f"{where}.{text}" for text in said]
    wrong += _gaps(table, rules, seen, open_causes)
    if wrong:
        raise WrongRules(wrong)
    return tuple(table)


def _no_place(table: Sequence[Rule], seen: set[str], read: Fields) -> list[str]:
    """Return what is wrong with the place that an entry asks for. `seen`: the names of earlier entries, which
    are not in the table if they are faulty."""
    place = read.get("before")
    names = [rule.name for rule in table]
    if place is None or place in names or (place in seen and place not in _BUILT_IN):
        return []
    return [f"before: there is no row {place!r}; the rows are {', '.join(names)}"]


def _meant(entry: Entry, read: Fields) -> frozenset[Cause]:
    """Return the causes for which a faulty new entry may be meant as the last row."""
    return read.get("causes", frozenset(Cause)) if "causes" in entry else frozenset()


def _apply(
    table: list[Rule],
    name: str,
    entry: Entry,
    read: Fields,
    wrong: list[str],
    *,
    is_new: bool,
) -> list[str]:
    """Put one entry into the table, as far as it can be read. Return what is wrong with it, as `field:
    words`: `wrong`, which is known already, and more."""
    # Fields are judged together only if each of them could be read: an unreadable one may be what is missing.
    readable = set(entry) <= {"name", "before", *read}
    read = dict(read)
    enabled, before = read.pop("enabled", True), read.pop("before", None)
    if name == "cancelled":
        text = "name: a cancel does not pass the table, so this row cannot be changed"
        return [text, *wrong]
    if not enabled:
        others = sorted(set(entry) - {"name", "enabled"})
        wrong += [f"{field}: says nothing, for the row is dropped" for field in others]
        if is_new:
            wrong.append("enabled: there is no built-in row of this name to drop")
        table[:] = [rule for rule in table if rule.name != name]
        return wrong
    if not is_new:
        if before is not None:
            text = "before: a built-in row keeps its place; drop it and add one of another name"
            wrong = [*(said for said in wrong if not said.startswith("before: ")), text]
        at = next(i for i, rule in enumerate(table) if rule.name == name)
        table[at] = _changed(table[at], dict(read))
        return [*wrong, *(_contradictions(table[at]) if readable else ())]
    missing = _missing(entry)
    if missing or not readable:
        return [*wrong, *missing]
    made = _new(name, read)
    if isinstance(made, list):
        return [*wrong, *made]
    # There is no such row if an entry has dropped the default one, which is reported here, or if `before`
    # names none that can be used, which is in `wrong` already.
    place = before or _DEFAULT_PLACE
    at = next((i for i, rule in enumerate(table) if rule.name == place), None)
    if at is not None:
        table.insert(at, made)
    elif not before:
        wrong = [*wrong, *_no_place(table, set(), {"before": place})]
    return [*wrong, *_contradictions(made)]


def _missing(entry: Entry) -> list[str]:
    """Return what a new row must say and does not; nothing if the entry may be meant to drop a row."""
    if "enabled" in entry and entry["enabled"] is not True:
        return []
    missing = list[str]()
    if not {"causes", "exit_codes", "signals"} & set(entry):
        known = ", ".join(cause for cause in Cause if cause is not Cause.CANCELLED)
        missing.append(f"causes: say when the row applies: causes ({known}), exit_codes or signals")
    if "action" not in entry:
        missing.append("action: say what happens in the end: fail, done or succeed")
    return missing


def _changed(rule: Rule, read: Fields) -> Rule:
    match = {key: read.pop(key) for key in _OF_A_MATCH if key in read}
    # The pauses of a built-in row are for its own retries and restarts.
    if read.get("retries") == 0:
        read = {"back_off": ()} | read
    if read.get("restarts") == 0:
        read = {"spacing": ()} | read
    return replace(rule, match=replace(rule.match, **match), **read)


def _new(name: str, read: Fields) -> Rule | list[str]:
    """Return a new row, or what is wrong with it. What the entry does not say comes from its causes."""
    if "causes" not in read:
        causes = {Cause.EXITED} if "exit_codes" in read else set[Cause]()
        causes |= {Cause.SIGNALLED} if "signals" in read else set()
        read["causes"] = frozenset(causes)
    found = {_MESSAGES[cause] for cause in read["causes"]}
    if read["action"] is Action.FAIL:
        code, message = min(found)
        if len(found) > 1 and not ("code" in read and ("message" in read or "text" in read)):
            return [
                "code: its causes have different codes and messages; give code, and message or text"
            ]
        read = {
            "code": code,
            "message": message,
            "gives_room": bool(read["causes"] & _WITHOUT_CAPACITY),
        } | read
    return _changed(Rule(name, Match(frozenset()), read["action"]), read)


def _contradictions(rule: Rule) -> Iterator[str]:
    """Yield what each field allows and the row as a whole does not."""
    causes, match = rule.match.causes, rule.match
    if match.exit_codes and Cause.EXITED not in causes:
        yield 'exit_codes: only an end of cause "exited" has one'
    if match.signals and Cause.SIGNALLED not in causes:
        yield 'signals: only an end of cause "signalled" has one'
    if rule.action is not Action.FAIL:
        # A failure of the service may be the whole attempt's; the end of a reducer is always a replica's.
        if not causes <= (_MAY_HAVE_A_REPLICA if match.reducer else _OF_A_REPLICA):
            yield f'action: "{rule.action}" is for ends of a replica; of this one, only "fail" can be made'
        if rule.action is Action.DONE and not (match.primary is False or match.reducer is True):
            yield 'action: a job cannot go on without its primary; add "primary = false"'
        if rule.action is Action.SUCCEED and (rule.restarts or rule.retries):
            yield "action: a success is not tried again; leave restarts and retries out"
    if rule.restarts and not causes & _MAY_HAVE_A_REPLICA:
        yield "restarts: no single replica ended, so none can be restarted; say retries"
    if causes & _WITHOUT_CAPACITY and not rule.gives_room:
        yield "gives_room: the job has no room that it could keep; leave this out"
    if not rule.restarts:
        yield from _without_restarts(rule)
    if rule.back_off and not rule.retries:
        yield "back_off: it is the pause before a retry, and there are none; say retries too"
    if rule.memory_growth > 1 and not rule.retries:
        yield "memory_growth: memory grows with a retry, and there are none; say retries too"
    if rule.memory_growth > 1 and rule.memory_cap <= 1:
        yield "memory_cap: memory cannot grow up to 1 times what it was; say more, such as 4.0"


def _without_restarts(rule: Rule) -> Iterator[str]:
    if rule.window:
        yield "window: it limits restarts, and there are none; say restarts too"
    if rule.spacing:
        yield "spacing: it is the time between restarts, and there are none; say restarts too"


def _gaps(
    table: Sequence[Rule], rules: Sequence[Rule], named: set[str], open_causes: set[Cause]
) -> Iterator[str]:
    """Yield each cause whose last row no longer matches whatever the rest of the evidence is: every end must
    get a verdict. `open_causes`: causes for which a faulty entry may be meant as that row, so that nothing is
    said of them yet."""
    left = {rule.name: rule for rule in table}
    for cause in Cause:
        if cause in open_causes or any(not _narrowed(rule, cause) for rule in table):
            continue
        for rule in rules:
            if rule.name in named and not _narrowed(rule, cause):
                field = _narrowed(left[rule.name], cause) if rule.name in left else "enabled"
                yield (
                    f'failure_rules "{rule.name}".{field}: no row would say what follows on every end of '
                    f'cause "{cause}"; keep this one as the last word and put your own before it'
                )


def _narrowed(rule: Rule, cause: Cause) -> str:
    """Return the field because of which the row does not match every end of the cause; "" if it does."""
    match = rule.match
    if cause not in match.causes:
        return "causes"
    if cause is Cause.EXITED and match.exit_codes:
        return "exit_codes"
    if cause is Cause.SIGNALLED and match.signals:
        return "signals"
    if match.primary is not None:
        return "primary"
    return "reducer" if match.reducer is not None else ""
