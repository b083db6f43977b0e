"""The failure table (spec/failures#rules): ordered rows, of which the first match decides. `overrides` puts
in an operator's rows."""

from typing import Final

from trainshed.core.failure.evidence import CLUSTER_LOSSES, Cause
from trainshed.core.failure.messages import (
    CANCELLED,
    FAILED_PRECONDITION,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    Message,
)
from trainshed.core.failure.rules import Action, Match, Rule

_SECOND = 10**9
_ENDED = frozenset({Cause.EXITED, Cause.SIGNALLED})
_OUTSIDE_SIGNALS = frozenset({9, 15})
"""SIGKILL and SIGTERM: no program sends them to itself, so somebody else did (spec/failures#rules)."""
_TRANSIENT_SIGNALS = frozenset({6, 11})
_TRANSIENT_CODES = frozenset({6, 134, 11, 139})

_GROWING = tuple(_SECOND * tenths // 10 for tenths in (0, 1, 2, 4, 8, 16, 20))
"""A reducer that has run for a while is restarted at once the first times. Twenty restarts of one that dies
as soon as it starts take half of the window, so that it is given up all the same."""

MAX_ATTEMPTS: Final = 10
"""Attempts of one job in all, whatever the rows would still give (spec/failures#budgets)."""

RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "primary_succeeded",
        Match(frozenset({Cause.EXITED}), exit_codes=frozenset({0}), primary=True),
        Action.SUCCEED,
    ),
    Rule(
        "replica_completed",
        Match(frozenset({Cause.EXITED}), exit_codes=frozenset({0})),
        Action.DONE,
    ),
    Rule(
        "reducer_lost",
        Match(
            _ENDED
            | CLUSTER_LOSSES
            | {
                Cause.OUT_OF_MEMORY,
                Cause.OUT_OF_DISK,
                Cause.STALLED,
                Cause.LEFT,
                Cause.LOST,
                Cause.SERVICE,
            },
            reducer=True,
        ),
        Action.DONE,
        restarts=20,
        window=60 * _SECOND,
        spacing=_GROWING,
    ),
    Rule(
        "out_of_memory",
        Match(frozenset({Cause.OUT_OF_MEMORY})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.OUT_OF_MEMORY,
    ),
    Rule(
        "out_of_disk",
        Match(frozenset({Cause.OUT_OF_DISK})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.OUT_OF_DISK,
    ),
    Rule(
        "transient_exit",
        Match(_ENDED, exit_codes=_TRANSIENT_CODES, signals=_TRANSIENT_SIGNALS),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.USER_CODE,
        retries=3,
    ),
    Rule(
        "replica_lost",
        Match(
            frozenset({Cause.SIGNALLED, Cause.LEFT, Cause.LOST, Cause.STALLED}),
            signals=_OUTSIDE_SIGNALS,
        ),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.LOST,
        restarts=5,
        retries=3,
    ),
    Rule(
        "node_failed",
        Match(frozenset({Cause.NODE_FAILED})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.LOST,
        restarts=5,
        retries=3,
    ),
    Rule(
        "agent_lost",
        Match(frozenset({Cause.AGENT_LOST})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.LOST,
        restarts=5,
        retries=3,
    ),
    Rule(
        "pod_evicted",
        Match(frozenset({Cause.POD_EVICTED})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.LOST,
        restarts=5,
        retries=3,
    ),
    # A cancelled allocation may be a mistake; one that is cancelled again and again is meant.
    Rule(
        "allocation_revoked",
        Match(frozenset({Cause.ALLOCATION_REVOKED})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.LOST,
        restarts=2,
    ),
    # Many restarts, since a program with checkpoints makes progress in each allocation; but not without end,
    # since one without them begins anew each time.
    Rule(
        "allocation_expired",
        Match(frozenset({Cause.ALLOCATION_EXPIRED})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.LOST,
        restarts=20,
    ),
    Rule(
        "cluster_preempted",
        Match(frozenset({Cause.CLUSTER_PREEMPTED})),
        Action.FAIL,
        RESOURCE_EXHAUSTED,
        Message.STOCK_OUT,
        retries=6,
        gives_room=True,
    ),
    Rule("user_code_failed", Match(_ENDED), Action.FAIL, INVALID_ARGUMENT, Message.USER_CODE),
    Rule(
        "package_failed",
        Match(frozenset({Cause.PACKAGE})),
        Action.FAIL,
        INVALID_ARGUMENT,
        Message.PACKAGE,
    ),
    Rule(
        "data_failed", Match(frozenset({Cause.DATA})), Action.FAIL, INVALID_ARGUMENT, Message.DATA
    ),
    # The message says what would run; another attempt would ask for the same.
    Rule(
        "launch_rejected",
        Match(frozenset({Cause.REJECTED})),
        Action.FAIL,
        FAILED_PRECONDITION,
        Message.REJECTED,
    ),
    Rule(
        "stock_out",
        Match(frozenset({Cause.STOCK_OUT})),
        Action.FAIL,
        RESOURCE_EXHAUSTED,
        Message.STOCK_OUT,
        retries=3,
        back_off=(30 * _SECOND, 60 * _SECOND, 120 * _SECOND),
        gives_room=True,
        unstoppable=True,
    ),
    Rule(
        "internal_error",
        Match(frozenset({Cause.SERVICE})),
        Action.FAIL,
        INTERNAL,
        Message.INTERNAL,
        retries=2,
        # What failed, a registry say, is given time to come back.
        back_off=(2 * _SECOND, 10 * _SECOND),
    ),
    Rule(
        "preempted",
        Match(frozenset({Cause.PREEMPTED})),
        Action.FAIL,
        RESOURCE_EXHAUSTED,
        Message.STOCK_OUT,
        retries=6,
        gives_room=True,
    ),
    # It is no failure, and waiting for the next month costs nobody anything.
    Rule(
        "budget_used_up",
        Match(frozenset({Cause.BUDGET})),
        Action.WAIT,
        RESOURCE_EXHAUSTED,
        Message.BUDGET,
        gives_room=True,
        unstoppable=True,
    ),
    Rule(
        "cancelled",
        Match(frozenset({Cause.CANCELLED})),
        Action.CANCEL,
        CANCELLED,
        Message.CANCELLED,
    ),
)
