"""Which jobs do nothing, and what follows (docs/operate.md)."""

from itertools import pairwise

import pytest

from trainshed.core.idling import IdlePolicy, Span, verdict, warning

MINUTE = 60 * 10**9
GPUS = IdlePolicy(gpus=10 * MINUTE, stop=5 * MINUTE)


def spans(*used: tuple[float | None, ...]) -> list[Span]:
    """A look a minute: GPUs at work."""
    return [
        Span(begin * MINUTE, end * MINUTE, gpus)
        for (begin, end), gpus in zip(pairwise(range(len(used) + 1)), used, strict=True)
    ]


IDLE_GPU = (0.0,)


@pytest.mark.parametrize("policy", [IdlePolicy(), IdlePolicy(stop=MINUTE)])
def test_nothing_follows_by_default(policy: IdlePolicy) -> None:
    assert not policy.is_set
    assert verdict(policy, [spans(*[IDLE_GPU] * 99)], (), 99 * MINUTE) is None


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
