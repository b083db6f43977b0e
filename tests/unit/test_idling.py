"""Which jobs do nothing, and what follows (docs/operate.md)."""

from itertools import pairwise

import pytest

from trainshed.core.idling import Action, IdlePolicy, Span, verdict, warning

MINUTE = 60 * 10**9
GPUS = IdlePolicy(gpus=10 * MINUTE, stop=5 * MINUTE)


def spans(*used: tuple[float | None, ...]) -> list[Span]:
    """A look a minute: GPUs at work."""
    return [
        Span(begin * MINUTE, end * MINUTE, gpus)
        for (begin, end), gpus in zip(pairwise(range(len(used) + 1)), used, strict=True)
    ]


IDLE_GPU = (0.0,)
BUSY_GPU = (0.9,)


def test_gpus_are_idle_since_the_last_one_worked() -> None:
    works = spans(*[BUSY_GPU] * 3, *[IDLE_GPU] * 9)
    assert verdict(GPUS, [works], (), 12 * MINUTE) is None, "nine minutes"
    idle = spans(*[BUSY_GPU] * 3, *[IDLE_GPU] * 10)
    idleness = verdict(GPUS, [idle], (), 13 * MINUTE)
    assert idleness is not None
    assert (idleness.since, idleness.until) == (3 * MINUTE, 13 * MINUTE)
    assert idleness.action is Action.WARN
    assert verdict(GPUS, [idle, works], (), 13 * MINUTE) is None, "known up to then only"
    busy = spans(*[IDLE_GPU] * 12, BUSY_GPU)
    assert verdict(GPUS, [idle, busy], (), 13 * MINUTE) is None, "another replica works"
    assert verdict(GPUS, [idle, []], (), 13 * MINUTE) is None, "one was not looked at"
    assert verdict(GPUS, [], (), 13 * MINUTE) is None


def test_it_is_warned_once_then_stopped_and_warned_anew_after_it_has_worked() -> None:
    idle = spans(*[IDLE_GPU] * 20)
    assert verdict(GPUS, [idle], [11 * MINUTE], 15 * MINUTE) is None
    idleness = verdict(GPUS, [idle], [11 * MINUTE], 16 * MINUTE)
    assert idleness is not None and idleness.action is Action.STOP
    only_warned = IdlePolicy(gpus=GPUS.gpus)
    assert verdict(only_warned, [idle], [11 * MINUTE], 90 * MINUTE) is None
    again = spans(*[IDLE_GPU] * 11, BUSY_GPU, *[IDLE_GPU] * 11)
    idleness = verdict(GPUS, [again], [11 * MINUTE], 23 * MINUTE)
    assert idleness is not None and idleness.action is Action.WARN


@pytest.mark.parametrize("policy", [IdlePolicy(), IdlePolicy(stop=MINUTE)])
def test_nothing_follows_by_default(policy: IdlePolicy) -> None:
    assert not policy.is_set
    assert verdict(policy, [spans(*[IDLE_GPU] * 99)], (), 99 * MINUTE) is None


def test_what_does_not_tell_is_not_taken_for_idle() -> None:
    silent = spans(*[(None,)] * 20)
    assert verdict(GPUS, [silent], (), 20 * MINUTE) is None


def test_a_warning_says_what_will_follow() -> None:
    idleness = verdict(GPUS, [spans(*[IDLE_GPU] * 12)], (), 12 * MINUTE)
    assert idleness is not None
    assert warning(idleness, GPUS) == (
        "The GPUs of the job have done nothing for 12 minutes. "
        "The job is stopped in 5 minutes unless it goes to work."
    )
    assert warning(idleness, IdlePolicy(gpus=MINUTE)).endswith("for 12 minutes.")
    soon = IdlePolicy(gpus=MINUTE, stop=MINUTE)
    assert warning(idleness, soon).endswith("stopped in 1 minute unless it goes to work.")
