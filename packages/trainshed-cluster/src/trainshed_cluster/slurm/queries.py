"""Builds the queries of Slurm's commands, and parses their output. Each query requests named fields, which
have the same format in all releases. Pure."""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from msgspec import Struct, field

from trainshed_cluster.slurm.records import (
    Job,
    NodeLine,
    Pending,
    Step,
    expand_hosts,
    parse_gres,
    parse_memory,
    parse_states,
)

_MAX_ROWS = 200_000
"""Maximum number of rows in the output of a query."""
_MIB = 1 << 20

T = TypeVar("T")
Rows = Iterable[Mapping[str, str]]
"""Rows of a command's output. Each row maps names of fields to values."""


class Query(Struct, Generic[T], frozen=True):
    """A Slurm command that prints rows of fields, each followed by a separator. The separator is random for
    each query. Users can put any text into the names of their jobs, but they cannot guess the separator."""

    command: tuple[str, ...]
    fields: tuple[str, ...]
    #: Parses the rows of the output. Raises ValueError for invalid rows.
    parse: Callable[[Rows], T]
    separator: str = field(default_factory=lambda: f"\x1f{secrets.token_hex(8)}\x1f")

    @property
    def argv(self) -> list[str]:
        return [*self.command, "-O", ",".join(f"{name}:{self.separator}" for name in self.fields)]

    def read(self, answer: str) -> T:
        """Parse the output of the command. Raises ValueError if the output is invalid."""
        return self.parse(self._rows(answer))

    def _rows(self, answer: str) -> Iterator[Mapping[str, str]]:
        width = len(self.fields)
        *values, rest = answer.split(self.separator, width * _MAX_ROWS)
        if len(values) % width or (rest.strip() and not values):
            raise ValueError(f"the output {answer[:200]!r} does not consist of rows of {width} fields")
        for at in range(0, len(values), width):
            row = (value.strip() for value in values[at : at + width])
            yield dict(zip(self.fields, row, strict=True))


_JOB_FIELDS = (
    "JobID",
    "Name",
    "State",
    "NumNodes",
    "NumCPUs",
    "MinMemory",
    "tres-per-node",
    "NodeList",
    "StartTime",
    "UserID",
    "Reason",
)
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


def list_jobs(
    users: Iterable[int], name: str | None = None, *, ended: bool = False
) -> Query[tuple[Job, ...]]:
    """Return the query of jobs.

    Args:
        users: User ids.
        name: Name of the jobs; None = all jobs of those users.
        ended: Include finished jobs that Slurm still remembers (MinJobAge, by default 5 minutes).
    """
    which = [_of_users(users), *([f"--name={name}"] if name else [])]
    which += ["--states=all"] if ended else []
    return Query(("squeue", "--noheader", "--noconvert", *which), _JOB_FIELDS, _jobs)


def _jobs(rows: Rows) -> tuple[Job, ...]:
    return tuple(
        Job(
            id=int(row["JobID"].partition("_")[0]),
            name=row["Name"],
            state=row["State"],
            node_count=_count(row["NumNodes"]),
            cpus=_count(row["NumCPUs"]),
            memory_bytes=parse_memory(row["MinMemory"]),
            gres=parse_gres(row["tres-per-node"]),
            nodes=expand_hosts(row["NodeList"]),
            starts=int(row["StartTime"]) if row["StartTime"].isdecimal() else None,
            user=int(row["UserID"]),
            reason=row["Reason"],
        )
        for row in rows
    )


def list_steps(users: Iterable[int]) -> Query[tuple[Step, ...]]:
    fields = ("StepID", "StepName", "StepState", "Nodes")
    return Query(("squeue", "--steps", "--noheader", _of_users(users)), fields, _steps)


def _steps(rows: Rows) -> tuple[Step, ...]:
    running: list[Step] = []
    for row in rows:
        job, _, number = row["StepID"].partition(".")
        if job.isdecimal() and number.isdecimal() and row["StepState"] == "RUNNING":
            running.append(Step(int(job), row["StepName"], expand_hosts(row["Nodes"])))
    return tuple(running)


def list_nodes(partitions: str | None) -> Query[tuple[NodeLine, ...]]:
    """Return the query of nodes, whose result contains each node once. `partitions`: names of partitions,
    separated by commas; None = all partitions."""
    where = [f"--partition={partitions}"] if partitions else []
    return Query(("sinfo", "--Node", "--noheader", *where), _NODE_FIELDS, _nodes)


def _nodes(rows: Rows) -> tuple[NodeLine, ...]:
    # Use only the first row of a node for its state, because sinfo prints a row for each partition of the
    # node.
    first: dict[str, Mapping[str, str]] = {}
    inside: dict[str, set[str]] = {}
    for row in rows:
        first.setdefault(row["NodeList"], row)
        inside.setdefault(row["NodeList"], set()).add(row["Partition"])
    return tuple(_node(row, inside[name]) for name, row in first.items())


