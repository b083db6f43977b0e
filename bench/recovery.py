"""From the start of a service that was killed to where its jobs are in its hands again: 1,000 that run, and 1,000 queued.

`python -m bench.recovery` starts services of its own, kills each with its zygote (SIGKILL), starts it again and looks at it
from outside, in turn with a service that has no jobs. Programs are `sleep`s and readers of a pipe that end when told.
"""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.processes import children, command_line, marked
from tests.e2e.running import SKLEARN, Service, running, start

from bench.measures import Connection, Row, median

JOBS = 1_000
LIMIT = 2_000.0
"""Milliseconds (issue 3, point 5)."""
MEGABYTES_PER_JOB = 6
"""Shim, guardian and a `sleep`, with all that the kernel keeps for them; measured: 4."""
PATIENCE = 300.0
"""Seconds until a run is given up."""
_PAUSE = 0.1
_CALLERS = 8


class Spoilt(Exception):
    """What was to be measured did not come about. The message says what did."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Milliseconds since the new process was executed. `served`: a request was answered. `adopted`: every job was seen in
    its state and a cancel of one was carried out. `missed`: an end that came while no service was there was seen.
    `next`: an end that came after it was seen, or the job that it made room for."""

    served: float
    adopted: float = 0.0
    missed: float = 0.0
    next: float = 0.0


