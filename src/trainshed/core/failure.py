"""Why a replica stopped and what follows: one ordered table, first match wins (SPEC §2.1).

Restarts and job retries are not served yet: every row that would restart ends the job with the row's public
code and message. A replica's end is data here, never an exception.
"""

import enum
import signal
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from trainshed.core.lifecycle.records import ExitRecord, JobError
from trainshed.core.names import JobName, ReplicaId, project_number, public_replica_name

INVALID_ARGUMENT = 3
CANCELLED = 1
INTERNAL = 13

INTERNAL_ERROR_MESSAGE = "Internal error occurred for the current attempt"


class Effect(enum.StrEnum):
    """What a verdict does to the job."""

    JOB_SUCCEEDS = "job_succeeds"
    REPLICA_DONE = "replica_done"
    JOB_FAILS = "job_fails"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a rule may look at. `exit` is None when the replica left no record; `cause` and `by_service`
    then say why it is gone and whether the service itself is at fault."""

    name: JobName
    replica: ReplicaId
    is_package: bool
    exit: ExitRecord | None
    cause: str = ""
    by_service: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One row. `message` makes the public text; it is called only for rows that fail the job."""

    name: str
    matches: Callable[[Evidence], bool]
    effect: Effect
    code: int = 0
    message: Callable[[Evidence], str] = lambda evidence: ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rule that matched and what it means; `error` is the job's public error, if it fails."""

    rule: str
    effect: Effect
    error: JobError | None = None


def published_status(exit_record: ExitRecord, *, is_package: bool) -> int:
    """The number that public messages give: a signal is published bare for package jobs (6, 11) and as
    128 + n for containers (134, 139); an out-of-memory kill is 137 for both (SPEC §2.1, facts §2.2)."""
    if exit_record.oom:
        return 128 + signal.SIGKILL
    if exit_record.exit_code is not None:
        return exit_record.exit_code
    number = exit_record.signal or 0
    return number if is_package else 128 + number


def _exit_code(evidence: Evidence) -> int | None:
    return evidence.exit.exit_code if evidence.exit else None


def _status(evidence: Evidence) -> int:
    assert evidence.exit is not None
    return published_status(evidence.exit, is_package=evidence.is_package)


def _user_code_message(evidence: Evidence) -> str:
    replica = public_replica_name(evidence.name.api, evidence.replica)
    tail = evidence.exit.tail.strip() if evidence.exit else ""
    return "\n".join(
        (
            f"The replica {replica} exited with a non-zero status of {_status(evidence)}. "
            "Termination reason: Error. ",
            *((tail, "") if tail else ()),
            f"To find out more about why your job exited please check the logs: {logs_link(evidence.name)}",
        )
    )


def _oom_message(evidence: Evidence) -> str:
    replica = public_replica_name(evidence.name.api, evidence.replica)
    return f"The replica {replica} ran out of memory and exited with a non-zero status of {_status(evidence)}."


def _lost_message(evidence: Evidence) -> str:
    replica = public_replica_name(evidence.name.api, evidence.replica)
    return f"The replica {replica} was lost: {evidence.cause}."


RULES: tuple[Rule, ...] = (
    Rule(
        "primary_succeeded",
        lambda e: e.replica.is_primary and _exit_code(e) == 0,
        Effect.JOB_SUCCEEDS,
    ),
    Rule("replica_completed", lambda e: _exit_code(e) == 0, Effect.REPLICA_DONE),
    Rule(
        "out_of_memory",
        lambda e: e.exit is not None and e.exit.oom,
        Effect.JOB_FAILS,
        INVALID_ARGUMENT,
        _oom_message,
    ),
    Rule(
        "user_code_failed",
        lambda e: e.exit is not None,
        Effect.JOB_FAILS,
        INVALID_ARGUMENT,
        _user_code_message,
    ),
    Rule(
        "internal_error",
        lambda e: e.by_service,
        Effect.JOB_FAILS,
        INTERNAL,
        lambda e: INTERNAL_ERROR_MESSAGE,
    ),
    Rule("replica_lost", lambda e: True, Effect.JOB_FAILS, INVALID_ARGUMENT, _lost_message),
)


def judge(evidence: Evidence, rules: tuple[Rule, ...] = RULES) -> Verdict:
    """The verdict of the first rule that matches; the last row matches everything."""
    for rule in rules:
        if rule.matches(evidence):
            error = (
                JobError(rule.code, rule.message(evidence))
                if rule.effect is Effect.JOB_FAILS
                else None
            )
            return Verdict(rule.name, rule.effect, error)
    raise AssertionError("the failure table has no last row that matches everything")


def logs_link(name: JobName) -> str:
    """The link of the public message to a job's log (facts §2.3)."""
    query = f'resource.type="ml_job"\nresource.labels.job_id="{name.job_id}"'
    return (
        "https://console.cloud.google.com/logs/viewer"
        f"?project={project_number(name.project_id)}"
        f"&resource={quote(f'ml_job/job_id/{name.job_id}', safe='')}"
        f"&advancedFilter={quote(query, safe='')}"
    )