def _node(row: Mapping[str, str], partitions: Iterable[str]) -> NodeLine:
    allocated, _, _, total = map(int, row["CPUsState"].split("/"))
    reason = row["Reason"]
    return NodeLine(
        name=row["NodeList"],
        states=parse_states(row["StateComplete"]),
        cpus=total,
        cpus_allocated=allocated,
        memory_bytes=_count(row["Memory"]) * _MIB,
        memory_allocated=_count(row["AllocMem"]) * _MIB,
        gres=parse_gres(row["Gres"]),
        gres_used=parse_gres(row["GresUsed"]),
        address=row["NodeAddr"],
        reason=None if reason in ("none", "") else reason,
        partitions=frozenset(partition.rstrip("*") for partition in partitions),
        in_default=any(partition.endswith("*") for partition in partitions),
        features=frozenset(row["Features"].split(",")) - {"(null)", ""},
    )


def list_pending() -> Query[tuple[Pending, ...]]:
    fields = ("JobID", "PriorityLong", "Partition")
    return Query(("squeue", "--noheader", "--states=PENDING"), fields, _pending)


def _pending(rows: Rows) -> tuple[Pending, ...]:
    return tuple(
        Pending(
            int(row["JobID"].partition("_")[0]),
            _count(row["PriorityLong"]),
            tuple(row["Partition"].split(",")),
        )
        for row in rows
    )


SHOW_CONFIG = ("scontrol", "show", "config")


def parse_config(answer: str) -> dict[str, str]:
    """Parse the configuration of a cluster, and return the values by option name in lower case."""
    pairs = (line.partition("=") for line in answer.splitlines())
    return {name.strip().lower(): value.strip() for name, sign, value in pairs if sign}


SHOW_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")
_ANY = "ALL"


class Partition(Struct, frozen=True):
    """The state of a partition, and the accounts and QOS that it admits."""

    state: str
    #: Admitted accounts; None = all except `denied_accounts`.
    accounts: frozenset[str] | None
    denied_accounts: frozenset[str]
    #: Admitted QOS; None = all except `denied_qos`.
    qos: frozenset[str] | None
    denied_qos: frozenset[str]

    def rejects(self, name: str, account: str, qos: str) -> str | None:
        """Return the reason why a partition does not start jobs, or None if it starts them. `account`: the
        jobs' account; "" = no account. `qos`: the jobs' QOS; "" = the default QOS, which is not checked."""
        if self.state != "UP":
            return f"partition {name} is {self.state}"
        if not _is_admitted(account, self.accounts, self.denied_accounts):
            admitted = f"admits only {_join(self.accounts)}" if self.accounts else "rejects it"
            which = f"account {account}" if account else "no account"
            return f"jobs on {which} never start in partition {name}, which {admitted}"
        if qos and not _is_admitted(qos, self.qos, self.denied_qos):
            admitted = f"admits only {_join(self.qos)}" if self.qos else "rejects it"
            return f"jobs with QOS {qos} never start in partition {name}, which {admitted}"
        return None


def _join(names: Iterable[str] | None) -> str:
    return ", ".join(sorted(names or ()))


def _is_admitted(name: str, admitted: frozenset[str] | None, denied: frozenset[str]) -> bool:
    return name.lower() in admitted if admitted is not None else name.lower() not in denied


def parse_partitions(answer: str) -> dict[str, Partition]:
    """Parse the partitions of a cluster, and return them by name. The name "" also refers to the default
    partition."""
    partitions: dict[str, Partition] = {}
    for line in answer.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if name := fields.get("PartitionName"):
            partition = Partition(
                fields.get("State", "UP"),
                _parse_names(fields.get("AllowAccounts", _ANY)),
                _parse_names(fields.get("DenyAccounts", "")) or frozenset(),
                _parse_names(fields.get("AllowQos", _ANY)),
                _parse_names(fields.get("DenyQos", "")) or frozenset(),
            )
            partitions[name] = partition
            if fields.get("Default") == "YES":
                partitions[""] = partition
    return partitions


def _parse_names(names: str) -> frozenset[str] | None:
    """Parse a list of names; None = all names."""
    return None if names == _ANY else frozenset(names.lower().split(",")) - {"", "(null)"}


def list_limits() -> Query[dict[str, int]]:
    """Return the query of the maximum time limit of jobs in seconds, by partition. The default partition also
    has the name "". Partitions without a maximum are not in the result."""
    return Query(("sinfo", "--noheader"), ("Time", "Partition"), _limits)


def _limits(rows: Rows) -> dict[str, int]:
    limits: dict[str, int] = {}
    for row in rows:
        # Examples: "10:00", "1:00:00", "7-00:00:00", "infinite".
        if match := re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", row["Time"]):
            days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
            limit = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            limits[row["Partition"].removesuffix("*")] = limit
            if row["Partition"].endswith("*"):
                limits[""] = limit
    return limits


def _of_users(users: Iterable[int]) -> str:
    return f"--user={','.join(map(str, users))}"


def _count(text: str) -> int:
    """Parse "12", or the lower limit of "12-16", which Slurm prints if the upper limit is not known yet."""
    match = re.match(r"\d{1,15}", text)
    return int(match[0]) if match else 0
