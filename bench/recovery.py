"""The recovery of a killed service with 1,000 running jobs, and with 1,000 queued jobs. The measured time is
from the start of the service until it controls its jobs again.

The benchmark starts its own services. It kills each service and its zygote (SIGKILL), restarts the service
and observes it from outside, in turn with a service without jobs. Programs are `sleep`s, and readers of a
pipe that end on command.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.processes import find_marked
from tests.e2e.running import running

from bench.measures import Connection, Row, beside, cpu_seconds, median, scaled_budget
from bench.patient import RUN_TIMEOUT, Patient, UnexpectedSituation, end, in_state, since, state_at_end

JOBS = 1_000
LIMIT = 1_200.0
"""Maximum milliseconds."""
MEGABYTES_PER_JOB = 6
"""Memory in MB of a shim and a `sleep`, including kernel memory. The measured value is 4."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Milliseconds from the exec of the new service process to each event."""

    #: The service responded to a request.
    served: float
    #: CPU time of the service until `adopted`. It does not depend on the load of the machine.
    cpu: float
    #: The API showed every job in its state, and one job was cancelled.
    adopted: float = 0.0
    #: The API showed the end of a program that ended while the service was down.
    missed: float = 0.0
    #: The API showed the end of a later program, or the start of the job that waited for it.
    next: float = 0.0


def measure(rounds: int, jobs: int = JOBS) -> list[Row]:
    """Return the rows for running and for queued jobs. If the memory is too small for one kind, skip it with
    a note on stderr."""
    measured: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as name:
        directory = Path(name)
        with idle(directory / "idle") as empty:
            if (free := available_megabytes()) < jobs * MEGABYTES_PER_JOB:
                say(
                    f"the rows of {jobs:,} running jobs are SKIPPED: they take about "
                    f"{jobs * MEGABYTES_PER_JOB:,} MB of memory, and {free:,} MB are free."
                )
            else:
                measured += running_rows(directory, empty, rounds, jobs)
            measured += queued_rows(directory, empty, rounds, jobs)
    return measured


@contextlib.contextmanager
def idle(data: Path, *args: str) -> Generator[Patient]:
    """Start a service with a warm runtime and no unfinished jobs."""
    with running(data, *args, forked=False) as service:
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
            patient.add_reader(connection)
        patient.add_sleepers(jobs - 2 * rounds)
        begun = time.perf_counter_ns()
        patient.until(connection, "RUNNING", jobs)
        say(f"{jobs:,} jobs run, {since(begun) / 1e3:.1f} s after the last was submitted")
        times, bare = in_turn(rounds, empty, lambda: recover_running(patient))
        cancel_all(patient)
    return rows(f"{jobs:,} running jobs", times, bare, missed=True)


def recover_running(patient: Patient) -> Recovered:
    expected = patient.jobs
    before = set(find_marked(patient.mark))
    patient.kill()
    missed = patient.end_oldest_reader()
    left = wait_for_one_less(patient.mark, before)
    begun, served, connection = patient.start()
    if (now := in_state(connection, "RUNNING")) not in (expected - 1, expected):
        raise UnexpectedSituation(f"{now} of {expected} jobs are RUNNING after the restart")
    end(connection, patient.victims.pop(), "CANCELLED", cancel=True)
    adopted, cpu = since(begun), cpu_seconds(patient.service.pid) * 1e3
    end(connection, missed, "SUCCEEDED")
    missed_at = since(begun)
    end(connection, patient.end_oldest_reader(), "SUCCEEDED")
    next_at = since(begun)
    patient.jobs -= 3
    patient.until(connection, "RUNNING", patient.jobs)
    if strangers := set(find_marked(patient.mark)) - left:
        raise UnexpectedSituation(f"{len(strangers)} programs were started by the restart")
    return Recovered(served, cpu, adopted, missed_at, next_at)


def queued_rows(directory: Path, empty: Patient, rounds: int, jobs: int) -> list[Row]:
    with idle(directory / "queued", "--max-replicas", "1") as patient:
        connection = Connection(patient.service)
        for _ in range(rounds + 1):
            patient.add_reader(connection)
        patient.until(connection, "RUNNING", 1)
        patient.add_sleepers(jobs - rounds)
        patient.until(connection, "QUEUED", jobs)
        times, bare = in_turn(rounds, empty, lambda: recover_queued(patient))
        cancel_all(patient)
    return rows(f"{jobs:,} queued jobs", times, bare, missed=False)


