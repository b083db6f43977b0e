"""The time from a replica's death to the first statement of its next incarnation, compared with a bare
interpreter of the same run.

There are two cases: a killed worker that is restarted while the other processes continue, and a job that is
retried because its primary exited with 139.
"""

import tempfile
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.running import Service, container_job, running

from bench import measures
from bench.measures import Connection, Row, medians

REPLICAS = 3
WARM_UP_ROUNDS = 2
"""Warm-up rounds whose times do not count."""

IN_PLACE, WHOLE_JOB = 3.0, 7.5
"""Maximum ratios to a bare start of the job's interpreter: for one restarted replica, and for all replicas of
a retried job."""

STEADY = 0.3
"""Seconds that a program runs before it dies, so that all replicas of its gang have started."""

BIRTH = """\
import time; now = time.time_ns()
import os, pathlib, signal
rank = int(os.environ["RANK"])
print("first", rank, now, flush=True)

def last():
    time.sleep({steady})
    print("exit", rank, time.time_ns(), flush=True)

marker = pathlib.Path({marker!r})
if rank == {rank} and not marker.exists():
    marker.touch()
    {death}
signal.pause()
"""
"""The program of every replica, which prints its start time. One replica dies once. A file in the working
directory records this."""


@dataclass(frozen=True, slots=True)
class Said:
    """The lines that a job's replicas printed: the rank and the time (ns since the epoch)."""

    firsts: tuple[tuple[int, int], ...]
    exit: tuple[int, int]

    def after(self) -> dict[int, float]:
        """Return, by rank, the milliseconds from the exit to the first statement of each later
        incarnation."""
        return {rank: (at - self.exit[1]) / 1e6 for rank, at in self.firsts if at > self.exit[1]}


def measure(rounds: int) -> list[Row]:
    """Start a service with a warm runtime and return the rows."""
    with (
        tempfile.TemporaryDirectory(prefix="trainshed-bench-") as directory,
        running(Path(directory, "restarts")) as service,
    ):
        return rows(service, rounds)


def rows(service: Service, rounds: int) -> list[Row]:
    """Return the rows of a running service."""
    connection = Connection(service)
    own = measures.runtime_interpreter(connection)
    gangs: list[float] = []

    def retried() -> float:
        primary, gang = retry(service)
        gangs.append(gang)
        return primary

    bare, bare_own, in_place, whole = (
        values[WARM_UP_ROUNDS:]
        for values in measures.measure_interleaved(
            rounds + WARM_UP_ROUNDS,
            measures.bare_first_line,
            lambda: measures.bare_first_line(own),
            lambda: restart(service),
            retried,
        )
    )
    against = "against the job's own interpreter, p50"
    return [
        medians("worker killed → first line of its next incarnation, p50", in_place, bare),
        medians(f"worker killed → first line, {against}", in_place, bare_own, IN_PLACE),
        medians("primary exits 139 → first line in the retried job, p50", whole, bare),
        medians(f"primary exits 139 → first line, {against}", whole, bare_own),
        medians(
            f"primary exits 139 → all {REPLICAS} replicas started, {against}",
            gangs[WARM_UP_ROUNDS:],
            bare_own,
            WHOLE_JOB,
        ),
    ]


def restart(service: Service) -> float:
    """Kill a worker once. Return the milliseconds to the first statement of its next incarnation. Raises an
    error if another replica restarted."""
    script = BIRTH.format(
        steady=STEADY,
        marker="died-once",  # The file is in the working directory, which a restarted replica keeps.
        rank=1,
        death="last(); os.kill(os.getpid(), signal.SIGKILL)",
    )
    statements = run(service, script, REPLICAS + 1)
    after = statements.after()
    if set(after) != {1}:
        raise RuntimeError(f"one worker was killed, and these ranks restarted: {sorted(after)}")
    return after[1]


def retry(service: Service) -> tuple[float, float]:
    """Let the primary exit with 139 once. Return the milliseconds to the first statement of the next primary,
    and of the last replica."""
    script = BIRTH.format(
        steady=STEADY, marker=f"/gcs/trainshed/died-{uuid.uuid4().hex}", rank=0, death="last(); os._exit(139)"
    )
    after = run(service, script, 2 * REPLICAS).after()
    if len(after) != REPLICAS:
        raise RuntimeError(f"the job was retried, and only these ranks restarted: {sorted(after)}")
    return after[0], max(after.values())


def run(service: Service, script: str, births: int) -> Said:
    """Run a gang until `births` first statements were printed, then cancel it."""
    connection, control = Connection(service), Connection(service)
    job = connection.submit(container_job(script, pools=(1, REPLICAS - 1)))
    firsts: list[tuple[int, int]] = []
    exits: list[tuple[int, int]] = []
    kinds: dict[str, Callable[[tuple[int, int]], None]] = {"first": firsts.append, "exit": exits.append}
    for message in connection.messages(job):
        kind, *numbers = message.split()
        if kind not in kinds or len(numbers) != 2:
            continue
        kinds[kind]((int(numbers[0]), int(numbers[1])))
        if len(firsts) == births:
            control.call("POST", f"/trainshed/v1/jobs/{job}:cancel")
    if len(firsts) != births or len(exits) != 1:
        view = control.call("GET", f"/trainshed/v1/jobs/{job}")
        raise RuntimeError(
            f"{len(firsts)} of {births} first statements, {len(exits)} exits; "
            f"the job is {view['state']}: {view.get('error')}"
        )
    return Said(tuple(firsts), exits[0])
