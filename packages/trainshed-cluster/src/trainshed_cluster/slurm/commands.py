"""Builds the command lines of Slurm's programs (salloc, srun, scancel), and parses their output. Pure: it
runs nothing."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from trainshed_cluster.slurm.records import Gres

_MIB = 1 << 20

_HERE = Path(__file__).parent
_NEVER_GRANTED: Sequence[str] = tuple((_HERE / "never_granted.txt").read_text("utf-8").splitlines())
"""Parts of salloc's error messages. If a message contains one of these, Slurm will never grant the request.
"""

_ERROR_PREFIX = re.compile(
    r"^(?:/\S*/)?(?:salloc|srun|squeue|sinfo|scancel|slurmstepd(?:-\S+)?): (?:error: |fatal: )?"
)


class JobRequest(Struct, frozen=True):
    """The requested resources of a Slurm job. The processors, memory and GRES (generic resources) are per
    node."""

    #: Name of the Slurm job. It is the allocation's name.
    name: str
    nodes: tuple[str, ...]
    cpus: int
    memory_bytes: int
    gres: Gres | None = None
    #: User of the allocation (`AllocationName.user`).
    user: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    extra: tuple[str, ...] = ()
    #: Time limit of the job in seconds; None = the default of the site.
    seconds: int | None = None
    #: Nodes that Slurm must not allocate. Slurm then chooses as many other nodes as `nodes` contains. None =
    #: Slurm must allocate exactly `nodes`.
    avoid: tuple[str, ...] | None = None


def allocate(ask: JobRequest) -> list[str]:
    """Return the command line of salloc for a request. Slurm grants all nodes of the request or none. The job
    continues after the loss of a node."""
    options = {
        "job-name": ask.name,
        "comment": ask.name,
        "nodes": str(len(ask.nodes)),
        "nodelist": ",".join(ask.nodes) if ask.avoid is None else "",
        "exclude": ",".join(ask.avoid or ()),
        "ntasks-per-node": "1",
        "cpus-per-task": str(ask.cpus),
        # Request at least 1M, because Slurm interprets --mem=0 as the node's whole memory.
        "mem": f"{max(1, -(-ask.memory_bytes // _MIB))}M",
        "gres": _gres_text(ask.gres),
        "partition": ask.partition,
        "account": ask.account,
        "qos": ask.qos,
        "constraint": ask.constraint,
        # Round up to minutes, the unit of salloc's time limits.
        "time": str(-(-ask.seconds // 60)) if ask.seconds else "",
    }
    return ["salloc", "--no-shell", "--no-kill", *_option_list(options), *ask.extra]


_STEP_SCRIPT = (_HERE / "begin.sh").read_text("utf-8")


def run_agent(
    job: int, node: str, name: str, argv: Sequence[str], *, path: str, errors: str, gres: Gres | None
) -> list[str]:
    """Return the command line of srun that runs `argv` on one node of a job, as a step with all of the job's
    resources there. `errors`: absolute path of the file on the node that receives the step's error output."""
    options = [
        f"--jobid={job}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--mem=0",
        f"--job-name={name}",
        "--chdir=/",
        # Export no variables of the service, because they may contain secrets.
        "--export=NONE",
        "--unbuffered",
        "--quiet",
    ]
    if gres:
        options.append(f"--gres={_gres_text(gres)}")
    return ["srun", *options, "/bin/sh", "-c", _STEP_SCRIPT, "-", path, errors, *argv]


_RELEASE_SCRIPT = (_HERE / "release.sh").read_text("utf-8")


def release_command(commands: str) -> tuple[str, ...]:
    """Return the command that an agent executes to release its allocation. The command first waits until no
    other agent of the allocation runs. `commands`: directory on the nodes with Slurm's commands. The command
    searches this directory in addition to the PATH."""
    return ("/bin/sh", "-c", _RELEASE_SCRIPT, "trainshed-give-back", commands)


def cancel(name: str, user: int, job: int | None = None) -> list[str]:
    """Return the command line of scancel for all jobs of a user with the given name. `job`: cancel only the
    job with this id. The name is required even then, because after a crash Slurm reuses ids for other jobs.
    """
    number = [] if job is None else [str(job)]
    return ["scancel", "--quiet", f"--name={name}", f"--user={user}", *number]


def terminate(name: str, user: int) -> list[str]:
    """Return the command line of scancel that sends SIGTERM to the steps of a job. The job itself keeps its
    nodes."""
    return ["scancel", "--quiet", "--signal=TERM", f"--name={name}", f"--user={user}"]


def try_job(partition: str, account: str, qos: str) -> list[str]:
    """Return the command line of srun that tests whether Slurm would accept a job. It starts no job."""
    options = _option_list({"partition": partition, "account": account, "qos": qos})
    return ["srun", "--test-only", "--nodes=1", "--ntasks=1", "--chdir=/", *options, "/bin/true"]


def show_default_account(user: str) -> list[str]:
    """Return the command line of sacctmgr that prints the default account of a user."""
    return ["sacctmgr", "-nP", "show", "user", user, "format=DefaultAccount"]


def environment(ambient: Mapping[str, str], conf: str | None = None) -> dict[str, str]:
    """Return the environment variables for Slurm's commands: `ambient` without Slurm's own variables. Such
    variables exist if the service runs in a Slurm job, or if its user has set defaults. `conf`: path of
    Slurm's configuration file; None = the default path."""
    prefixes = ("SLURM_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SBATCH_")
    variables = {key: value for key, value in ambient.items() if not key.startswith(prefixes)}
    if conf := conf or ambient.get("SLURM_CONF"):
        variables["SLURM_CONF"] = conf
    # With SLURM_TIME_FORMAT=%s, the commands print times as seconds since the epoch.
    return {**variables, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def is_permanent_error(error_text: str) -> bool:
    """Return whether Slurm will never grant a request, according to the error output of salloc."""
    lower = error_text.lower()
    return any(words in lower for words in _NEVER_GRANTED)


def granted_job_id(text: str) -> int:
    """Return the id of the granted Slurm job from salloc's output. Raises ValueError if the output contains
    no id."""
    match = re.search(r"Granted job allocation (\d{1,18})", text)
    if not match:
        raise ValueError(f"the output contains no ID of a granted job: {text[:200]!r}")
    return int(match[1])


def error_text(text: str) -> str:
    """Return the error output of a command as one line, without the command's name."""
    lines = [_ERROR_PREFIX.sub("", line) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))[:500]


def _option_list(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items() if value]


def _gres_text(gres: Gres | None) -> str:
    if not gres:
        return ""
    return ":".join([gres.name, *([gres.type] if gres.type else []), str(gres.count)])
