"""Counts what one step of a job adds to the service's meters."""

from collections import Counter
from collections.abc import Iterable

from trainshed.core.failure.rules import Counters
from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState, ReplicaState
from trainshed.core.units import Nanos
from trainshed.telemetry.meters import Labels, Meters


def count_step(meters: Meters, before: Job, after: Job, now: Nanos) -> None:
    """Update the meters for a step that was stored; `now` in ns since the epoch."""
    api = after.name.api.value
    if before.phase is AttemptState.WAITING and after.is_placed:
        meters.waits.observe((now - max(before.created, before.not_before)) / 1e9, api)
    if not before.started and after.started:
        meters.starts.observe((after.started - after.created) / 1e9, api)
    if after.state.is_final and not before.state.is_final:
        rule = after.outcome.rule if after.outcome else ""
        meters.ends[api, after.state.value, rule] += 1
    _add(meters.retries, before.retries, after.retries)
    then = {replica.id: replica for replica in before.replicas}
    for replica in after.replicas:
        was = then.get(replica.id)
        if was is replica:
            continue
        if was is not None and before.attempt == after.attempt:
            _add(meters.restarts, was.restarts, replica.restarts)
        if replica.exit and not (was and was.state is ReplicaState.EXITED):
            meters.lines += replica.exit.log_lines


def _add(counter: "Counter[Labels]", before: Counters, after: Counters) -> None:
    for rule, count in _grown(before, after):
        counter[(rule,)] += count


def _grown(before: Counters, after: Counters) -> Iterable[tuple[str, int]]:
    if before == after:
        return
    then = dict(before)
    for rule, count in after:
        if count > then.get(rule, 0):
            yield rule, count - then.get(rule, 0)
