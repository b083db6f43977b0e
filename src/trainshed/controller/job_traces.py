"""Records the starts of jobs as traces: how long an attempt waited for capacity, prepared its environments,
and started its replicas."""

from typing import Final

from trainshed.core.lifecycle.records import Job
from trainshed.core.lifecycle.states import AttemptState
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed.telemetry.spans import Span, SpanSink

_STAGES: Final = {
    AttemptState.WAITING: "wait for capacity",
    AttemptState.PREPARING: "prepare environments",
    AttemptState.STARTING: "start replicas",
}


class JobTraces:
    """Traces the starts of a service's jobs. A start that an earlier service began is not recorded."""

    def __init__(self, sink: SpanSink) -> None:
        self._sink = sink
        #: When the stages of each job's start began.
        self._begun: dict[JobUid, list[tuple[AttemptState, int]]] = {}

    def step(self, before: Job, after: Job, now: Nanos) -> None:
        """Take note of a step that was stored, and record the span once the start has ended; `now` in ns
        since the epoch."""
        if after.uid not in self._begun:
            # The first step of a job or of its next attempt.
            if before.phase is not AttemptState.WAITING:
                return
            self._begun[after.uid] = [(before.phase, max(before.created, before.not_before))]
        stages = self._begun[after.uid]
        if after.phase is stages[-1][0]:
            return
        if after.phase in _STAGES:
            stages.append((after.phase, now))
            return
        del self._begun[after.uid]
        self._sink.record(_span(after, stages, now))


def _span(job: Job, stages: list[tuple[AttemptState, int]], now: Nanos) -> Span:
    ends = [at for _, at in stages[1:]] + [now]
    parts = tuple(
        Span(_STAGES[phase], at, max(at, end), {})
        for (phase, at), end in zip(stages, ends, strict=True)
    )
    attributes: dict[str, str | int] = {
        "trainshed.job": str(job.name),
        "trainshed.job.uid": str(job.uid),
        "trainshed.attempt": job.attempt,
        "trainshed.replicas": len(job.replicas),
    }
    started = job.phase is AttemptState.RUNNING
    begin = stages[0][1]
    return Span("start of a job", begin, max(begin, now), attributes, parts, failed=not started)
