"""A service that a benchmark kills and restarts repeatedly, and its jobs."""

import contextlib
import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.processes import children, command_line
from tests.e2e.running import SKLEARN, Service, common_place, start

from bench.measures import Connection

RUN_TIMEOUT = 300.0
"""Seconds after which a run fails."""
_POLL_INTERVAL = 0.1
_CALLERS = 8


class UnexpectedSituation(Exception):
    """The situation to measure did not occur. The message contains the observed situation."""


@dataclass(slots=True)
class Patient:
    """A service that is killed and restarted repeatedly."""

    service: Service
    #: Options of the command that starts the service.
    args: tuple[str, ...]
    #: Number of unfinished jobs.
    jobs: int = 0
    #: The pipe of each job that ends when its pipe is opened, oldest job first.
    readers: dict[str, Path] = field(default_factory=dict[str, Path])
    #: Jobs that may be cancelled.
    victims: list[str] = field(default_factory=list[str])
    #: A mark in the environment of the service's programs.
    mark: str = field(default_factory=lambda: f"mark-{uuid.uuid4().hex}")

    def kill(self) -> None:
        """Send SIGKILL to the service and its zygote."""
        zygotes = [pid for pid in children(self.service.pid) if "zygote" in command_line(pid)]
        for pid in (self.service.pid, *zygotes):
            # The zygote may have ended together with the service.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.service.process.wait()

    def start(self) -> tuple[int, float, Connection]:
        """Restart the service. Return the start time (ns), the milliseconds until the service responded, and
        the connection."""
        begun = time.perf_counter_ns()
        again = start(self.service.data, *self.args, forked=False)
        # `running` records the values.
        self.service.process, self.service.rest, self.service.pid = (
            again.process, again.rest, again.pid
        )  # fmt: skip
        self.service.token = again.token
        connection = Connection(self.service)
        connection.call("GET", "/trainshed/v1/status")
        return begun, since(begun), connection

    def end_oldest_reader(self) -> str:
        """Open the pipe of the oldest job that waits for its pipe. Return the job, which then ends."""
        job = next(iter(self.readers))
        with self.readers.pop(job).open("wb"):
            return job

    def add(self, connection: Connection, command: list[str]) -> str:
        container = {"imageUri": SKLEARN, "command": command, "env": [{"name": "MARK", "value": self.mark}]}
        pool = {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": "1",
            "containerSpec": container,
        }
        self.jobs += 1
        return connection.submit({"displayName": "job", "jobSpec": {"workerPoolSpecs": [pool]}})

    def add_reader(self, connection: Connection) -> None:
        """Submit a job that ends when its pipe is opened."""
        pipe = common_place() / f"pipe-{uuid.uuid4().hex}"
        os.mkfifo(pipe)
        self.readers[self.add(connection, ["cat", str(pipe)])] = pipe

    def add_sleepers(self, count: int) -> None:
        """Submit jobs that run until they are cancelled."""

        def some(share: int) -> list[str]:
            connection = Connection(self.service)
            return [self.add(connection, ["sleep", "86400"]) for _ in range(share)]

        shares = [(count + i) // _CALLERS for i in range(_CALLERS)]
        with ThreadPoolExecutor(_CALLERS) as pool:
            for jobs in pool.map(some, shares):
                self.victims += jobs

    def until(self, connection: Connection, state: str, count: int) -> None:
        """Wait until `count` jobs are in a state."""
        deadline = time.monotonic() + RUN_TIMEOUT
        while (now := in_state(connection, state)) < count:
            if time.monotonic() > deadline:
                raise UnexpectedSituation(f"after {RUN_TIMEOUT:g} s {now} of {count} jobs are {state}")
            time.sleep(_POLL_INTERVAL)


def in_state(connection: Connection, state: str) -> int:
    """Return the number of jobs in a state, as the API lists them."""
    count, token = 0, ""
    while True:
        page = connection.call(
            "GET", f"/trainshed/v1/jobs?project=-&state={state}&limit=500&pageToken={token}"
        )
        count += len(page["jobs"])
        token = page["nextPageToken"]
        if not token:
            return count


def end(connection: Connection, job: str, state: str, *, cancel: bool = False) -> None:
    """Wait for a job's end. Raises UnexpectedSituation if its state is not the expected one."""
    if cancel:
        connection.call("POST", f"/trainshed/v1/jobs/{job}:cancel")
    last = state_at_end(connection, job)
    if last["state"] != state:
        raise UnexpectedSituation(f"job {job} is {last['state']}, not {state}: {last.get('error')}")


def state_at_end(connection: Connection, job: str) -> dict[str, Any]:
    return list(connection.stream(f"/trainshed/v1/jobs/{job}/watch"))[-1]


def since(begun: int) -> float:
    """Return the milliseconds since `begun`."""
    return (time.perf_counter_ns() - begun) / 1e6
