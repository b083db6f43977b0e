"""The history of a job for tests: verdicts in its timeline, starts of its program."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.running import CUSTOM_JOBS, SKLEARN, Service, custom_job, worker_pool

PRIMARY, WORKER, REDUCER = "workerpool0-0", "workerpool1-0", "workerpool2-0"
STARTED = "begun"
"""The first output of `telling` programs."""


@dataclass(frozen=True)
class Verdict:
    """One decision of the failure table. `budget`: "2/3" is the second of three; None without a count."""

    rule: str
    effect: str
    replica: str = "workerpool0-0"
    budget: str | None = None


@dataclass(frozen=True)
class JobHistory:
    """A finished job. `public`: the resource in the public API. `view`: in Trainshed's API. `entries`: its
    timeline.
    """

    view: dict[str, Any]
    public: dict[str, Any]
    entries: list[dict[str, Any]]
    starts: Counter[str]

    @property
    def state(self) -> str:
        return self.public["state"].removeprefix("JOB_STATE_")

    @property
    def code(self) -> int:
        return self.public["error"]["code"]

    @property
    def message(self) -> str:
        return self.public["error"]["message"]

    @property
    def verdicts(self) -> list[Verdict]:
        """All except the last one of a successful job."""
        return _verdicts(self.entries)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.entries if entry["kind"] == kind]


def reporting_start(script: str) -> str:
    """Return a program that reports its start before it runs `script`."""
    return f"print({STARTED!r}, flush=True)\n{script}"


def make_pipe(path: Path) -> Path:
    """Create a pipe that every user may open."""
    os.mkfifo(path)
    path.chmod(0o666)
    return path


def waiting_at(gate: Path, then: str = "") -> str:
    """A program that waits at the gate."""
    return f"open({str(gate)!r}).read()\n{then}"


def pools(*scripts: str | tuple[str, int], mark: str = "", machine: str = "n1-standard-4") -> dict[str, Any]:
    """Return a CustomJob with a reporting program per worker pool, with a number of replicas if
    it is not 1.
    """

    def pool(script: str, count: int = 1) -> dict[str, Any]:
        command = ["python3", "-c", f"{reporting_start(script)}\n# {mark}"]
        return worker_pool(count, machine, containerSpec={"imageUri": SKLEARN, "command": command})

    return custom_job(*(pool(*script) if isinstance(script, tuple) else pool(script) for script in scripts))


def history_of(service: Service, job_id: str) -> JobHistory:
    """Wait for the job's end, and read its history."""
    view = service.finish(job_id)
    return JobHistory(
        view,
        service.call("GET", f"{CUSTOM_JOBS}/{job_id}"),
        timeline(service, job_id),
        Counter(started_replicas(service, job_id)),
    )


def timeline(service: Service, job_id: str) -> list[dict[str, Any]]:
    return service.call("GET", f"/trainshed/v1/jobs/{job_id}/timeline")["entries"]


def _verdicts(entries: list[dict[str, Any]]) -> list[Verdict]:
    verdicts = (_verdict(entry["details"]) for entry in entries if entry["kind"] == "verdict")
    return [verdict for verdict in verdicts if verdict.effect != "job_succeeds"]


def started_replicas(service: Service, job_id: str) -> Iterator[str]:
    """Return the replicas whose programs started, once for each start."""
    view = service.call("GET", f"/trainshed/v1/jobs/{job_id}")
    for replica in view["replicas"]:
        for line in service.lines(job_id, replica["id"]):
            if line == STARTED:
                yield replica["id"]


def until(lines: Iterator[str], wanted: str) -> list[str]:
    """Read a followed log until a line is `wanted`; return the lines before it."""
    before: list[str] = []
    for line in lines:
        if line == wanted:
            return before
        before.append(line)
    raise AssertionError(f"the job is over, and {wanted!r} never came; it said {before}")


def _verdict(details: dict[str, Any]) -> Verdict:
    budget = f"{details['count']}/{details['budget']}" if "budget" in details else None
    return Verdict(details["rule"], details["effect"], details.get("replica", ""), budget)
