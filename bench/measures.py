"""The measurements. Each function returns times in milliseconds, or a `Row` of the report."""

import functools
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.running import CUSTOM_JOBS, Service, container_job

STAMP = "import time; print(time.time_ns(), flush=True)"
"""The program of every start-up row, which prints the time of its first statement."""


@dataclass(frozen=True)
class Row:
    """A row of the report. `ratio`: the ratio to the floor of the same run. `target`: the limit."""

    name: str
    value: str
    floor: str
    ratio: float | None = None
    target: str = ""
    held: bool | None = None


class Connection:
    """A connection that is kept alive, so that the cost of a submission does not include connecting."""

    def __init__(self, service: Service) -> None:
        split = urlsplit(service.rest)
        self._connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=120)
        self._headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(verb, path, text, self._headers)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise RuntimeError(f"{verb} {path}: {response.status} {answer.decode()}")
        return json.loads(answer) if answer else None

    def submit(self, body: Any) -> str:
        return self.call("POST", CUSTOM_JOBS, body)["name"].rsplit("/", 1)[1]

    def stream(self, path: str) -> Iterator[Any]:
        """Yield the objects of an NDJSON stream until it ends."""
        self._connection.request("GET", path, None, self._headers)
        response = self._connection.getresponse()
        for line in response:
            if line.strip():
                yield json.loads(line)
        response.read()  # Reads the last chunk, which the iteration leaves in the connection.

    def messages(self, job: str) -> Iterator[str]:
        """Yield a job's log messages, live, until it ends."""
        for line in self.stream(f"/trainshed/v1/jobs/{job}/logs?follow=true"):
            yield line["message"]


def runtime_interpreter(connection: Connection) -> str:
    """Return the interpreter of jobs, as a path outside their mount namespace."""
    program = "import os, sys; print('runs', os.path.realpath(sys.executable))"
    job = connection.submit(container_job(program))
    (path,) = (m.split()[1] for m in connection.messages(job) if m.startswith("runs "))
    return path


def bare_first_line(python: str = sys.executable) -> float:
    """Return the time from spawn to the program's first statement, for a bare interpreter."""
    begun = time.time_ns()
    process = subprocess.run([python, "-c", STAMP], stdout=subprocess.PIPE, check=True)
    return (int(process.stdout) - begun) / 1e6


def bare_together(count: int, python: str = sys.executable) -> float:
    """Start `count` bare interpreters. Return the time from the first spawn until the last interpreter has
    run its first statement."""
    begun = time.time_ns()
    processes = [subprocess.Popen([python, "-c", STAMP], stdout=subprocess.PIPE) for _ in range(count)]
    stamps = [int(process.communicate()[0]) for process in processes]
    return (max(stamps) - begun) / 1e6


