"""Orders a job's timeline by attempts, replicas and incarnations, and converts it to records. Pure.

It reads the entries' details (`core.lifecycle.timeline`), never their texts. What no entry says stays
unknown: a timeline that an older service began is shown as far as its entries go.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from trainshed.api.calls.timestamps import text_micros
from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.names import Api, ReplicaId, log_task_name
from trainshed.core.retention import LOG_DELETED
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1 import timeline as records

_JOB_OVER: Final = frozenset({"succeeded", "failed", "cancelled"})
_DECIDES_ATTEMPT: Final = frozenset(
    {Effect.JOB_RETRIES, Effect.JOB_FAILS, Effect.JOB_CANCELLED, Effect.JOB_SUCCEEDS}
)


def log_deleted(entries: Iterable[TimelineEntry]) -> str:
    """Return why and when the retention has deleted a job's log, in words; "" = it has not."""
    return next((entry.message for entry in entries if entry.kind == LOG_DELETED), "")


class Attempt(Struct):
    """One attempt; number 0 holds what was decided before the first attempt had capacity."""

    number: int
    #: Nanoseconds since the epoch, as is `ended`; 0 = not yet.
    started: Nanos = 0
    ended: Nanos = 0
    #: Why it ended; "" while it has not.
    rule: str = ""
    replicas: dict[str, list[records.Incarnation]] = field(
        default_factory=dict[str, list[records.Incarnation]]
    )
    #: Those on the attempt as a whole.
    verdicts: list[records.Verdict] = field(default_factory=list[records.Verdict])

    def change(self, replica: str, number: int, **fields: Any) -> None:
        """Change the incarnation of that number; creates it if no entry named it yet."""
        lives = self.replicas.setdefault(replica, [])
        numbers = [life.incarnation for life in lives]
        if number not in numbers:
            numbers.append(number)
            node = lives[-1].node if lives else ""
            lives.append(records.Incarnation(incarnation=number, node=node))
        at = numbers.index(number)
        lives[at] = replace(lives[at], **fields)


def _numbered(attempts: list[Attempt], number: int) -> Attempt:
    """Return the attempt of that number; adds it if no entry named it yet."""
    for attempt in attempts:
        if attempt.number == number:
            return attempt
    attempts.append(Attempt(number))
    return attempts[-1]


def timeline_of(entries: Iterable[TimelineEntry]) -> list[Attempt]:
    """Return the attempts in their order. `entries`: in the order in which they were written."""
    attempts: list[Attempt] = []
    for entry in entries:
        match entry.kind:
            case "admitted" | "attempt":
                _begins(attempts, entry)
            case "waiting" if "not_before" in entry.details:
                # The attempt was given up for one that has to find places; other waiting entries say why
                # there is no capacity.
                _ends(attempts, entry.at)
            case kind if kind in _JOB_OVER:
                _ends(attempts, entry.at, str(entry.details.get("rule", "")))
            case "verdict":
                _judged(attempts, entry)
            case "nodes_given":
                for replica, node in entry.details.get("nodes", {}).items():
                    attempt = _numbered(attempts, int(entry.details.get("attempt", len(attempts))))
                    if lives := attempt.replicas.get(replica):
                        lives[-1] = replace(lives[-1], node=node)
            case _ if "replica" in entry.details and "incarnation" in entry.details:
                _lives(attempts, entry)
            case _:
                pass
    return attempts


def _begins(attempts: list[Attempt], entry: TimelineEntry) -> None:
    number = int(entry.details.get("attempt", len(attempts) + 1))
    before = attempts[-1] if attempts else None
    _ends(attempts, entry.at)
    attempt = _numbered(attempts, number)
    attempt.started = entry.at
    nodes: Mapping[str, str] = entry.details.get("nodes", {})
    if entry.kind == "attempt" and before is not None:
        nodes = {
            # A replica that had to leave gets another node, which a later entry names.
            replica: "" if lives[-1].leaving else lives[-1].node
            for replica, lives in before.replicas.items()
            if lives
        }
    for replica, node in nodes.items():
        attempt.change(replica, 1, node=node)


def _ends(attempts: list[Attempt], at: Nanos, rule: str = "") -> None:
    """End the current attempt, if it has not ended."""
    if attempts and not attempts[-1].ended and attempts[-1].number:
        attempt = attempts[-1]
        attempt.ended = at
        attempt.rule = rule or attempt.rule


def _judged(attempts: list[Attempt], entry: TimelineEntry) -> None:
    details, verdict = entry.details, verdict_view(entry)
    attempt = _numbered(attempts, int(details.get("attempt", 0)))
    lives = attempt.replicas.get(str(details.get("replica", "")))
    if lives:
        lives[-1] = replace(lives[-1], verdict=verdict)
    else:
        attempt.verdicts.append(verdict)
    if verdict.effect in _DECIDES_ATTEMPT:
        attempt.rule = verdict.rule


def verdict_view(entry: TimelineEntry) -> records.Verdict:
    """Return what the failure table decided, from the entry of it."""
    details = entry.details
    return records.Verdict(
        at=text_micros(entry.at),
        rule=str(details.get("rule", "")),
        effect=str(details.get("effect", "")),
        cause=str(details.get("cause", "")),
        count=int(details.get("count", 0)),
        budget=int(details.get("budget", 0)),
        reason=str(details.get("reason", "")),
        drill=int(details.get("drill", 0)),
        message=entry.message,
    )


def _lives(attempts: list[Attempt], entry: TimelineEntry) -> None:
    details = entry.details
    attempt = _numbered(attempts, int(details.get("attempt", 1)))
    fields: dict[str, Any] = {}
    if node := details.get("node", ""):
        fields["node"] = str(node)
    match entry.kind:
        case "replica_started":
            fields["start_time"] = text_micros(entry.at)
        case "replica_asked_to_leave":
            fields["leaving"] = str(details.get("reason", ""))
        case "replica_exited":
            fields |= {"end_time": text_micros(entry.at), "exit": _exit(details)}
        case "replica_lost" | "service_failed":
            fields |= {"end_time": text_micros(entry.at), "lost": entry.message}
        case _:
            pass
    attempt.change(str(details["replica"]), int(details["incarnation"]), **fields)


def attempts_view(attempts: list[Attempt], api: Api) -> tuple[records.Attempt, ...]:
    """Return the attempts in their order."""
    return tuple(_attempt(attempt, api) for attempt in attempts)


def _attempt(attempt: Attempt, api: Api) -> records.Attempt:
    return records.Attempt(
        attempt=attempt.number,
        start_time=text_micros(attempt.started),
        end_time=text_micros(attempt.ended),
        rule=attempt.rule,
        verdicts=tuple(attempt.verdicts),
        replicas=tuple(
            records.ReplicaHistory(
                id=replica,
                task=log_task_name(api, ReplicaId.parse(replica)),
                incarnations=tuple(lives),
            )
            for replica, lives in attempt.replicas.items()
        ),
    )


def _exit(details: Mapping[str, Any]) -> records.IncarnationExit:
    return records.IncarnationExit(
        exit_code=details.get("exit_code"),
        signal=details.get("signal"),
        out_of_memory=bool(details.get("oom")),
        stopped=bool(details.get("stopped")),
        stalled=bool(details.get("stalled")),
        out_of_disk=bool(details.get("out_of_disk")),
        log_lines=details.get("log_lines", 0),
    )
