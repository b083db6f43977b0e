"""The rows of the main job: start-up, throughput, cost of a submission, and memory, as ratios to floors of
the same run."""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.running import CUSTOM_JOBS, Service, container_job, running

from bench import measures
from bench.measures import Connection, Row, beside, median, medians, percentile, within

START = 3.0
"""Budget of a start on two cores, as a ratio to the start of a bare interpreter."""
WARM_UP_ROUNDS = 2
"""Warm-up rounds whose times do not count."""


def measure(rounds: int, jobs: int, seconds: int) -> list[Row]:
    """Return all rows. `rounds`: of each start-up row. `jobs`: number of jobs in the throughput row.
    `seconds`: duration of the submission load."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory:
        with running(Path(directory, "main"), forked=False) as service:
            warm(service)
            rows += [idle_memory(service), replica_memory(service)]
            rows += start_up(service, rounds)
            rows.append(throughput(service, jobs))
        with running(Path(directory, "queued"), "--max-replicas", "1", forked=False) as service:
            rows += submit_cost(service, seconds)
    return rows


def warm(service: Service) -> None:
    """Build the runtime and run a complete job once."""
    connection = Connection(service)
    for _ in range(3):
        measures.first_line(connection)


def start_up(service: Service, rounds: int) -> list[Row]:
    connection = Connection(service)
    ours: list[float] = []
    seen: list[float] = []

    def submit() -> float:
        executed, followed = measures.first_line(connection)
        ours.append(executed)
        seen.append(followed)
        return executed

    runtime = measures.runtime_interpreter(connection)
    bare, _, bare8, ours8, bare16, ours16 = (
        values[WARM_UP_ROUNDS:]
        for values in measures.measure_interleaved(
            rounds + WARM_UP_ROUNDS,
            lambda: measures.bare_first_line(runtime),
            submit,
            lambda: measures.bare_together(8, runtime),
            lambda: measures.together(connection, 8),
            lambda: measures.bare_together(16, runtime),
            lambda: measures.together(connection, 16),
        )
    )
    first, followed = ours[WARM_UP_ROUNDS:], seen[WARM_UP_ROUNDS:]
    rows = [
        medians("submit → first line, p50", first, bare, START),
        beside("submit → first line, p95", percentile(first, 0.95), percentile(bare, 0.95)),
        medians("submit → line seen by a follower, p50", followed, bare),
        medians("8 replicas all started, p50", ours8, bare8, START),
        medians("16 replicas all started, p50", ours16, bare16, START),
    ]
    if shutil.which("gcloud") is None:
        print("NOTE: gcloud is not installed; its row is SKIPPED.", file=sys.stderr)
        return rows
    (local,) = measures.measure_interleaved(3, measures.gcloud_local_train)
    rows.append(medians("gcloud ai-platform local train → first line, p50", local, bare))
    return rows


def throughput(service: Service, jobs: int) -> Row:
    measures.jobs_per_second(service, jobs // 4, 4)
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(3):
        bare.append(measures.bare_per_second(jobs // 3))
        ours.append(measures.jobs_per_second(service, jobs, 6))
    ratio = median(ours) / median(bare)
    return Row(
        "trivial jobs end to end per second, six callers, against consecutive starts",
        f"{median(ours):.1f}/s",
        f"{median(bare):.1f}/s",
        ratio,
        "≥ 0.6×",
        ratio >= 0.6,
    )


def submit_cost(service: Service, seconds: int) -> list[Row]:
    connection = Connection(service)
    warm(service)
    connection.submit(container_job("import signal; signal.pause()"))
    rows: list[Row] = []
    for connections, most in ((16, 1.3), (1, 1.8)):
        cpu, rate = measures.submit_cpu(service, connections, seconds)
        by = f"{connections} connection{'s' if connections > 1 else ''}"
        rows += [
            within(f"CPU of the service per submit, {by}", cpu, None, most, digits=2),
            Row(f"durable submits per second, {by}", f"{rate:.0f}/s", "–"),
        ]
    return rows


def idle_memory(service: Service) -> Row:
    # By then, the background work of a start has finished.
    time.sleep(3)
    megabytes = measures.pss_megabytes(measures.family(service.pid))
    return Row(
        "service, buckets and zygote, idle (PSS)",
        f"{megabytes:.0f} MB",
        "–",
        None,
        "≤ 85 MB",
        megabytes <= 85,
    )


REPLICAS = 10
"""Number of replicas in `replica_memory`."""


def replica_memory(service: Service) -> Row:
    """Return the memory that each additional replica needs, as a row. `service` is idle."""
    before = _memory_beside_programs(service)
    connection = Connection(service)
    body = container_job("import time; print('up', flush=True); time.sleep(600)")
    jobs = [connection.submit(body) for _ in range(REPLICAS)]
    for job in jobs:
        next(Connection(service).messages(job))
    time.sleep(3)
    megabytes = (_memory_beside_programs(service) - before) / REPLICAS
    for job in jobs:
        service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
    for job in jobs:
        service.finish(job)
    return Row(
        "a running replica beside its program (PSS)",
        f"{megabytes:.1f} MB",
        "–",
        None,
        "≤ 6 MB",
        megabytes <= 6,
    )


def _memory_beside_programs(service: Service) -> float:
    """Return the megabytes of the service and all its processes, except for programs."""
    ours = [
        pid
        for pid in measures.family(service.pid)
        if pid == service.pid or Path(f"/proc/{pid}/comm").read_text().startswith("ts-")
    ]
    return measures.pss_megabytes(ours)
