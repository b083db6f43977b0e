"""What Slurm's commands are asked, and what their answers say. Pure: nothing is run here.

Answers are asked for field by field, with a separator of our own: such formats are the same from version to
version (JSON is not), and a reason that somebody wrote cannot shift the fields behind it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from trainshed.engines.port import NodeState

SEPARATOR = "\x1f"
MAX_LINES = 200_000
"""Of an answer; what comes after is not read."""
_MAX_HOSTS = 65_536
_MIB = 1 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}

_JOB_FIELDS = (
    "JobID",
    "Name",
    "State",
    "SubmitTime",
    "NumNodes",
    "NumCPUs",
    "MinMemory",
    "tres-per-node",
    "NodeList",
    "StartTime",
    "UserID",
    "Reason",
)
_PENDING_FIELDS = ("JobID", "PriorityLong", "Partition")
_LIMIT_FIELDS = ("Time", "DefaultTime", "Partition")
_STEP_FIELDS = ("StepID", "StepName", "StepState", "Nodes")
_NODE_FIELDS = (
    "NodeList",
    "StateComplete",
    "CPUsState",
    "Memory",
    "AllocMem",
    "Gres",
    "GresUsed",
    "NodeAddr",
    "Partition",
    "Features",
    "Reason",
)

_HELD = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "STOPPED", "SIGNALING"})
_NEVER = frozenset(
    {
        "AccountNotAllowed",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "PartitionConfig",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSNotAllowed",
    }
)
"""Reasons to wait that waiting does not end. Besides them, all limits on what a single job may have."""
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

_DEAD = frozenset({"down", "error", "future", "unknown"})
_UNREACHABLE = frozenset({"not_responding", "reboot_issued", "invalid_reg", "inval"})
_LEAVING = frozenset({"drain", "draining", "drained", "fail", "failing", "blocked"})
_ENDED = {"reboot_requested": "is to boot again", "maintenance": "is in a maintenance reservation"}
_SHORT = {"maint": "maintenance", "resv": "reserved", "no_respond": "not_responding"}


class Gres(Struct, frozen=True):
    """A number of generic resources, such as GPUs."""

    name: str
    #: "" = it has none.
    type: str
    count: int


class Job(Struct, frozen=True):
    """A job of the queue, as squeue tells it."""

    id: int
    name: str
    state: str
    #: Seconds since the epoch.
    submitted: int
    node_count: int
    cpus: int
    #: On each node.
    memory_bytes: int
    #: On each node.
    gres: tuple[Gres, ...]
    #: None before it starts.
    nodes: tuple[str, ...]
    #: Seconds since the epoch; 0 = not known.
    starts: int
    #: Number of the user whose it is.
    user: int
    reason: str

    @property
    def held(self) -> bool:
        """It has its nodes."""
        return self.state in _HELD

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def waits_in_vain(self) -> bool:
        return self.reason in _NEVER or (
            self.reason.startswith(("QOS", "Assoc"))
            and ("PerJob" in self.reason or "PerNode" in self.reason)
        )


class Pending(Struct, frozen=True):
    """A job of anybody's that waits, as far as its place in the queue goes."""

    id: int
    #: More is sooner.
    priority: int
    partitions: tuple[str, ...]


class Step(Struct, frozen=True):
    """A step that runs."""

    job: int
    name: str
    nodes: tuple[str, ...]


class NodeLine(Struct, frozen=True):
    """A node, as sinfo tells it."""

    name: str
    #: The first is the state, the others are flags: "idle", "drain".
    states: tuple[str, ...]
    cpus: int
    cpus_allocated: int
    memory_bytes: int
    memory_allocated: int
    gres: tuple[Gres, ...]
    gres_used: tuple[Gres, ...]
    address: str
    #: What somebody, or Slurm, gave as the reason of its state; "" = none.
    reason: str
    partitions: frozenset[str] = frozenset()
    #: It is in the default partition.
    in_default: bool = False
    features: frozenset[str] = frozenset()

    @property
    def reserved(self) -> bool:
        return "reserved" in self.states


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


def list_jobs(users: Sequence[int], name: str = "", *, ended: bool = False) -> list[str]:
    """`users`: by their numbers. `name`: of the only ones that are asked for; "" = all of those users'.
    `ended`: those as well that are over, for as long as Slurm remembers them (MinJobAge, 5 minutes)."""
    which = [f"--user={_joined(users)}", *([f"--name={name}"] if name else [])]
    which += ["--states=all"] if ended else []
    return ["squeue", "--noheader", "--noconvert", *which, "-O", _format(_JOB_FIELDS)]


def list_pending() -> list[str]:
    """Of everybody's: as many lines as there are jobs that wait."""
    return ["squeue", "--noheader", "--states=PENDING", "-O", _format(_PENDING_FIELDS)]


def show_config() -> list[str]:
    return ["scontrol", "show", "config"]


def list_limits() -> list[str]:
    """Of all partitions: how long jobs may run."""
    return ["sinfo", "--noheader", "-O", _format(_LIMIT_FIELDS)]