@dataclass(slots=True)
class Patient:
    """A service that is killed again and again. `mark`: what its programs carry in their environment."""

    service: Service
    args: tuple[str, ...]
    jobs: int = 0
    told: dict[str, Path] = field(default_factory=dict[str, Path])
    """Jobs that end when their pipe is opened, oldest first."""
    victims: list[str] = field(default_factory=list[str])
    """Jobs that may be cancelled."""
    mark: str = field(default_factory=lambda: f"mark-{uuid.uuid4().hex}")

    def kill(self) -> None:
        """SIGKILL to the service and its zygote."""
        zygotes = [pid for pid in children(self.service.pid) if "zygote" in command_line(pid)]
        for pid in (self.service.pid, *zygotes):
            os.kill(pid, signal.SIGKILL)
        self.service.process.wait()

    def start(self) -> tuple[int, float, Connection]:
        """Start it anew. Returns when that was (ns), the milliseconds until it answered, and the connection."""
        begun = time.perf_counter_ns()
        again = start(self.service.data, *self.args)
        # `running` takes down what it gave out.
        self.service.process, self.service.rest, self.service.pid = (
            again.process, again.rest, again.pid
        )  # fmt: skip
        self.service.token = again.token
        connection = Connection(self.service)
        connection.call("GET", "/trainshed/v1/status")
        return begun, since(begun), connection

    def tell(self) -> str:
        """Have the oldest job that ends when told end; returns it."""
        job = next(iter(self.told))
        with self.told.pop(job).open("wb"):
            return job

    def add(self, connection: Connection, command: list[str]) -> str:
        container = {
            "imageUri": SKLEARN,
            "command": command,
            "env": [{"name": "MARK", "value": self.mark}],
        }
        pool = {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": "1",
            "containerSpec": container,
        }
        self.jobs += 1
        return connection.submit({"displayName": "job", "jobSpec": {"workerPoolSpecs": [pool]}})

    def add_told(self, connection: Connection, directory: Path) -> None:
        """A job that ends when told."""
        pipe = directory / f"pipe-{uuid.uuid4().hex}"
        os.mkfifo(pipe)
        self.told[self.add(connection, ["cat", str(pipe)])] = pipe

    def add_sleepers(self, count: int) -> None:
        """Jobs that run until they are ended."""

        def some(share: int) -> list[str]:
            connection = Connection(self.service)
            return [self.add(connection, ["sleep", "86400"]) for _ in range(share)]

        shares = [(count + i) // _CALLERS for i in range(_CALLERS)]
        with ThreadPoolExecutor(_CALLERS) as pool:
            for jobs in pool.map(some, shares):
                self.victims += jobs

    def until(self, connection: Connection, state: str, count: int) -> None:
        """Wait until so many jobs are in a state."""
        deadline = time.monotonic() + PATIENCE
        while (now := in_state(connection, state)) < count:
            if time.monotonic() > deadline:
                raise Spoilt(f"after {PATIENCE:g} s {now} of {count} jobs are {state}")
            time.sleep(_PAUSE)


def measure(rounds: int, jobs: int = JOBS) -> list[Row]:
    """The rows of both kinds; a kind that there is no memory for is left out, with a note on stderr."""
    found: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as name:
        directory = Path(name)
        with idle(directory / "idle") as empty:
            if (room := available_megabytes()) < jobs * MEGABYTES_PER_JOB:
                say(
                    f"the rows of {jobs:,} running jobs are SKIPPED: they take about "
                    f"{jobs * MEGABYTES_PER_JOB:,} MB of memory, and {room:,} MB are free."
                )
            else:
                found += running_rows(directory, empty, rounds, jobs)
            found += queued_rows(directory, empty, rounds, jobs)
    return found


@contextlib.contextmanager
def idle(data: Path, *args: str) -> Generator[Patient]:
    """A service with a warm runtime and no jobs that are not over."""
    with running(data, *args) as service:
        patient = Patient(service, args)
        connection = Connection(service)
        job = patient.add(connection, ["true"])
        state_at_end(connection, job)
        patient.jobs = 0
        yield patient


def running_rows(directory: Path, empty: Patient, rounds: int, jobs: int) -> list[Row]:
    limit = str(2 * jobs)
    with idle(directory / "running", "--max-replicas", limit) as patient:
        connection = Connection(patient.service)
        for _ in range(2 * rounds):
            patient.add_told(connection, directory)
        patient.add_sleepers(jobs - 2 * rounds)
        begun = time.perf_counter_ns()
        patient.until(connection, "RUNNING", jobs)
        say(f"{jobs:,} jobs run, {since(begun) / 1e3:.1f} s after the last was submitted")
        times, bare = in_turn(rounds, empty, lambda: recover_running(patient))
        check_adopted(patient)
    return rows(f"{jobs:,} running jobs", times, bare, missed=True)


def recover_running(patient: Patient) -> Recovered:
    expected = patient.jobs
    before = set(marked(patient.mark))
    patient.kill()
    missed = patient.tell()
    left = wait_for_one_less(patient.mark, before)
    begun, served, connection = patient.start()
    if (now := in_state(connection, "RUNNING")) not in (expected - 1, expected):
        raise Spoilt(f"{now} of {expected} jobs are RUNNING after the restart")
    end(connection, patient.victims.pop(), "CANCELLED", cancel=True)
    adopted = since(begun)
    end(connection, missed, "SUCCEEDED")
    missed_at = since(begun)
    end(connection, patient.tell(), "SUCCEEDED")
    next_at = since(begun)
    patient.jobs -= 3
    patient.until(connection, "RUNNING", patient.jobs)
    if strangers := set(marked(patient.mark)) - left:
        raise Spoilt(f"{len(strangers)} programs were started by the restart")
    return Recovered(served, adopted, missed_at, next_at)


def queued_rows(directory: Path, empty: Patient, rounds: int, jobs: int) -> list[Row]:
    with idle(directory / "queued", "--max-replicas", "1") as patient:
        connection = Connection(patient.service)
        for _ in range(rounds + 1):
            patient.add_told(connection, directory)
        patient.until(connection, "RUNNING", 1)
        patient.add_sleepers(jobs - rounds)
        patient.until(connection, "QUEUED", jobs)
        times, bare = in_turn(rounds, empty, lambda: recover_queued(patient))
    return rows(f"{jobs:,} queued jobs", times, bare, missed=False)


def recover_queued(patient: Patient) -> Recovered:
    patient.kill()
    begun, served, connection = patient.start()
    if (now := in_state(connection, "QUEUED")) != patient.jobs - 1:
        raise Spoilt(f"{now} of {patient.jobs - 1} jobs are QUEUED after the restart")
    end(connection, patient.victims.pop(), "CANCELLED", cancel=True)
    adopted = since(begun)
    patient.tell()
    wait_for(connection, next(iter(patient.told)), "RUNNING")
    next_at = since(begun)
    patient.jobs -= 2
    return Recovered(served, adopted, 0.0, next_at)


def in_turn(
    rounds: int, empty: Patient, recover: Callable[[], Recovered]
) -> tuple[list[Recovered], list[float]]:
    """Recoveries of the one that is looked at, and milliseconds until the empty one answered."""
    times: list[Recovered] = []
    bare: list[float] = []
    for _ in range(rounds):
        empty.kill()
        bare.append(empty.start()[1])
        times.append(recover())
    return times, bare


def check_adopted(patient: Patient) -> None:
    """Cancel every job that is left: what was not adopted would not end."""
    connection = Connection(patient.service)
    begun = time.perf_counter_ns()
    for job in (*patient.victims, *patient.told):
        connection.call("POST", f"/trainshed/v1/jobs/{job}:cancel")
    for job in (*patient.victims, *patient.told):
        end(connection, job, "CANCELLED")
    if left := marked(patient.mark):
        raise Spoilt(f"{len(left)} programs outlived their jobs")
    say(f"all {patient.jobs:,} that were left were cancelled in {since(begun) / 1e3:.1f} s")


def rows(what: str, times: list[Recovered], bare: list[float], *, missed: bool) -> list[Row]:
    after = f"restart with {what} →"
    made = [
        row(f"{after} requests served", [one.served for one in times], bare),
        row(f"{after} all adopted, one cancelled", [one.adopted for one in times], bare),
    ]
    if missed:
        made.append(row(f"{after} a missed end told", [one.missed for one in times], bare))
    first = "first end told" if missed else "first end told, the next job runs"
    made.append(row(f"{after} {first}", [one.next for one in times], bare))
    return made


def row(name: str, values: list[float], floor: list[float]) -> Row:
    """Held if the worst round is."""
    return Row(
        name,
        f"{median(values):.0f} ms (worst {max(values):.0f})",
        f"{median(floor):.0f} ms",
        median(values) / median(floor),
        f"≤ {LIMIT / 1e3:g} s",
        max(values) <= LIMIT,
    )


def in_state(connection: Connection, state: str) -> int:
    """How many jobs are in a state, as the API lists them."""
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
    """See a job to its end; raises Spoilt if that is another one."""
    if cancel:
        connection.call("POST", f"/trainshed/v1/jobs/{job}:cancel")
    last = state_at_end(connection, job)
    if last["state"] != state:
        raise Spoilt(f"job {job} is {last['state']}, not {state}: {last.get('error')}")


def state_at_end(connection: Connection, job: str) -> dict[str, Any]:
    return list(connection.stream(f"/trainshed/v1/jobs/{job}/watch"))[-1]


def wait_for(connection: Connection, job: str, state: str) -> None:
    """See a job come into a state; its stream goes on, so its connection is not used again."""
    for view in connection.stream(f"/trainshed/v1/jobs/{job}/watch"):
        if view["state"] == state:
            return
    raise Spoilt(f"job {job} was never seen {state}")


def wait_for_one_less(mark: str, before: set[int]) -> set[int]:
    """Wait until a program has ended, and all that was there for it; the processes that are left."""
    deadline = time.monotonic() + PATIENCE
    while (now := set(marked(mark))) == before:
        if time.monotonic() > deadline:
            raise Spoilt("a program that was told to end goes on")
        time.sleep(0.01)
    return now


def since(begun: int) -> float:
    """Milliseconds."""
    return (time.perf_counter_ns() - begun) / 1e6


def available_megabytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) // 1024


def say(text: str) -> None:
    print(f"NOTE: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = measure(options.rounds, options.jobs)
    print(f"load {load:.1f} before the run")
    for one in found:
        held = "held" if one.held else "MISSED"
        print(f"{one.name}: {one.value}, empty {one.floor}: {one.ratio:.2f}× {one.target} {held}")
    return 1 if any(one.held is False for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
