"""The rows of spec/failures#rules for the reference, with an operator's changes: matching ends, and their
effects. Written only from the specification and docs/failure-table.md, without code of `core`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Entry = Mapping[str, Any]

USER_CODE, NO_ROOM, REJECTED, INTERNAL, CANCELLED = 3, 8, 9, 13, 1
MINUTE = 60 * 10**9
_SECOND = 10**9
_CRASH_CODES = (6, 134, 11, 139)
_CRASH_SIGNALS = (6, 11)
_OUTSIDE_SIGNALS = (9, 15)
_PROGRAM = ("exited", "signalled")


@dataclass(frozen=True, slots=True)
class End:
    """`kind`: a cause of docs/failure-table.md ("exited", "left", …). `primary`: whether the primary ended;
    False for other replicas or none.
    """

    kind: str
    code: int | None = None
    signal: int | None = None
    primary: bool = False


@dataclass(frozen=True, slots=True)
class Gives:
    """A row's effects, in order: `restarts` of the replica (within the last `window` ns, if set), `retries`
    of the job, the final action.

    `pauses`: ns before the first, second, … retry; the last one repeats. `growth`, `cap`: of the memory
    limits with each retry, as multiples of the previous and the first limits. `goes_on`: only the replica
    ends. `text`: an operator's message.
    """

    code: int = USER_CODE
    restarts: int = 0
    retries: int = 0
    window: int = 0
    growth: float = 1.0
    cap: float = 1.0
    goes_on: bool = False
    text: str = ""
    pauses: tuple[int, ...] = ()

    def pause(self, before: int) -> int:
        """Return the ns before a retry with this number of earlier retries."""
        return self.pauses[min(before, len(self.pauses) - 1)] if self.pauses else 0


REDUCER = "reducer"
SPACING = tuple(tenths * _SECOND // 10 for tenths in (0, 1, 2, 4, 8, 16, 20))
"""Minimum ns from the start of a reducer to its first, second, … restart; the last one repeats."""
_GIVES = {
    REDUCER: Gives(restarts=20, window=MINUTE, goes_on=True),
    "oom": Gives(),
    "disk": Gives(),
    "crash": Gives(retries=3),
    "lost": Gives(restarts=5, retries=3),
    # Causes reported by a cluster.
    "node failed": Gives(restarts=5, retries=3),
    "agent gone": Gives(restarts=5, retries=3),
    "put out": Gives(restarts=5, retries=3),
    "revoked": Gives(restarts=2),
    "expired": Gives(restarts=20),
    "outranked": Gives(NO_ROOM, retries=6),
    "exit": Gives(),
    "package": Gives(),
    "data": Gives(),
    "rejected": Gives(REJECTED),
    "no room": Gives(NO_ROOM, retries=3, pauses=(30 * _SECOND, 60 * _SECOND, 120 * _SECOND)),
    # "3 attempts in all"
    "service": Gives(INTERNAL, retries=2, pauses=(2 * _SECOND, 10 * _SECOND)),
    "preempted": Gives(NO_ROOM, retries=6),
    "budget": Gives(NO_ROOM),
}
"""In the order of the specification: the first match applies."""
_HOLDS: dict[str, Callable[[End], bool]] = {
    "oom": lambda end: end.kind == "out_of_memory",
    "disk": lambda end: end.kind == "out_of_disk",
    "crash": lambda end: end.kind in _PROGRAM and (end.code in _CRASH_CODES or end.signal in _CRASH_SIGNALS),
    "lost": lambda end: (
        end.kind in ("left", "lost", "stalled")
        or (end.kind == "signalled" and end.signal in _OUTSIDE_SIGNALS)
    ),
    "node failed": lambda end: end.kind == "node_failed",
    "agent gone": lambda end: end.kind == "agent_lost",
    "put out": lambda end: end.kind == "pod_evicted",
    "revoked": lambda end: end.kind == "allocation_revoked",
    "expired": lambda end: end.kind == "allocation_expired",
    "outranked": lambda end: end.kind == "cluster_preempted",
    "exit": lambda end: end.kind in _PROGRAM,
    "package": lambda end: end.kind == "package",
    "data": lambda end: end.kind == "data",
    "rejected": lambda end: end.kind == "rejected",
    "no room": lambda end: end.kind == "stock_out",
    "service": lambda end: end.kind == "service",
    "preempted": lambda end: end.kind == "preempted",
    "budget": lambda end: end.kind == "budget",
}
CAUSES = {
    "reducer_lost": REDUCER,
    "out_of_memory": "oom",
    "out_of_disk": "disk",
    "transient_exit": "crash",
    "replica_lost": "lost",
    "node_failed": "node failed",
    "agent_lost": "agent gone",
    "pod_evicted": "put out",
    "allocation_revoked": "revoked",
    "allocation_expired": "expired",
    "cluster_preempted": "outranked",
    "user_code_failed": "exit",
    "package_failed": "package",
    "data_failed": "data",
    "launch_rejected": "rejected",
    "stock_out": "no room",
    "internal_error": "service",
    "preempted": "preempted",
    "budget_used_up": "budget",
}
"""Names of the table by the reference's terms. An operator's new row has the same name in both."""


class Rows:
    """The active rows. `entries`: an operator's, as in the configuration."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self.gives = dict(_GIVES)
        self._holds = dict(_HOLDS)
        self._order = [cause for cause in _GIVES if cause != REDUCER]
        for entry in entries:
            self._read(entry)

    def cause_of(self, end: End) -> str:
        """Return the first row that matches."""
        return next(cause for cause in self._order if self._holds[cause](end))

    def _read(self, entry: Entry) -> None:
        name = str(entry["name"])
        cause = CAUSES.get(name, name)
        if name not in CAUSES:
            before = CAUSES[entry.get("before", "out_of_memory")]
            self._order.insert(self._order.index(before), cause)
            self._holds[cause] = _own(entry)
        self.gives[cause] = replace(self.gives.get(cause, Gives()), **_conditions(entry))


def _conditions(entry: Entry) -> dict[str, Any]:
    fields = {
        "restarts": "restarts",
        "retries": "retries",
        "code": "code",
        "text": "text",
        "memory_growth": "growth",
        "memory_cap": "cap",
    }
    values = {fields[key]: value for key, value in entry.items() if key in fields}
    if "window" in entry:
        values["window"] = entry["window"] * _SECOND
    if "back_off" in entry:
        values["pauses"] = tuple(int(pause * _SECOND) for pause in entry["back_off"])
    if "action" in entry:
        values["goes_on"] = entry["action"] == "done"
    return values


def _own(entry: Entry) -> Callable[[End], bool]:
    """Return whether a new row matches."""
    codes = {code for item in entry.get("exit_codes", ()) for code in _codes(item)}
    signals = set(entry.get("signals", ()))
    kinds = set(entry["causes"])

    def holds(end: End) -> bool:
        if end.kind not in kinds or entry.get("primary", end.primary) != end.primary:
            return False
        if end.kind == "exited" and codes:
            return end.code in codes
        return not (end.kind == "signalled" and signals) or end.signal in signals

    return holds


def _codes(item: int | str) -> range:
    if isinstance(item, int):
        return range(item, item + 1)
    first, last = item.split("-")
    return range(int(first), int(last) + 1)
