"""The Slurm engine compared with manual Slurm commands, on a real cluster of three nodes on this machine
(`tests.slurm.lab`).

It starts the cluster and a service on it. In turn with the service, it runs `srun` in an existing allocation,
`salloc` with `srun`, and `sbatch`. It requires root and Debian's Slurm packages, and reports missing
requirements.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from tests.e2e.running import CACHE, Service, common_place, container_job, running
from tests.slurm.lab import SlurmLab, unavailable_reason
from tests.slurm.nodes import HUB, until

from bench import measures, restarts
from bench.measures import Connection, Row, beside, median, medians, scaled_budget, within

WARM_UP_ROUNDS = 2
"""Warm-up rounds whose times do not count."""
GANG = 16
CALLERS = 6
FIRST, FIRST_IN_KEPT, GANG_RATIO, IN_PLACE, ELSEWHERE = 350.0, 60.0, 2.0, 100.0, 5.0
"""Budgets: ms above the floor in a new and in an existing allocation, a ratio, ms, and seconds."""
_SIZE = 64, 100_000
"""Declared CPUs and MB of each node: six replicas of the smallest machine type fit on one."""
_HOLD = 3.0
"""Seconds for which a gang's replicas sleep, so that all replicas have started before the first one ends. On
a busy machine, the last of sixteen starts late."""
_WHOLE_NODE = "n1-highcpu-64"
_COMMANDS = ("salloc", "srun", "squeue", "sinfo", "scancel", "scontrol")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with a service. `python`: the interpreter of the jobs. `counted`: if commands are counted,
    the file to which each Slurm command of the service adds a line."""

    lab: SlurmLab
    service: Service
    python: str
    counted: Path

    def slurm(self, *command: str) -> list[str]:
        """The prefix that runs a Slurm command manually. Such commands are not counted."""
        return [str(self.lab.commands / command[0]), *command[1:]]

    def commands_sent(self) -> int:
        return self.counted.read_text().count("\n")

    def controller_seconds(self) -> float:
        """CPU seconds of slurmctld so far."""
        return sum(map(measures.cpu_seconds, self.lab.processes(HUB, "slurmctld")))


