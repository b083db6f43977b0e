"""The records of jobs, steps and nodes in the output of Slurm's commands, and the parsers of their fields.
Pure."""

import re

from msgspec import Struct

from trainshed.engines.port import NodeState

_MAX_HOSTS = 65_536
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}

_WITH_NODES = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "STOPPED", "SIGNALING"})
_STOPPED = frozenset({"SUSPENDED", "STOPPED"})
_HOPELESS_REASONS = frozenset(
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
"""Slurm's reasons for a pending job that will never start. `Job.never_starts` also includes all reasons that
refer to a limit for a single job."""
_HOPELESS_DESCRIPTIONS = ("not in group permitted", "can't use this partition", "not permitted to use")
"""Parts of descriptions that Slurm reports instead of a reason's name. Each of them belongs to a reason for a
pending job that will never start."""
_DEAD = frozenset({"down", "error", "future", "unknown"})
_UNREACHABLE = frozenset({"not_responding", "reboot_issued", "invalid_reg", "inval"})
_LEAVING = frozenset({"drain", "draining", "drained", "fail", "failing", "blocked"})
_FLAG_TEXTS = {
    "reboot_requested": "is waiting for a reboot",
    "maintenance": "is in a maintenance reservation",
}
_FLAG_NAMES = {"maint": "maintenance", "resv": "reserved", "no_respond": "not_responding"}


class Gres(Struct, frozen=True):
    """A number of generic resources, such as GPUs."""

    name: str
    #: Type of the resource; "" = none.
    type: str
    count: int


class Job(Struct, frozen=True):
    """A job in Slurm's queue."""

    id: int
    name: str
    state: str
    node_count: int
    cpus: int
    #: Memory per node.
    memory_bytes: int
    #: Generic resources per node.
    gres: tuple[Gres, ...]
    #: Names of the job's nodes; () before it starts.
    nodes: tuple[str, ...]
    #: Expected start time of a pending job, or actual start time, in seconds since the epoch; None = unknown.
    starts: int | None
    #: Id of the job's user.
    user: int
    #: Why the job waits: Slurm's name of the reason, or a description in words.
    reason: str

    @property
    def has_nodes(self) -> bool:
        """Return whether Slurm has allocated the job's nodes."""
        return self.state in _WITH_NODES

    @property
    def is_stopped(self) -> bool:
        """Return whether Slurm has suspended the job's processes."""
        return self.state in _STOPPED

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def never_starts(self) -> bool:
        return (
            self.reason in _HOPELESS_REASONS
            or any(words in self.reason for words in _HOPELESS_DESCRIPTIONS)
            or (
                self.reason.startswith(("QOS", "Assoc"))
                and ("PerJob" in self.reason or "PerNode" in self.reason)
            )
        )


class Pending(Struct, frozen=True):
    """A pending job of any user, with the values that decide its position in the queue."""

    id: int
    #: Jobs with a higher priority start sooner.
    priority: int
    partitions: tuple[str, ...]


class Step(Struct, frozen=True):
    """A running step of a Slurm job, for example the step of an agent."""

    job: int
    name: str
    nodes: tuple[str, ...]


class NodeLine(Struct, frozen=True):
    """A node, as reported by Slurm."""

    name: str
    #: The base state, followed by flags. Example: ("idle", "drain").
    states: tuple[str, ...]
    cpus: int
    cpus_allocated: int
    memory_bytes: int
    memory_allocated: int
    gres: tuple[Gres, ...]
    gres_used: tuple[Gres, ...]
    address: str
    #: Reason for the state, set by an administrator or by Slurm; None = no reason.
    reason: str | None
    partitions: frozenset[str] = frozenset()
    #: The node is in the default partition.
    in_default: bool = False
    features: frozenset[str] = frozenset()

    @property
    def is_reserved(self) -> bool:
        return "reserved" in self.states


def parse_states(text: str) -> tuple[str, ...]:
    """Parse a node's state and flags from the output of sinfo: "mixed+drain", "IDLE*", "DOWN*+DRAIN". The
    result uses the names of `node_state`."""
    parts = text.strip().lower().split("+")
    names = [part.rstrip("*~#!%$@^-").strip() for part in parts]
    if any(part.endswith("*") for part in parts):
        names.append("not_responding")
    return tuple(dict.fromkeys(_FLAG_NAMES.get(name, name) for name in names if name))


def node_state(line: NodeLine, *, reservation: bool = False) -> tuple[NodeState, str | None]:
    """Return a node's state, and the reason why the node is not UP. `reservation`: whether the engine
    requests jobs inside a reservation. Nodes that Slurm has powered down to save energy are UP, because Slurm
    powers them up for a job."""
    base, flags = line.states[0] if line.states else "unknown", frozenset(line.states)
    why = line.reason or " and ".join(line.states)
    if base in _DEAD:
        return NodeState.GONE, why
    if reasons := flags & _UNREACHABLE:
        return NodeState.GONE, line.reason or " and ".join(sorted(reasons)).replace("_", " ")
    if flags & _LEAVING:
        return NodeState.DRAINING, why
    for flag, words in _FLAG_TEXTS.items():
        if flag in flags:
            return NodeState.DRAINING, line.reason or words
    if line.is_reserved and not reservation:
        return NodeState.DRAINING, line.reason or "is reserved"
    return NodeState.UP, None


def is_awaited(line: NodeLine) -> bool:
    """Return whether the node does not respond but Slurm has not marked it as down yet. The node's slurmd may
    be busy or restarting, so programs may still run there. Slurm marks a failed node as down only after
    `SlurmdTimeout`."""
    return bool(line.states) and line.states[0] not in _DEAD and "not_responding" in line.states


def parse_memory(text: str) -> int:
    """Parse an amount of memory in bytes. Examples: "500M", "4G", "1.5G", "2000" (MiB). "0", "" and "N/A" are
    0."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([KMGTP]?)[BCNcn]?", text.strip())
    return int(float(match[1]) * _UNITS[match[2] or "M"]) if match else 0


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse a list of generic resources. Examples: "gpu:a100:4(S:0-1),gpu:2" for nodes; "gres:gpu:t4:1",
    "gres/gpu:t4=1", "(null)" and "N/A" for jobs."""
    devices: list[Gres] = []
    for part in re.sub(r"\([^()]*\)", "", text).split(","):
        words = re.split("[:=]", part.strip().removeprefix("gres:").removeprefix("gres/"))
        if not words[0] or words[0] == "N/A":
            continue
        number = re.fullmatch(r"(\d{1,12})([KMG]?)", words[-1]) if len(words) > 1 else None
        count = int(number[1]) * _UNITS.get(number[2], 1) if number else 1
        kinds = words[1:-1] if number else words[1:]
        devices.append(Gres(words[0], ":".join(kinds), count))
    return tuple(devices)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand a list of nodes, such as "node[1-2,07],login", to names. Raises ValueError for unbalanced
    brackets or more than 65,536 names."""
    if text in ("", "(null)", "None assigned"):
        return ()
    names: list[str] = []
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(parts) != text:
        raise ValueError(f"{text[:100]!r} is not a list of nodes")
    for part in parts:
        names += _expand(part, _MAX_HOSTS - len(names))
    return tuple(names)


def _expand(text: str, limit: int) -> list[str]:
    opening = text.find("[")
    if opening < 0:
        return [text]
    closing = text.find("]", opening)
    if closing < 0:
        raise ValueError(f"{text[:100]!r} is not a list of nodes")
    rest = _expand(text[closing + 1 :], limit)
    names: list[str] = []
    for part in text[opening + 1 : closing].split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"{text[:100]!r} is not a list of nodes")
        if (int(last) - int(first) + 1) * len(rest) + len(names) > limit:
            raise ValueError(f"{text[:100]!r} has too many nodes; the limit is {_MAX_HOSTS:,} in one list")
        for number in range(int(first), int(last) + 1):
            begun = f"{text[:opening]}{number:0{len(first)}d}"
            names += [begun + end for end in rest]
    return names
