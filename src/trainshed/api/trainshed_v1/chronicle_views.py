"""The chronicle as plain JSON of ours.

Attempt: `attempt, startTime, endTime, rule, verdicts, replicas`; replica: `id, task, incarnations`; incarnation:
`incarnation, node, startTime, endTime, exit, lost, leaving, verdict` with `exit` null or `{exitCode, signal, outOfMemory,
stopped, stalled, outOfDisk, logLines}` and `verdict` null or `{at, rule, effect, cause, count, budget, reason, drill, message}`.
Attempt 0 is there only if something was decided before the first one had room. Counters: `retries` and `restarts`, by rule.
"""

from collections.abc import Mapping
from typing import Any

from trainshed.api.calls.timestamps import text_micros
from trainshed.api.trainshed_v1.chronicle import Attempt, Chronicle, Incarnation, Verdict
from trainshed.core.names import Api, ReplicaId, log_task_name


def chronicle_view(told: Chronicle, api: Api) -> dict[str, Any]:
    """`{attempts, counters}`."""
    return {
        "attempts": [_attempt(attempt, api) for attempt in told.attempts],
        "counters": {"retries": dict(told.retries), "restarts": dict(told.restarts)},
    }


def _attempt(attempt: Attempt, api: Api) -> dict[str, Any]:
    return {
        "attempt": attempt.number,
        "startTime": text_micros(attempt.started),
        "endTime": text_micros(attempt.ended),
        "rule": attempt.rule,
        "verdicts": [_verdict(verdict) for verdict in attempt.verdicts],
        "replicas": [
            {
                "id": replica,
                "task": log_task_name(api, ReplicaId.parse(replica)),
                "incarnations": [_incarnation(life) for life in lives],
            }
            for replica, lives in attempt.replicas.items()
        ],
    }


def _incarnation(life: Incarnation) -> dict[str, Any]:
    return {
        "incarnation": life.number,
        "node": life.node,
        "startTime": text_micros(life.started),
        "endTime": text_micros(life.ended),
        "exit": _exit(life.exit) if life.exit is not None else None,
        "lost": life.lost,
        "leaving": life.leaving,
        "verdict": _verdict(life.verdict) if life.verdict else None,
    }


def _exit(details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "exitCode": details.get("exit_code"),
        "signal": details.get("signal"),
        "outOfMemory": bool(details.get("oom")),
        "stopped": bool(details.get("stopped")),
        "stalled": bool(details.get("stalled")),
        "outOfDisk": bool(details.get("out_of_disk")),
        "logLines": details.get("log_lines", 0),
    }


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "at": text_micros(verdict.at),
        "rule": verdict.rule,
        "effect": verdict.effect,
        "cause": verdict.cause,
        "count": verdict.count,
        "budget": verdict.budget,
        "reason": verdict.reason,
        "drill": verdict.drill,
        "message": verdict.message,
    }
