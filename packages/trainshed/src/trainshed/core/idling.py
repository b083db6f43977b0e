"""Jobs whose GPUs do nothing: since when a job has been idle, and whether to warn or to stop it. Pure."""

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from trainshed.core.units import Nanos

BUSY_GPU: Final = 0.02
"""A GPU that is at work for this share of the time, or more, counts as busy."""


class IdlePolicy(Struct, frozen=True):
    """How long a job may idle, in nanoseconds; 0 = for ever."""

    #: Until a warning, with all GPUs of the job idle.
    gpus: int = 0
    #: From the warning until the job is stopped; 0 = it is only warned.
    stop: int = 0

    @property
    def is_set(self) -> bool:
        """Whether there is ever a warning."""
        return bool(self.gpus)


class Span(Struct, frozen=True):
    """What a replica used between two measurements."""

    #: Nanoseconds since the epoch, like `end`.
    begin: Nanos
    end: Nanos
    #: For each GPU, the share of the time that it was at work; None = not known.
    gpus: tuple[float | None, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether all of its GPUs are known to have done nothing."""
        return all(busy is not None and busy < BUSY_GPU for busy in self.gpus)


class Action(enum.StrEnum):
    """What is done about it."""

    WARN = "warn"
    STOP = "stop"


class Verdict(Struct, frozen=True):
    """The finding that a job idles for too long."""

    #: Nanoseconds since the epoch, like `until`, the last moment at which it is known.
    since: Nanos
    until: Nanos
    action: Action


def verdict(
    policy: IdlePolicy, replicas: Sequence[Sequence[Span]], warned: Iterable[int]
) -> Verdict | None:
    """Return what is done about a job; None = nothing. `replicas`: for each running one its spans, oldest
    first; while one has none, it was not measured yet, and nothing is done. `warned`: when the job was warned
    before."""
    if not replicas or not all(replicas):
        return None
    until = min(spans[-1].end for spans in replicas)
    with_gpus = [spans for spans in replicas if spans[-1].gpus]
    if not policy.gpus or not with_gpus:
        return None
    since = max(map(_since, with_gpus))
    if until - since < policy.gpus:
        return None
    warnings = [at for at in warned if at > since]
    if not warnings:
        return Verdict(since, until, Action.WARN)
    if policy.stop and until - min(warnings) >= policy.stop:
        return Verdict(since, until, Action.STOP)
    return None


def _since(spans: Sequence[Span]) -> int:
    """Return the end of the last span that was not idle; the first one's beginning if all were."""
    for span in reversed(spans):
        if not span.is_idle:
            return span.end
    return spans[0].begin


def warning(idle: Verdict, policy: IdlePolicy) -> str:
    """Return the text for the job's timeline."""
    text = f"The GPUs of the job have done nothing for {_span(idle.until - idle.since)}."
    if not policy.stop:
        return text
    return f"{text} The job is stopped in {_span(policy.stop)} unless it goes to work."


def _span(length: int) -> str:
    seconds = length // 10**9
    count, word = (seconds // 60, "minute") if seconds >= 60 else (seconds, "second")
    return f"{count} {word}{'' if count == 1 else 's'}"