def measure(rounds: int, jobs: int) -> list[Row]:
    """Measure `rounds` starts for each start row, and `jobs` jobs for the throughput row. Without a cluster,
    print a note and return None."""
    if reason := unavailable_reason():
        print(f"bench: slurm is SKIPPED: {reason}", file=sys.stderr, flush=True)
        return []
    rows: list[Row] = []
    with site("keep = 30.0") as here:
        rows += kept_first_lines(here, rounds)
        rows += kept_gangs(here, max(4, rounds // 3))
    with site() as here:
        rows += first_lines(here, rounds)
        rows += gangs(here, max(4, rounds // 3))
        rows += again(here, max(4, rounds // 3))
        rows += lost_node(here)
    with site(counts=True) as here:
        rows += throughput(here, jobs)
    return rows


@contextlib.contextmanager
def site(slurm: str = "", *, counts: bool = False) -> Generator[Site]:
    """Start a service on the cluster. `slurm`: additional lines of `[engines.slurm]`. `counts`: whether to
    count the service's commands, which costs one shell per command."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trainshed-bench-") as name:
        directory = Path(name)
        with SlurmLab(directory / "lab", [directory, common_place()], size=_SIZE) as lab:
            counted = directory / "commands.log"
            counted.touch()
            commands = counting(lab, directory, counted) if counts else lab.commands
            config = directory / "config.toml"
            config.write_text(
                f'engine = "slurm"\n'
                f'[engines.slurm]\naddress = "{lab.outside}"\ncommands = "{commands}"\n'
                f'directory = "/tmp/agents"\nshared = true\n{slurm}\n'
            )
            with running(directory / "data", "--config", str(config)) as service:
                connection = Connection(service)
                python = measures.runtime_interpreter(connection)
                yield Site(lab, service, python, counted)
            lab.slurm("scancel", "-u", "root")


def counting(lab: SlurmLab, directory: Path, counted: Path) -> Path:
    """Return a directory with wrappers of the Slurm commands that count their calls."""
    commands = directory / "commands"
    commands.mkdir()
    for name in _COMMANDS:
        script = commands / name
        script.write_text(f'#!/bin/sh\necho {name} >>{counted}\nexec {lab.commands / name} "$@"\n')
        script.chmod(0o755)
    return commands


# --- manual ---


@contextlib.contextmanager
def allocation(here: Site, *options: str) -> Generator[str]:
    """Allocate nodes with `salloc`, and return the number of the Slurm job."""
    answer = subprocess.run(
        here.slurm("salloc", "--no-shell", *options), capture_output=True, text=True, check=True
    ).stderr
    number = answer.split("job allocation ")[1].split()[0]
    try:
        yield number
    finally:
        subprocess.run(here.slurm("scancel", number), check=True)


ONE = ("--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--mem=15G")


def kept(here: Site, job: str) -> float:
    """Run `srun` in an existing allocation. Return the milliseconds to the program's first statement."""
    begun = time.time_ns()
    done = subprocess.run(
        here.slurm("srun", f"--jobid={job}", "--overlap", "--ntasks=1", here.python, "-c", measures.STAMP),
        stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    return (int(done.stdout) - begun) / 1e6


def fresh(here: Site) -> float:
    """Run `salloc`, and `srun` in its allocation."""
    begun = time.time_ns()
    with allocation(here, *ONE) as job:
        between = (time.time_ns() - begun) / 1e6
        return between + kept(here, job)


def batch(here: Site) -> float:
    """Run `sbatch`."""
    output = here.lab.directory / "batch.out"
    script = f"#!/bin/sh\nexec {here.python} -c '{measures.STAMP}'\n"
    begun = time.time_ns()
    subprocess.run(
        here.slurm("sbatch", "--wait", "--quiet", f"--output={output}", *ONE),
        input=script.encode(),
        check=True,
    )
    return (int(output.read_text()) - begun) / 1e6


def kept_gang(here: Site, job: str) -> float:
    """Run `srun` with sixteen tasks. Return the milliseconds until the last task has run its first
    statement."""
    program = here.python, "-c", measures.STAMP
    begun = time.time_ns()
    done = subprocess.run(
        here.slurm("srun", f"--jobid={job}", "--overlap", f"--ntasks={GANG}", *program),
        stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    stamps = list(map(int, done.stdout.split()))
    if len(stamps) != GANG:
        raise RuntimeError(f"{len(stamps)} of {GANG} tasks wrote their line")
    return (max(stamps) - begun) / 1e6


# Allocate only a small part of each node, so that Trainshed's job fits too: the service detects the usage of
# other jobs some seconds later.
_ALL = ("--nodes=3", f"--ntasks={GANG}", "--cpus-per-task=1", "--mem=1G")


def fresh_gang(here: Site, of_srun: list[float]) -> float:
    """Run `salloc`, and sixteen tasks in its allocation. Append the time of the tasks to `of_srun`."""
    begun = time.time_ns()
    with allocation(here, *_ALL) as job:
        between = (time.time_ns() - begun) / 1e6
        of_srun.append(kept_gang(here, job))
        return between + of_srun[-1]


def per_second(here: Site, count: int) -> float:
    """Run trivial programs, each with an `srun` that allocates its node, with the same number of callers as
    in Trainshed's row."""

    def many(_: int) -> None:
        for _ in range(count // CALLERS):
            command = here.slurm("srun", "--quiet", *ONE, here.python, "-c", "pass")
            subprocess.run(command, check=True)

    begun = time.perf_counter()
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(many, range(CALLERS)))
    return count / (time.perf_counter() - begun)


# --- rows ---


def first_lines(here: Site, rounds: int) -> list[Row]:
    connection = Connection(here.service)
    with allocation(here, *ONE) as job:
        in_kept, in_fresh, by_batch, ours = (
            values[WARM_UP_ROUNDS:]
            for values in measures.measure_interleaved(
                rounds + WARM_UP_ROUNDS,
                lambda: kept(here, job),
                lambda: fresh(here),
                lambda: batch(here),
                lambda: settled(here, lambda: measures.first_line(connection)[0]),
            )
        )
    name = "submit → first line, p50"
    return [
        above(f"{name}, against salloc and srun", ours, in_fresh, FIRST),
        above(f"{name}, against srun in an existing allocation", ours, in_kept),
        above(f"{name}, against sbatch", ours, by_batch),
    ]


def kept_first_lines(here: Site, rounds: int) -> list[Row]:
    """Measure a service that keeps nodes for the next job, so that it starts neither an allocation nor an
    agent."""
    connection = Connection(here.service)
    with allocation(here, *ONE) as job:
        in_kept, ours = (
            values[WARM_UP_ROUNDS:]
            for values in measures.measure_interleaved(
                rounds + WARM_UP_ROUNDS, lambda: kept(here, job), lambda: measures.first_line(connection)[0]
            )
        )
    name = "submit → first line with nodes kept, p50, against srun in an existing allocation"
    return [above(name, ours, in_kept, FIRST_IN_KEPT)]


def kept_gangs(here: Site, rounds: int) -> list[Row]:
    """Measure a service that keeps nodes, with a gang."""
    connection = Connection(here.service)
    with allocation(here, *_ALL) as job:
        in_kept, ours = (
            values[WARM_UP_ROUNDS:]
            for values in measures.measure_interleaved(
                rounds + WARM_UP_ROUNDS,
                lambda: kept_gang(here, job),
                lambda: measures.together(connection, GANG, _HOLD),
            )
        )
    name = f"{GANG} replicas on 3 nodes with nodes kept, p50, against srun -n{GANG} in an existing allocation"
    return [medians(name, ours, in_kept, GANG_RATIO)]


def settled(here: Site, measure_ours: Callable[[], float]) -> float:
    """Wait until everything that ran before is cleaned up. Then measure a row of Trainshed."""
    took = measure_ours()
    for _ in until("the end of the service's allocations"):
        if not here.lab.slurm("squeue", "-h", "-o", "%j").count("trainshed-"):
            break
    return took


def gangs(here: Site, rounds: int) -> list[Row]:
    connection = Connection(here.service)
    of_srun: list[float] = []
    in_fresh, ours = (
        values[WARM_UP_ROUNDS:]
        for values in measures.measure_interleaved(
            rounds + WARM_UP_ROUNDS,
            lambda: fresh_gang(here, of_srun),
            lambda: settled(here, lambda: measures.together(connection, GANG, _HOLD)),
        )
    )
    name = f"{GANG} replicas on 3 nodes all started, p50"
    return [
        wanted(medians(f"{name}, against salloc and srun -n{GANG}", ours, in_fresh)),
        medians(f"{name}, against only that srun", ours, of_srun[WARM_UP_ROUNDS:]),
    ]


def wanted(row: Row) -> Row:
    """Print a note whether a gang in a new allocation meets the budget for kept nodes. On two CPUs it does
    not meet it yet (docs/adr/0083), so the result does not fail the run."""
    assert row.ratio is not None
    reached = "reached" if row.ratio <= GANG_RATIO else "NOT reached"
    return replace(row, target=f"≤ {GANG_RATIO:g}× wanted, {reached}")


def again(here: Site, rounds: int) -> list[Row]:
    with allocation(here, *ONE) as job:
        step, in_place, whole = (
            values[WARM_UP_ROUNDS:]
            for values in measures.measure_interleaved(
                rounds + WARM_UP_ROUNDS,
                lambda: kept(here, job),
                lambda: restarts.restart(here.service),
                lambda: restarts.retry(here.service)[0],
            )
        )
    return [
        within(
            "worker killed → first line of its next incarnation, p50",
            median(in_place),
            median(step),
            IN_PLACE,
        ),
        medians("primary exits 139 → first line in the retried job, p50", whole, step),
    ]


def throughput(here: Site, jobs: int) -> list[Row]:
    jobs -= jobs % CALLERS
    by_hand_before = here.controller_seconds()
    by_hand = per_second(here, jobs)
    by_hand_cpu = here.controller_seconds() - by_hand_before
    sent, before = here.commands_sent(), here.controller_seconds()
    ours = measures.jobs_per_second(here.service, jobs, CALLERS)
    cpu, commands = here.controller_seconds() - before, here.commands_sent() - sent
    return [
        Row(
            f"trivial jobs end to end per second, {CALLERS} callers",
            f"{ours:.1f}/s",
            f"{by_hand:.1f}/s",
            ours / by_hand,
        ),
        beside("CPU time of slurmctld per job", 1000 * cpu / jobs, 1000 * by_hand_cpu / jobs),
        Row("commands sent to Slurm per job", f"{commands / jobs:.1f}", "1", commands / jobs),
    ]


_STAY = f"""{measures.STAMP}
import signal
signal.pause()"""


def lost_node(here: Site) -> list[Row]:
    """Cut the power of a worker's node. Measure the time until the worker's first statement on another
    node."""
    connection = Connection(here.service)
    body = container_job(_STAY, pools=(1, 1))
    for pool in body["jobSpec"]["workerPoolSpecs"]:
        pool["machineSpec"]["machineType"] = _WHOLE_NODE
    job = connection.submit(body)
    view = f"/trainshed/v1/jobs/{job}"
    killed, off, stamps = "", 0, list[int]()
    for message in connection.messages(job):
        if message.isdigit():
            stamps.append(int(message))
        if len(stamps) == 2 and not killed:
            replicas = Connection(here.service).call("GET", view)["replicas"]
            (killed,) = (replica["node"] for replica in replicas if replica["id"] == "workerpool1-0")
            off = time.time_ns()
            here.lab.kill_node(killed)
        elif len(stamps) == 3:
            # Use a new connection, because the service closes an idle one before it declares the node lost.
            Connection(here.service).call("POST", f"{view}:cancel")
    here.lab.boot(killed)
    here.lab.await_states({killed: ("idle", "mixed")})
    entries = Connection(here.service).call("GET", f"{view}/timeline")["entries"]
    lost = min(
        datetime.fromisoformat(entry["at"]).timestamp()
        for entry in entries
        if killed in entry["message"] and "gone" in entry["message"]
    )
    again, whole = stamps[-1] / 1e9 - lost, (stamps[-1] - off) / 1e9
    return [
        Row(
            "node reported lost by Slurm or the lease → first line elsewhere",
            f"{again:.1f} s",
            "–",
            target=f"≤ {ELSEWHERE:g} s",
            held=again <= ELSEWHERE,
        ),
        Row("power of a node lost → first line elsewhere (SlurmdTimeout 5 s)", f"{whole:.1f} s", "–"),
    ]


def above(name: str, ours: list[float], floor: list[float], most: float | None = None) -> Row:
    """Return a row of starts with a limit in milliseconds above the floor."""
    more = median(ours) - median(floor)
    value, of_floor = f"{median(ours):.0f} ms ({more:+.0f})", f"{median(floor):.0f} ms"
    ratio = median(ours) / median(floor)
    if most is None:
        return Row(name, value, of_floor, ratio)
    here, target = scaled_budget(most)
    return Row(f"{name}, above it", value, of_floor, ratio, target, more <= here)