def gcloud_local_train() -> float:
    """Return the time from spawn to the program's first statement, through `gcloud ai-platform
    local train`.
    """
    with tempfile.TemporaryDirectory() as directory:
        package = Path(directory, "trainer")
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "task.py").write_text(STAMP)
        begun = time.time_ns()
        process = subprocess.run(
            ["gcloud", "ai-platform", "local", "train", "--module-name=trainer.task",
             f"--package-path={package}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            env={**os.environ, "CLOUDSDK_CONFIG": directory, "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"},
        )  # fmt: skip
    stamp = next(line for line in process.stdout.decode().split() if line.isdigit() and len(line) > 15)
    return (int(stamp) - begun) / 1e6


def first_line(connection: Connection, **labels: str) -> tuple[float, float]:
    """Return the times from the submission to the program's first statement, and to the first line that a
    follower of the log receives."""
    begun = time.time_ns()
    job = connection.submit({**container_job(STAMP), "labels": labels})
    stamp, seen = 0, 0
    for message in connection.messages(job):
        if message.isdigit() and not stamp:
            stamp, seen = int(message), time.time_ns()
    return (stamp - begun) / 1e6, (seen - begun) / 1e6


def together(connection: Connection, count: int, hold: float = 1.0) -> float:
    """Return the time from the submission until the last of `count` replicas has run its first statement.
    `hold`: seconds for which each replica then sleeps, so that all replicas can start."""
    begun = time.time_ns()
    program = f"{STAMP}\ntime.sleep({hold})"
    job = connection.submit(container_job(program, pools=(1, count - 1)))
    stamps = [int(message) for message in connection.messages(job) if message.isdigit()]
    if len(stamps) != count:
        why = connection.call("GET", f"/trainshed/v1/jobs/{job}/timeline")
        raise RuntimeError(f"{len(stamps)} of {count} replicas wrote their line: {why}")
    return (max(stamps) - begun) / 1e6


def jobs_per_second(service: Service, count: int, callers: int) -> float:
    """Run `count` trivial jobs from submission to end. `callers` parallel callers submit them, and wait for
    each job."""
    body = container_job("pass")

    def one(connection: Connection) -> None:
        job = connection.submit(body)
        for view in connection.stream(f"/trainshed/v1/jobs/{job}/watch"):
            if view["state"] == "FAILED":
                raise RuntimeError(f"a trivial job failed: {view}")

    def many(_: int) -> None:
        connection = Connection(service)
        for _ in range(count // callers):
            one(connection)

    begun = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(many, range(callers)))
    return count / (time.perf_counter() - begun)


def bare_per_second(count: int) -> float:
    """Start bare interpreters one after another. Return the number per second."""
    begun = time.perf_counter()
    for _ in range(count):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return count / (time.perf_counter() - begun)


def submit_cpu(service: Service, connections: int, seconds: int) -> tuple[float, float]:
    """Return (CPU milliseconds of the service per submission, submissions per second).

    Each caller submits jobs one after another over its own connection. The jobs wait behind a running job, so
    that only submissions are measured.
    """
    body = container_job("pass")
    deadline = time.perf_counter() + seconds

    def caller(connection: Connection) -> int:
        count = 0
        while time.perf_counter() < deadline:
            connection.submit(body)
            count += 1
        return count

    before = cpu_seconds(service.pid)
    with ThreadPoolExecutor(connections) as pool:
        count = sum(pool.map(caller, [Connection(service) for _ in range(connections)]))
    return (cpu_seconds(service.pid) - before) * 1000 / count, count / seconds


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    # Read all threads, because any thread may have started a child process.
    lists = [task.joinpath("children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [pid, *(p for child in " ".join(lists).split() for p in family(int(child)))]


def pss_megabytes(pids: list[int]) -> float:
    """Return the proportional set size of processes in megabytes. Shared pages count only once."""
    total = 0
    for pid in pids:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1])
    return total / 1024


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def measure_interleaved(rounds: int, *functions: Callable[[], float]) -> list[list[float]]:
    """Call each function once per round, in turn, so that a slow moment of the machine affects
    all of them.
    """
    results: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for values, function in zip(results, functions, strict=True):
            values.append(function())
    return results


def median(values: list[float]) -> float:
    return statistics.median(values)


def beside(name: str, value: float, floor: float, target: float | None = None, *, digits: int = 1) -> Row:
    """Return a row of milliseconds. `target`: the maximum ratio to the floor."""
    ratio = value / floor
    budget, is_kept = ("", None) if target is None else (f"≤ {target:g}×", ratio <= target)
    return Row(name, f"{value:.{digits}f} ms", f"{floor:.{digits}f} ms", ratio, budget, is_kept)


def medians(name: str, values: list[float], floor: list[float], target: float | None = None) -> Row:
    return beside(name, median(values), median(floor), target)


def within(name: str, value: float, floor: float | None, most: float, *, digits: int = 0) -> Row:
    """Return a row of milliseconds with an absolute budget. On a machine that is slower than the reference
    machine, the budget grows in proportion."""
    of_floor, ratio = ("–", None) if floor is None else (f"{floor:.{digits}f} ms", value / floor)
    here, target = scaled_budget(most, digits)
    return Row(name, f"{value:.{digits}f} ms", of_floor, ratio, target, value <= here)


def scaled_budget(most: float, digits: int = 0) -> tuple[float, str]:
    """Return the budget on this machine, and the text of the row's target."""
    here = most * slowness()
    return here, f"≤ {most:g} ms" + (f", here {here:.{digits}f} ms" if here > most else "")


SPAWNED = 9.0
"""Milliseconds that the program of `slowness` takes on the reference machine of the budgets."""


@functools.cache
def slowness() -> float:
    """Return how much slower this machine is than the reference machine: the ratio of the best times to run
    an interpreter, at least 1. It is measured only once per run, so that all budgets grow by the same factor.
    """
    spans: list[float] = []
    for _ in range(9):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
        spans.append((time.perf_counter() - begun) * 1e3)
    return max(1.0, min(spans) / SPAWNED)
