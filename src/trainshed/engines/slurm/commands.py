"""What Slurm's commands are told to do, and what they say of it. Pure: nothing is run here."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed.engines.slurm.records import Gres

_MIB = 1 << 20

_NEVER_GRANTED = (
    "node configuration is not available",
    "invalid partition",
    "invalid account",
    "invalid qos",
    "invalid node name",
    "invalid feature specification",
    "invalid generic resource",
    "reservation is invalid",
    "memory specification can not be satisfied",
    "more processors requested than permitted",
    "node count specification invalid",
    "time limit specification",
    "policy limit",
    "access denied",
    "permission denied",
    "not permitted",
    "unrecognized option",
    "invalid option",
    "invalid --",
    "requested partition configuration not available",
    "partition not in this state",
    "invalid wckey",
)
"""In what salloc says of a request that waiting would not help."""

_SAYS = re.compile(
    r"^(?:/\S*/)?(?:salloc|srun|squeue|sinfo|scancel|slurmstepd(?:-\S+)?): (?:error: |fatal: )?"
)


class Ask(Struct, frozen=True):
    """What a job is to have, the same on each of its nodes."""

    #: Of the job, by which it is found again.
    name: str
    nodes: tuple[str, ...]
    #: On each node.
    cpus: int
    memory_bytes: int
    gres: Gres | None = None
    #: Whose it is to be; "" = the service's own user's.
    user: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    extra: tuple[str, ...] = ()
    #: As many nodes as Slurm likes to choose, but not these; None = those that are named.
    avoid: tuple[str, ...] | None = None


def allocate(ask: Ask) -> list[str]:
    """Arguments of salloc: all the nodes or none, and the job lives on when one of them is lost."""
    given = {
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
    }
    options = [f"--{key}={value}" for key, value in given.items() if value]
    return ["salloc", "--no-shell", "--no-kill", *options, *ask.extra]


_BEGIN = """
PATH=$1; export PATH; errors=$2; shift 2
command -v "$1" >/dev/null || { echo "there is no $1 on $(hostname)" >&2; exit 127; }
kept=${errors%/*}; [ -d "$kept" ] || mkdir -p -m 700 "$kept" || exit 1
[ -O "$kept" ] && [ ! -L "$kept" ] || { echo "$kept on $(hostname) belongs to somebody else" >&2; exit 1; }
: >"$errors" || exit 1
echo there
exec "$@" 2>"$errors"
"""
"""Script of an agent's step: says that it is there, and becomes the agent, which says when it has taken its
input; from then on srun is not needed any more. What the agent complains of is kept in a file of the node. No
other command is run: each would take as long as the script, and Slurm a second longer to end the step."""

THERE = b"there\n"
_NODES_PATH = "/usr/local/bin:/usr/bin:/bin"


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


def cancel(name: str, user: int, job: int | None = None) -> list[str]:
    """Arguments of scancel, of all jobs of that name, or of one if it has it: numbers are given out again
    after a crash."""
    number = [] if job is None else [str(job)]
    return ["scancel", "--quiet", f"--name={name}", f"--user={user}", *number]


def terminate(name: str, user: int) -> list[str]:
    """Arguments of scancel: SIGTERM for the steps of a job, which itself goes on."""
    return ["scancel", "--quiet", "--signal=TERM", f"--name={name}", f"--user={user}"]


def try_job(partition: str, account: str, qos: str) -> list[str]:
    """Arguments of srun, which says whether such a job would be taken, and starts none."""
    given = {"partition": partition, "account": account, "qos": qos}
    options = [f"--{key}={value}" for key, value in given.items() if value]
    return ["srun", "--test-only", "--nodes=1", "--ntasks=1", "--chdir=/", *options, "/bin/true"]


def look_at_node(
    node: str,
    argv: Sequence[str],
    *,
    partition: str,
    account: str,
    qos: str,
    extra: Sequence[str],
) -> list[str]:
    """Arguments of srun: a short command on a node, if that has room for it within seconds."""
    given = {"nodelist": node, "partition": partition, "account": account, "qos": qos}
    options = [f"--{key}={value}" for key, value in given.items() if value]
    own = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=64M", "--chdir=/"]
    # Nothing of this process's environment, which may hold secrets.
    own += ["--job-name=trainshed-doctor", "--immediate=5", "--export=NONE", "--quiet"]
    return ["srun", *own, *options, *extra, "/usr/bin/env", f"PATH={_NODES_PATH}", *argv]


def has_no_room(complaint: str) -> bool:
    """srun has not been given what it asked for at once."""
    lowered = complaint.lower()
    return any(words in lowered for words in ("nodes are busy", "immediate execution", "timed out"))


def environment(ambient: Mapping[str, str], conf: str = "") -> dict[str, str]:
    """What the commands are run in: without what a job that the service itself runs in, or its user's habits,
    would add to each of them. `conf`: file of Slurm's configuration, if it is not the usual one."""
    prefixes = ("SLURM_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SBATCH_")
    kept = {key: value for key, value in ambient.items() if not key.startswith(prefixes)}
    if conf := conf or ambient.get("SLURM_CONF", ""):
        kept["SLURM_CONF"] = conf
    # Moments as seconds since the epoch.
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def refused(complaint: str) -> bool:
    """salloc says that it will never give what was asked for."""
    lowered = complaint.lower()
    return any(words in lowered for words in _NEVER_GRANTED)


def granted(told: str) -> int:
    """Number of the job that salloc was given. Raises ValueError: of none."""
    found = re.search(r"Granted job allocation (\d{1,18})", told)
    if not found:
        raise ValueError(f"no allocation is told of: {told[:200]!r}")
    return int(found[1])


def complaint(told: str) -> str:
    """What a command complained of, in one line, without its own name."""
    lines = [_SAYS.sub("", line) for line in told.splitlines()]
    return "; ".join(dict.fromkeys(line.strip() for line in lines if line.strip()))[:500]


def _gres_text(gres: Gres | None) -> str:
    if not gres:
        return ""
    return ":".join([gres.name, *([gres.type] if gres.type else []), str(gres.count)])
