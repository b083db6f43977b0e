"""Command lines of Slurm's programs (salloc, srun, scancel), and what their output means. Pure: nothing is
run here."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from trainshed_cluster.slurm.records import Gres

_MIB = 1 << 20

_HERE = Path(__file__).parent
_NEVER_GRANTED: Sequence[str] = tuple((_HERE / "never_granted.txt").read_text("utf-8").splitlines())
"""Words in a complaint of salloc's by which it will never grant the request, however long one waits."""

_SAYS = re.compile(
    r"^(?:/\S*/)?(?:salloc|srun|squeue|sinfo|scancel|slurmstepd(?:-\S+)?): (?:error: |fatal: )?"
)


class Ask(Struct, frozen=True):
    """The resources that a Slurm job is to have. Processors, memory and gres are those on each of its
    nodes."""

    #: The Slurm job's name, by which it is found again.
    name: str
    nodes: tuple[str, ...]
    cpus: int
    memory_bytes: int
    gres: Gres | None = None
    #: The user that it belongs to, as in its `HoldName`.
    user: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    extra: tuple[str, ...] = ()
    #: Seconds after which Slurm ends the job; None = after whatever the site says.
    seconds: int | None = None
    #: Nodes that Slurm must not choose: it chooses as many others as `nodes` names. None = exactly `nodes`.
    avoid: tuple[str, ...] | None = None


def allocate(ask: Ask) -> list[str]:
    """Arguments of salloc: all the nodes or none, and the job lives on when one of them is lost."""
    options = {
        "job-name": ask.name,
        "comment": ask.name,
        "nodes": str(len(ask.nodes)),
        "nodelist": ",".join(ask.nodes) if ask.avoid is None else "",
        "exclude": ",".join(ask.avoid or ()),
        "ntasks-per-node": "1",
        "cpus-per-task": str(ask.cpus),
        # Slurm takes --mem=0 for all of a node.
        "mem": f"{max(1, -(-ask.memory_bytes // _MIB))}M",
        "gres": _gres_text(ask.gres),
        "partition": ask.partition,
        "account": ask.account,
        "qos": ask.qos,
        "constraint": ask.constraint,
        # In minutes.
        "time": str(-(-ask.seconds // 60)) if ask.seconds else "",
    }
    return ["salloc", "--no-shell", "--no-kill", *_given(options), *ask.extra]


_BEGIN = (_HERE / "begin.sh").read_text("utf-8")


def run_agent(
    job: int,
    node: str,
    name: str,
    argv: Sequence[str],
    *,
    path: str,
    errors: str,
    gres: Gres | None,
) -> list[str]:
    """Arguments of srun: `argv` as a step on one node of a job, with all that the job has there. `errors`:
    absolute path of a file on the node."""
    options = [
        f"--jobid={job}",
        "--overlap",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--mem=0",
        f"--job-name={name}",
        "--chdir=/",
        # Nothing of the service's own environment, which may hold secrets.
        "--export=NONE",
        "--unbuffered",
        "--quiet",
    ]
    if gres:
        options.append(f"--gres={_gres_text(gres)}")
    return ["srun", *options, "/bin/sh", "-c", _BEGIN, "-", path, errors, *argv]


_GIVE_BACK = (_HERE / "give_back.sh").read_text("utf-8")


def give_back(commands: str) -> tuple[str, ...]:
    """Return the command that gives back the allocation whose step it runs in, if no other step needs it.
    `commands`: a directory on nodes that may have Slurm's commands, if the PATH does not."""
    return ("/bin/sh", "-c", _GIVE_BACK, "trainshed-give-back", commands)


def cancel(name: str, user: int, job: int | None = None) -> list[str]:
    """Arguments of scancel for all jobs of that name, or for `job` if it still has that name: Slurm gives
    numbers out again after a crash."""
    number = [] if job is None else [str(job)]
    return ["scancel", "--quiet", f"--name={name}", f"--user={user}", *number]


def terminate(name: str, user: int) -> list[str]:
    """Arguments of scancel that send SIGTERM to the steps of a job; the job itself goes on."""
    return ["scancel", "--quiet", "--signal=TERM", f"--name={name}", f"--user={user}"]


def try_job(partition: str, account: str, qos: str) -> list[str]:
    """Arguments of srun that ask whether Slurm would accept such a job, and start none."""
    options = _given({"partition": partition, "account": account, "qos": qos})
    return ["srun", "--test-only", "--nodes=1", "--ntasks=1", "--chdir=/", *options, "/bin/true"]


def show_default_account(user: str) -> list[str]:
    """Arguments of sacctmgr that print the default account of a user."""
    return ["sacctmgr", "-nP", "show", "user", user, "format=DefaultAccount"]


def environment(ambient: Mapping[str, str], conf: str | None = None) -> dict[str, str]:
    """The environment of Slurm's commands: `ambient` without Slurm's own variables, which the service has if
    it runs in a Slurm job itself or its user sets defaults by them. `conf`: the path of Slurm's
    configuration; None = the usual one."""
    prefixes = ("SLURM_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SBATCH_")
    kept = {key: value for key, value in ambient.items() if not key.startswith(prefixes)}
    if conf := conf or ambient.get("SLURM_CONF"):
        kept["SLURM_CONF"] = conf
    # Moments as seconds since the epoch.
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def refused(complaint: str) -> bool:
    """Whether salloc says that it will never grant the request."""
    lowered = complaint.lower()
    return any(words in lowered for words in _NEVER_GRANTED)


def granted(text: str) -> int:
    """The number of the Slurm job that salloc was granted. Raises ValueError if its output names none."""
    match = re.search(r"Granted job allocation (\d{1,18})", text)
    if not match:
        raise ValueError(f"no allocation is told of: {text[:200]!r}")
    return int(match[1])


def complaint(text: str) -> str:
    """A command's complaints in one line, without the command's own name."""
    lines = [_SAYS.sub("", line) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))[:500]


def _given(options: Mapping[str, str]) -> list[str]:
    return [f"--{key}={value}" for key, value in options.items() if value]


def _gres_text(gres: Gres | None) -> str:
    if not gres:
        return ""
    return ":".join([gres.name, *([gres.type] if gres.type else []), str(gres.count)])
