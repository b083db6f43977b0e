"""Slurm on this machine: one node with its own configuration, on the loopback interface, with all files in a
temporary directory.

The settings favor Slurm: no accounting, no cgroups, a scheduler that reads the queue immediately, and at
least 16 declared CPUs. It requires Debian packages, and installs them if possible.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

from bench import measures
from bench.measures import Row, median
from bench.peers import programs
from bench.peers.programs import Unavailable

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
COMMANDS = ("slurmctld", "slurmd", "srun", "munged")
CPUS = 16
WARM_UP_ROUNDS = 2
ARRAY = "trivial"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster. `directory` contains all its state. The file `completed` has one line per finished
    job."""

    directory: Path
    environment: dict[str, str]
    version: str

    @property
    def completed(self) -> Path:
        return self.directory / "completed"

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=programs.PEER_TIMEOUT,
            check=check,
        )


def measure(rounds: int, jobs: int) -> list[Row]:
    """Return the rows of Slurm. If Slurm cannot run, print a note to stderr and return no rows. `jobs`: the
    number of jobs in Trainshed's row."""
    try:
        with cluster() as slurm:
            return [restart(slurm, rounds), throughput(slurm, jobs)]
    except (Unavailable, TimeoutError, subprocess.SubprocessError) as reason:
        programs.say(f"the rows of Slurm are SKIPPED: {reason}")
        return []


def restart(slurm: Cluster, rounds: int) -> Row:
    """Return the times from the exit of a step's program to the first statement of the next step, in an
    existing allocation."""
    message = slurm.run("salloc", "--no-shell", "--ntasks=1", "--job-name=held").stderr
    allocation = next(word for word in message.split() if word.isdigit())
    stamp = slurm.directory / "exit"

    def step(program: str, status: int) -> str:
        done = slurm.run(
            "srun", "--overlap", f"--jobid={allocation}", "--ntasks=1", sys.executable, "-c", program,
            check=False,
        )  # fmt: skip
        if done.returncode != status:
            raise Unavailable(f"a step ended with {done.returncode}, not {status}: {done.stderr}")
        return done.stdout

    def again() -> float:
        step(programs.dying(stamp), 137)
        first = int(step(measures.STAMP, 0))
        return (first - int(stamp.read_text())) / 1e6

    bare, ours = (
        values[WARM_UP_ROUNDS:]
        for values in measures.measure_interleaved(rounds + WARM_UP_ROUNDS, measures.bare_first_line, again)
    )
    slurm.run("scancel", allocation)
    what = f"killed step → first line of its replacement, p50 of {rounds}"
    return measures.medians(f"Slurm {slurm.version}: {what}", ours, bare)


def throughput(slurm: Cluster, jobs: int) -> Row:
    """Run an array of trivial jobs, which one sbatch submits, until the last job is recorded as complete.
    Return the jobs per second."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(3):
        bare.append(measures.bare_per_second(jobs // 3))
        before = completed(slurm)
        begun = time.perf_counter()
        slurm.run(
            "sbatch", f"--array=0-{jobs - 1}", f"--job-name={ARRAY}", "--output=/dev/null",
            f"--wrap={sys.executable} -c pass",
        )  # fmt: skip
        programs.until(
            "the end of a job array of Slurm",
            lambda goal=before + jobs: completed(slurm) >= goal,
            pause=0.005,
        )
        ours.append(jobs / (time.perf_counter() - begun))
    return Row(
        f"Slurm {slurm.version}: trivial jobs end to end per second ({jobs} in an array)",
        f"{median(ours):.1f}/s",
        f"{median(bare):.1f}/s",
        median(ours) / median(bare),
    )


def completed(slurm: Cluster) -> int:
    """Return the number of array jobs that are recorded as complete. Raises an error if a job has failed."""
    if not slurm.completed.exists():
        return 0
    lines = [line for line in slurm.completed.read_text().splitlines() if f"Name={ARRAY} " in line]
    if failed := [line for line in lines if "JobState=COMPLETED" not in line]:
        raise Unavailable(f"a trivial job of Slurm failed: {failed[0]}")
    return len(lines)


@contextlib.contextmanager
def cluster() -> Generator[Cluster]:
    """Start an idle cluster of one node. Raises Unavailable if Slurm cannot be installed."""
    if not all(Path(executable(command)).exists() for command in COMMANDS):
        programs.install(PACKAGES)
    version = subprocess.run([executable("slurmctld"), "-V"], capture_output=True, text=True, check=True)
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="trainshed-slurm-"))
        directory = Path(name)
        directory.chmod(0o711)  # munge requires a socket that all users can reach.
        for part in ("state", "spool"):
            (directory / part).mkdir()
        configuration = directory / "slurm.conf"
        configuration.write_text(settings(directory, *free_ports(2)))
        slurm = Cluster(
            directory, {**os.environ, "SLURM_CONF": str(configuration)}, version.stdout.split()[-1]
        )
        daemon(stack, slurm, munge(directory))
        programs.until("munge's socket", (directory / "munge.socket").exists, pause=0.01)
        daemon(stack, slurm, ["slurmctld", "-D", "-c", "-f", str(configuration)])
        daemon(stack, slurm, ["slurmd", "-D", "-f", str(configuration)])
        try:
            programs.until("an idle node of Slurm", lambda: "idle" in nodes(slurm))
        except TimeoutError as reason:
            last = (directory / "slurmctld.log").read_text()[-500:]
            raise Unavailable(f"{reason}; slurmctld said: {last}") from reason
        stack.callback(empty, slurm)
        yield slurm


def executable(command: str) -> str:
    """Return the path of a command. Daemons may only be in root's PATH."""
    return shutil.which(command) or f"/usr/sbin/{command}"


def nodes(slurm: Cluster) -> str:
    return slurm.run("sinfo", "--noheader", "--format=%t", check=False).stdout


def empty(slurm: Cluster) -> None:
    """End all jobs, so that no step runs longer than the daemons."""
    slurm.run("scancel", "--partition=main", check=False)
    programs.until("the end of Slurm's jobs", lambda: not slurm.run("squeue", "--noheader").stdout)


def daemon(stack: contextlib.ExitStack, slurm: Cluster, command: list[str]) -> None:
    """Start a daemon in the foreground, as a child process that ends when `stack` is closed."""
    with (slurm.directory / f"{command[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [executable(command[0]), *command[1:]],
            env=slurm.environment,
            cwd=slurm.directory,
            stdout=log,
            stderr=log,
        )
    stack.callback(programs.end, process)


def munge(directory: Path) -> list[str]:
    """Start a separate munged with a temporary key. Return the command."""
    key = directory / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(1024))
    return [
        "munged",
        "--foreground",
        f"--key-file={key}",
        f"--socket={directory}/munge.socket",
        f"--pid-file={directory}/munged.pid",
        f"--seed-file={directory}/munge.seed",
        f"--log-file={directory}/munge.log",
    ]


def settings(directory: Path, controller: int, node: int) -> str:
    """Return the content of slurm.conf. On two cores, these scheduler settings gave the most jobs per
    second."""
    host = socket.gethostname().partition(".")[0]
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    return f"""\
ClusterName=peers
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CryptoType=crypto/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={directory}/completed
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1000,\
bf_interval=1,bf_min_age_reserve=600,default_queue_depth=20
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={CPUS} RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