def list_steps(users: Sequence[int]) -> list[str]:
    named = f"--user={_joined(users)}"
    return ["squeue", "--steps", "--noheader", named, "-O", _format(_STEP_FIELDS)]


def list_nodes(partitions: str) -> list[str]:
    """`partitions`: with commas between; "" = all."""
    where = [f"--partition={partitions}"] if partitions else []
    return ["sinfo", "--Node", "--noheader", *where, "-O", _format(_NODE_FIELDS)]


def environment(ambient: Mapping[str, str], conf: str = "") -> dict[str, str]:
    """What the commands are run in: without what a job that the service itself runs in, or its user's habits,
    would add to each of them. `conf`: file of Slurm's configuration, if it is not the usual one."""
    prefixes = ("SLURM_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "SBATCH_")
    kept = {key: value for key, value in ambient.items() if not key.startswith(prefixes)}
    if conf := conf or ambient.get("SLURM_CONF", ""):
        kept["SLURM_CONF"] = conf
    # Moments as seconds since the epoch.
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def parse_jobs(answer: str) -> Iterator[Job]:
    """Raises ValueError: that is no answer to `list_jobs`."""
    for found in _rows(answer, _JOB_FIELDS):
        yield Job(
            id=int(found["JobID"].partition("_")[0]),
            name=found["Name"],
            state=found["State"],
            submitted=_moment(found["SubmitTime"]),
            node_count=_count(found["NumNodes"]),
            cpus=_count(found["NumCPUs"]),
            memory_bytes=parse_memory(found["MinMemory"]),
            gres=parse_gres(found["tres-per-node"]),
            nodes=expand_hosts(found["NodeList"]),
            starts=_moment(found["StartTime"]),
            user=int(found["UserID"]),
            reason=found["Reason"],
        )


def parse_pending(answer: str) -> Iterator[Pending]:
    """Raises ValueError: that is no answer to `list_pending`."""
    for found in _rows(answer, _PENDING_FIELDS):
        number = found["JobID"].partition("_")[0]
        yield Pending(
            int(number), _count(found["PriorityLong"]), tuple(found["Partition"].split(","))
        )


def parse_config(answer: str) -> dict[str, str]:
    """What a cluster's configuration says, by the names that it has there, in small letters."""
    pairs = (line.partition("=") for line in answer.split("\n", MAX_LINES)[:MAX_LINES])
    return {name.strip().lower(): value.strip() for name, sign, value in pairs if sign}


def parse_limits(answer: str) -> dict[str, str]:
    """How long a job may run that does not say for how long, by partition, with "" for the default one; ""
    = for ever. Raises ValueError: that is no answer to `list_limits`."""
    limits: dict[str, str] = {}
    for found in _rows(answer, _LIMIT_FIELDS):
        most, usual = found["Time"], found["DefaultTime"]
        limit = most if usual in ("n/a", "NONE", "") else usual
        name = found["Partition"]
        for called in (name.removesuffix("*"), *([""] if name.endswith("*") else [])):
            limits[called] = "" if limit == "infinite" else limit
    return limits


def parse_steps(answer: str) -> Iterator[Step]:
    """Of those that run. Raises ValueError: that is no answer to `list_steps`."""
    for found in _rows(answer, _STEP_FIELDS):
        job, _, number = found["StepID"].partition(".")
        if job.isdecimal() and number.isdecimal() and found["StepState"] == "RUNNING":
            yield Step(int(job), found["StepName"], expand_hosts(found["Nodes"]))


def parse_nodes(answer: str) -> Iterator[NodeLine]:
    """Each once, though it is told once for each partition. Raises ValueError: that is no answer to
    `list_nodes`."""
    rows: dict[str, dict[str, str]] = {}
    partitions: dict[str, set[str]] = {}
    for found in _rows(answer, _NODE_FIELDS):
        rows.setdefault(found["NodeList"], found)
        partitions.setdefault(found["NodeList"], set()).add(found["Partition"])
    for name, found in rows.items():
        allocated, _, _, total = map(int, found["CPUsState"].split("/"))
        reason = found["Reason"]
        yield NodeLine(
            name=name,
            states=parse_states(found["StateComplete"]),
            cpus=total,
            cpus_allocated=allocated,
            memory_bytes=_count(found["Memory"]) * _MIB,
            memory_allocated=_count(found["AllocMem"]) * _MIB,
            gres=parse_gres(found["Gres"]),
            gres_used=parse_gres(found["GresUsed"]),
            address=found["NodeAddr"],
            reason="" if reason == "none" else reason,
            partitions=frozenset(partition.rstrip("*") for partition in partitions[name]),
            in_default=any(partition.endswith("*") for partition in partitions[name]),
            features=frozenset(found["Features"].split(",")) - {"(null)", ""},
        )


def parse_states(text: str) -> tuple[str, ...]:
    """Of a node, as sinfo and scontrol write them: "mixed+drain", "IDLE*", "DOWN*+DRAIN"."""
    parts = text.strip().lower().split("+")
    silent = any(part.endswith("*") for part in parts)
    names = [part.rstrip("*~#!%$@^-").strip() for part in parts]
    names += ["not_responding"] if silent else []
    return tuple(dict.fromkeys(_SHORT.get(name, name) for name in names if name))


def node_state(line: NodeLine, *, reservation: bool = False) -> tuple[NodeState, str]:
    """How a node stands, and why if it is not UP. `reservation`: jobs are asked for inside of one.

    Nodes that Slurm has switched off to save power are UP: it switches them on for who asks."""
    base, flags = line.states[0] if line.states else "unknown", frozenset(line.states)
    why = line.reason or " and ".join(line.states)
    if base in _DEAD:
        return NodeState.GONE, why
    if found := flags & _UNREACHABLE:
        return NodeState.GONE, line.reason or " and ".join(sorted(found)).replace("_", " ")
    if flags & _LEAVING:
        return NodeState.DRAINING, why
    for flag, words in _ENDED.items():
        if flag in flags:
            return NodeState.DRAINING, line.reason or words
    if line.reserved and not reservation:
        return NodeState.DRAINING, line.reason or "is reserved"
    return NodeState.UP, ""


def is_awaited(line: NodeLine) -> bool:
    """Slurm has no answer from the node, and has not given it up: a slurmd that is busy, or is started again,
    looks like that, and so does what is about to be down (`SlurmdTimeout`)."""
    return bool(line.states) and line.states[0] not in _DEAD and "not_responding" in line.states


def parse_memory(text: str) -> int:
    """In bytes: "500M", "4G", "1.5G", "2000" (MiB), "0"; "" and "N/A" are 0."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)[BCNcn]?", text.strip())
    if not found:
        return 0
    return int(float(found[1]) * _UNITS[found[2] or "M"])


def parse_gres(text: str) -> tuple[Gres, ...]:
    """ "gpu:a100:4(S:0-1),gpu:2", or as jobs have it: "gres:gpu:t4:1", "gres/gpu:t4=1", "(null)", "N/A"."""
    found: list[Gres] = []
    for part in re.sub(r"\([^()]*\)", "", text).split(","):
        words = re.split("[:=]", part.strip().removeprefix("gres:").removeprefix("gres/"))
        if not words[0] or words[0] == "N/A":
            continue
        number = re.fullmatch(r"(\d{1,12})([KMG]?)", words[-1]) if len(words) > 1 else None
        count = int(number[1]) * _UNITS.get(number[2], 1) if number else 1
        kinds = words[1:-1] if number else words[1:]
        found.append(Gres(words[0], ":".join(kinds), count))
    return tuple(found)


def expand_hosts(text: str) -> tuple[str, ...]:
    """ "node[1-2,07],login" as names. Raises ValueError: brackets that do not match, or more than 65,536."""
    if text in ("", "(null)", "None assigned"):
        return ()
    names: list[str] = []
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text:
        raise ValueError(f"{text[:100]!r} is no list of nodes")
    for part in parts:
        names += _expand(part, _MAX_HOSTS - len(names))
    return tuple(names)


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


def _expand(text: str, limit: int) -> list[str]:
    opening = text.find("[")
    if opening < 0:
        return [text]
    closing = text.find("]", opening)
    if closing < 0:
        raise ValueError(f"{text[:100]!r} is no list of nodes")
    rest = _expand(text[closing + 1 :], limit)
    names: list[str] = []
    for part in text[opening + 1 : closing].split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"{text[:100]!r} is no list of nodes")
        if (int(last) - int(first) + 1) * len(rest) + len(names) > limit:
            raise ValueError(f"{text[:100]!r} is of too many nodes")
        for number in range(int(first), int(last) + 1):
            begun = f"{text[:opening]}{number:0{len(first)}d}"
            names += [begun + end for end in rest]
    return names


def _format(fields: Sequence[str]) -> str:
    return ",".join(f"{field}:{SEPARATOR}" for field in fields)


def _rows(answer: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    for line in answer.split("\n", MAX_LINES)[:MAX_LINES]:
        if not line.strip():
            continue
        # The last one is what people write, and may hold anything.
        values = line.split(SEPARATOR, len(fields) - 1)
        if len(values) != len(fields):
            raise ValueError(f"{line[:200]!r} has {len(values)} fields, not {len(fields)}")
        values[-1] = values[-1].removesuffix(SEPARATOR)
        yield {field: value.strip() for field, value in zip(fields, values, strict=True)}


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _count(text: str) -> int:
    """ "12", and "12-16" where the most is not known yet."""
    found = re.match(r"\d{1,15}", text)
    return int(found[0]) if found else 0


def _moment(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _gres_text(gres: Gres | None) -> str:
    if not gres:
        return ""
    return ":".join([gres.name, *([gres.type] if gres.type else []), str(gres.count)])