def recover_queued(patient: Patient) -> Recovered:
    patient.kill()
    begun, served, connection = patient.start()
    if (now := in_state(connection, "QUEUED")) != patient.jobs - 1:
        raise UnexpectedSituation(f"{now} of {patient.jobs - 1} jobs are QUEUED after the restart")
    end(connection, patient.victims.pop(), "CANCELLED", cancel=True)
    adopted, cpu = since(begun), cpu_seconds(patient.service.pid) * 1e3
    patient.end_oldest_reader()
    wait_for(connection, next(iter(patient.readers)), "RUNNING")
    next_at = since(begun)
    patient.jobs -= 2
    return Recovered(served, cpu, adopted, 0.0, next_at)


def in_turn(
    rounds: int, empty: Patient, recover: Callable[[], Recovered]
) -> tuple[list[Recovered], list[Recovered]]:
    """Restart the empty service and the measured service in turn. Return the recoveries of both."""
    times: list[Recovered] = []
    bare: list[Recovered] = []
    for _ in range(rounds):
        empty.kill()
        _, served, _ = empty.start()
        bare.append(Recovered(served, cpu_seconds(empty.service.pid) * 1e3))
        times.append(recover())
    return times, bare


def cancel_all(patient: Patient) -> None:
    """Cancel all remaining jobs. If a program was not adopted, its job does not end."""
    connection = Connection(patient.service)
    begun = time.perf_counter_ns()
    # Newest first, so that no waiting job starts.
    left = (*reversed(patient.victims), *reversed(patient.readers))
    for job in left:
        connection.call("POST", f"/trainshed/v1/jobs/{job}:cancel")
    for job in left:
        end(connection, job, "CANCELLED")
    if strays := find_marked(patient.mark):
        raise UnexpectedSituation(f"{len(strays)} programs outlived their jobs")
    say(f"all {len(left):,} remaining jobs were cancelled in {since(begun) / 1e3:.1f} s")


def rows(what: str, times: list[Recovered], empty: list[Recovered], *, missed: bool) -> list[Row]:
    after = f"restart with {what} →"
    bare = [recovery.served for recovery in empty]
    made = [
        row(f"{after} requests served", [recovery.served for recovery in times], bare),
        row(f"{after} all adopted, one cancelled", [recovery.adopted for recovery in times], bare),
    ]
    if missed:
        made.append(row(f"{after} a missed end reported", [recovery.missed for recovery in times], bare))
    first = "first end reported" if missed else "first end reported, the next job runs"
    made.append(row(f"{after} {first}", [recovery.next for recovery in times], bare))
    used, floor = (median([recovery.cpu for recovery in times]), median([recovery.cpu for recovery in empty]))
    name = f"restart with {what}: processor time until adopted"
    return [*made, beside(name, used, floor, digits=0)]


def row(name: str, values: list[float], floor: list[float]) -> Row:
    taken, of_floor = median(values), median(floor)
    here, target = scaled_budget(LIMIT)
    value = f"{taken:.0f} ms (worst {max(values):.0f})"
    return Row(name, value, f"{of_floor:.0f} ms", taken / of_floor, target, taken <= here)


def wait_for(connection: Connection, job: str, state: str) -> None:
    """Wait until a job has a state. The stream remains open, so the connection cannot be reused."""
    for view in connection.stream(f"/trainshed/v1/jobs/{job}/watch"):
        if view["state"] == state:
            return
    raise UnexpectedSituation(f"job {job} was never seen {state}")


def wait_for_one_less(mark: str, before: set[int]) -> set[int]:
    """Wait until a program and its helper processes have ended. Return the remaining processes."""
    deadline = time.monotonic() + RUN_TIMEOUT
    while (now := set(find_marked(mark))) == before:
        if time.monotonic() > deadline:
            raise UnexpectedSituation("a program did not end on command")
        time.sleep(0.01)
    return now


def available_megabytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) // 1024


def say(text: str) -> None:
    print(f"NOTE: {text}", file=sys.stderr, flush=True)
