"""Jobs that hold machines and do nothing: since when a job has been idle, and whether to warn or to stop it.
Pure.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from trainshed.core.units import Nanos

BUSY_GPU: Final = 0.02
"""A GPU that is at work for this share of the time, or more, counts as busy."""
BUSY_CPUS: Final = 0.05
"""A replica that keeps this many processors at work, or more, counts as busy."""
BUSY_BYTES: Final = 10_000
"""A replica that sends and receives this many bytes a second, or more, counts as busy: it may load data."""


class IdlePolicy(Struct, frozen=True):
    """How long a job may idle, in nanoseconds; 0 = for ever."""

    #: Until a warning, with all GPUs of the job idle.
    gpus: int = 0
    #: Until a warning, with all of the job idle.
    jobs: int = 0
    #: From the warning until the job is stopped; 0 = it is only warned.
    stop: int = 0

    @property
    def is_set(self) -> bool:
        """Whether there is ever a warning."""
        return bool(self.gpus or self.jobs)


class Span(Struct, frozen=True):
    """What a replica used between two measurements."""

    #: Nanoseconds since the epoch, like `end`.
    begin: Nanos
    end: Nanos
    #: Processors at work on average.
    cpus: float
    #: For each GPU, the share of the time that it was at work; None = not known.
    gpus: tuple[float | None, ...] = ()
    #: Bytes a second that were sent and received; None = not known.
    moved: float | None = None

    @property
    def gpus_idle(self) -> bool:
        """Whether all of its GPUs are known to have done nothing."""
        return all(busy is not None and busy < BUSY_GPU for busy in self.gpus)

    @property
    def is_idle(self) -> bool:
        """Whether nothing was at work."""
        return self.gpus_idle and self.cpus < BUSY_CPUS and (self.moved or 0) < BUSY_BYTES


class Idling(enum.StrEnum):
    """Which part of a job was idle."""

    GPUS = "gpus"
    JOB = "job"


class Action(enum.StrEnum):
    """What is done about it."""

    WARN = "warn"
    STOP = "stop"


class Verdict(Struct, frozen=True):
    """The finding that a job idles for too long."""

    idling: Idling
    #: Nanoseconds since the epoch, like `until`, the last moment at which it is known.
    since: Nanos
    until: Nanos
    action: Action


def verdict(
    policy: IdlePolicy, replicas: Sequence[Sequence[Span]], warned: Iterable[int], now: Nanos
) -> Verdict | None:
    """Return what is done about a job; None = nothing. `replicas`: for each running one its spans, oldest
    first; while one has none, it was not measured yet, and nothing is done. `warned`: when the job was warned
    before."""
    if not replicas or not all(replicas):
        return None
    until = min(spans[-1].end for spans in replicas)
    idle: list[tuple[Idling, int]] = []
    if policy.gpus and any(span.gpus for spans in replicas for span in spans[-1:]):
        with_gpus = [spans for spans in replicas if spans[-1].gpus]
        idle.append((Idling.GPUS, max(_since(spans, Idling.GPUS) for spans in with_gpus)))
    if policy.jobs:
        idle.append((Idling.JOB, max(_since(spans, Idling.JOB) for spans in replicas)))
    for idling, since in idle:
        allowed = policy.gpus if idling is Idling.GPUS else policy.jobs
        if until - since < allowed:
            continue
        warnings = [at for at in warned if at > since]
        if not warnings:
            return Verdict(idling, since, until, Action.WARN)
        if policy.stop and now - min(warnings) >= policy.stop:
            return Verdict(idling, since, until, Action.STOP)
    return None


def _since(spans: Sequence[Span], idling: Idling) -> int:
    """Return the end of the last span that was not idle; the first one's beginning if all were."""
    for span in reversed(spans):
        if not (span.gpus_idle if idling is Idling.GPUS else span.is_idle):
            return span.end
    return spans[0].begin


def warning(verdict: Verdict, policy: IdlePolicy) -> str:
    """Return the text for the job's timeline."""
    what = "The GPUs of the job have" if verdict.idling is Idling.GPUS else "The job has"
    text = f"{what} done nothing for {_span(verdict.until - verdict.since)}."
    if not policy.stop:
        return text
    return f"{text} The job is stopped in {_span(policy.stop)} unless it goes to work."


def _span(length: int) -> str:
    seconds = length // 10**9
    count, word = (seconds // 60, "minute") if seconds >= 60 else (seconds, "second")
    return f"{count} {word}{'' if count == 1 else 's'}"
