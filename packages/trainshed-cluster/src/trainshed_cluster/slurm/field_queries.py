"""Queries Slurm's commands for fields with a separator of our own, which all releases support. Pure.

Texts that people write are the last field, so that they cannot shift others.
"""

import re
from collections.abc import Iterator, Sequence

from trainshed_cluster.slurm.records import (
    Job,
    NodeLine,
    Pending,
    Step,
    expand_hosts,
    joined,
    parse_gres,
    parse_memory,
    parse_states,
)

SEPARATOR = "\x1f"
MAX_LINES = 200_000
"""Of an answer; what comes after is not read."""
_MIB = 1 << 20

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
_GROUP_FIELDS = ("Partition", "Groups")
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


class FieldQueries:
    """`Queries` of any release."""

    def jobs(self, users: Sequence[int], name: str = "", *, ended: bool = False) -> list[str]:
        which = [f"--user={joined(users)}", *([f"--name={name}"] if name else [])]
        which += ["--states=all"] if ended else []
        return ["squeue", "--noheader", "--noconvert", *which, "-O", _format(_JOB_FIELDS)]

    def read_jobs(self, answer: str) -> Iterator[Job]:
        for row in _rows(answer, _JOB_FIELDS):
            yield Job(
                id=int(row["JobID"].partition("_")[0]),
                name=row["Name"],
                state=row["State"],
                submitted=_moment(row["SubmitTime"]),
                node_count=_count(row["NumNodes"]),
                cpus=_count(row["NumCPUs"]),
                memory_bytes=parse_memory(row["MinMemory"]),
                gres=parse_gres(row["tres-per-node"]),
                nodes=expand_hosts(row["NodeList"]),
                starts=_moment(row["StartTime"]),
                user=int(row["UserID"]),
                reason=row["Reason"],
            )

    def steps(self, users: Sequence[int]) -> list[str]:
        option = f"--user={joined(users)}"
        return ["squeue", "--steps", "--noheader", option, "-O", _format(_STEP_FIELDS)]

    def read_steps(self, answer: str) -> Iterator[Step]:
        for row in _rows(answer, _STEP_FIELDS):
            job, _, number = row["StepID"].partition(".")
            if job.isdecimal() and number.isdecimal() and row["StepState"] == "RUNNING":
                yield Step(int(job), row["StepName"], expand_hosts(row["Nodes"]))

    def nodes(self, partitions: str) -> tuple[list[str], ...]:
        where = [f"--partition={partitions}"] if partitions else []
        return (["sinfo", "--Node", "--noheader", *where, "-O", _format(_NODE_FIELDS)],)

    def read_nodes(self, answers: Sequence[str], partitions: str) -> Iterator[NodeLine]:
        (answer,) = answers
        # sinfo prints a node once for each partition.
        rows: dict[str, dict[str, str]] = {}
        inside: dict[str, set[str]] = {}
        for row in _rows(answer, _NODE_FIELDS):
            rows.setdefault(row["NodeList"], row)
            inside.setdefault(row["NodeList"], set()).add(row["Partition"])
        for name, row in rows.items():
            allocated, _, _, total = map(int, row["CPUsState"].split("/"))
            reason = row["Reason"]
            yield NodeLine(
                name=name,
                states=parse_states(row["StateComplete"]),
                cpus=total,
                cpus_allocated=allocated,
                memory_bytes=_count(row["Memory"]) * _MIB,
                memory_allocated=_count(row["AllocMem"]) * _MIB,
                gres=parse_gres(row["Gres"]),
                gres_used=parse_gres(row["GresUsed"]),
                address=row["NodeAddr"],
                reason="" if reason == "none" else reason,
                partitions=frozenset(partition.rstrip("*") for partition in inside[name]),
                in_default=any(partition.endswith("*") for partition in inside[name]),
                features=frozenset(row["Features"].split(",")) - {"(null)", ""},
            )


def list_pending() -> list[str]:
    """Return the query of all users' waiting jobs, one line each."""
    return ["squeue", "--noheader", "--states=PENDING", "-O", _format(_PENDING_FIELDS)]


def parse_pending(answer: str) -> Iterator[Pending]:
    """Parse the answer to `list_pending`. Raises ValueError if it is none."""
    for row in _rows(answer, _PENDING_FIELDS):
        number = row["JobID"].partition("_")[0]
        yield Pending(int(number), _count(row["PriorityLong"]), tuple(row["Partition"].split(",")))


def list_groups() -> list[str]:
    """Return the query of the groups that may use each partition."""
    return ["sinfo", "--noheader", "-O", _format(_GROUP_FIELDS)]


def parse_groups(answer: str) -> dict[str, frozenset[str]]:
    """Parse the answer to `list_groups`: the Unix groups whose members may use each partition, "" being the
    default one. Partitions that everybody may use are left out. Raises ValueError if it is no answer."""
    groups: dict[str, frozenset[str]] = {}
    for row in _rows(answer, _GROUP_FIELDS):
        if row["Groups"].lower() not in ("all", "n/a", "(null)", ""):
            for called in _called(row["Partition"]):
                groups[called] = frozenset(row["Groups"].split(","))
    return groups


def show_config() -> list[str]:
    return ["scontrol", "show", "config"]


def parse_config(answer: str) -> dict[str, str]:
    """Parse a cluster's configuration, by its option names in lower case."""
    pairs = (line.partition("=") for line in answer.split("\n", MAX_LINES)[:MAX_LINES])
    return {name.strip().lower(): value.strip() for name, sign, value in pairs if sign}


def list_limits() -> list[str]:
    """Return the query of each partition's time limit."""
    return ["sinfo", "--noheader", "-O", _format(_LIMIT_FIELDS)]


def parse_limits(answer: str) -> dict[str, str]:
    """Parse the answer to `list_limits`: the time limit, by partition, of a job that sets none. The key "" is
    the default partition, the value "" means no limit. Raises ValueError if it is no answer."""
    limits: dict[str, str] = {}
    for row in _rows(answer, _LIMIT_FIELDS):
        most, usual = row["Time"], row["DefaultTime"]
        limit = most if usual in ("n/a", "NONE", "") else usual
        for called in _called(row["Partition"]):
            limits[called] = "" if limit == "infinite" else limit
    return limits


def _called(partition: str) -> tuple[str, ...]:
    """Return the keys of a partition: its name, and "" for the default one, which sinfo marks."""
    return (partition.removesuffix("*"), *([""] if partition.endswith("*") else []))


def _format(fields: Sequence[str]) -> str:
    return ",".join(f"{field}:{SEPARATOR}" for field in fields)


def _rows(answer: str, fields: Sequence[str]) -> Iterator[dict[str, str]]:
    for line in answer.split("\n", MAX_LINES)[:MAX_LINES]:
        if not line.strip():
            continue
        # The last field is a text that people write, and may contain the separator.
        values = line.split(SEPARATOR, len(fields) - 1)
        if len(values) != len(fields):
            raise ValueError(f"{line[:200]!r} has {len(values)} fields, not {len(fields)}")
        values[-1] = values[-1].removesuffix(SEPARATOR)
        yield {field: value.strip() for field, value in zip(fields, values, strict=True)}


def _count(text: str) -> int:
    """Parse "12", or "12-16" where the upper bound is not known yet."""
    match = re.match(r"\d{1,15}", text)
    return int(match[0]) if match else 0


def _moment(text: str) -> int:
    return int(text) if text.isdecimal() else 0
