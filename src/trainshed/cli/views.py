"""Jobs, replicas, log lines and timeline entries as `/trainshed/v1` gives them, with types. Pure.

Moments are nanoseconds since the epoch, 0 where one has not come.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainshed.cli.moments import parse_moment
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.names import Api


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica of a job's current attempt. `how`: how its program ended, "" while it has not."""

    id: str
    task: str
    state: ReplicaState
    node: str = ""
    incarnation: int = 1
    started: int = 0
    ended: int = 0
    how: str = ""

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "ReplicaView":
        """Read one entry of a job's `replicas`."""
        ending: Mapping[str, Any] = found.get("exit") or {}
        return ReplicaView(
            id=found["id"],
            task=found["task"],
            state=ReplicaState(found["state"]),
            node=found["node"],
            incarnation=found["incarnation"],
            started=parse_moment(found["startTime"]),
            ended=parse_moment(ending.get("endTime", "")),
            how=_how(ending),
        )


@dataclass(frozen=True, slots=True)
class JobView:
    """A job, from its summary or from its whole description.

    `error` is "" without one. Of descriptions only: `rule`, the row of the failure table that decided the
    end; `waits`, why it is not running yet, oldest first; `resource`, as the job's own API shows it.
    """

    id: str
    uid: str
    api: Api
    name: str
    display_name: str
    state: JobState
    created: int
    started: int
    ended: int
    error_code: int = 0
    error: str = ""
    attempt: int = 0
    rule: str = ""
    waits: tuple[str, ...] = ()
    replicas: tuple[ReplicaView, ...] = ()

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "JobView":
        """Read a summary or a description. Raises KeyError or ValueError for something else."""
        error: Mapping[str, Any] = found.get("error") or {}
        return JobView(
            id=found["jobId"],
            uid=found["uid"],
            api=Api(found["api"]),
            name=found["name"],
            display_name=found["displayName"],
            state=JobState(found["state"]),
            created=parse_moment(found["createTime"]),
            started=parse_moment(found["startTime"]),
            ended=parse_moment(found["endTime"]),
            error_code=error.get("code", 0),
            error=error.get("message", "").strip(),
            attempt=found.get("attempt", 0),
            rule=found.get("rule", ""),
            waits=tuple(found.get("waits", ())),
            replicas=tuple(ReplicaView.parse(replica) for replica in found.get("replicas", ())),
        )

    def lasted(self, now: int) -> int:
        """From creation to the end, or to `now`."""
        return (self.ended or now) - self.created


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a replica."""

    at: int
    replica: str
    severity: str
    message: str

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "LogLine":
        """Read one line of a log stream."""
        return LogLine(
            parse_moment(found["at"]), found["replica"], found["severity"], found["message"]
        )


@dataclass(frozen=True, slots=True)
class TimelineView:
    """One entry of a job's story; `kind` is a short stable word."""

    at: int
    kind: str
    message: str

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "TimelineView":
        """Read one of the `entries`."""
        return TimelineView(parse_moment(found["at"]), found["kind"], found["message"])


def _how(ending: Mapping[str, Any]) -> str:
    if not ending:
        return ""
    if ending["outOfMemory"]:
        return "out of memory"
    if ending["signal"] is not None:
        return f"signal {ending['signal']}"
    return f"exit {ending['exitCode']}"
