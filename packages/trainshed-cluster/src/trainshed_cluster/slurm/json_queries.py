"""Queries Slurm's commands for JSON, which releases since 23.11 support. Pure.

Two things are queried by fields all the same: the whole queue, since a job has 9 KB of JSON of which three
fields are needed, and the default partition, which JSON does not tell before 26.05.
"""

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct, field

from trainshed_cluster.slurm.records import (
    Job,
    NodeLine,
    Step,
    expand_hosts,
    joined,
    node_flags,
    parse_gres,
)

_MIB = 1 << 20


class _Number(Struct):
    """Slurm's representation of a number that may be unset or infinite."""

    set: bool = False
    infinite: bool = False
    number: float = 0


class _Job(Struct):
    job_id: int
    name: str
    job_state: list[str]
    user_id: int
    state_reason: str
    #: The reason in words, for some reasons; "" = there is no text.
    state_description: str = ""
    nodes: str = ""
    #: None = none.
    tres_per_node: str | None = ""
    submit_time: _Number = field(default_factory=_Number)
    start_time: _Number = field(default_factory=_Number)
    node_count: _Number = field(default_factory=_Number)
    cpus: _Number = field(default_factory=_Number)
    #: In MB.
    memory_per_node: _Number = field(default_factory=_Number)


class _Step(Struct):
    #: "12.0", "12.extern".
    id: str
    name: str
    state: list[str]
    nodes: str


class _Node(Struct):
    name: str
    address: str
    #: The first is the state, the others are flags.
    state: list[str]
    cpus: int
    alloc_cpus: int
    #: In MB, as is `alloc_memory`.
    real_memory: int
    alloc_memory: int
    gres: str
    gres_used: str
    partitions: list[str]
    #: CPUs that jobs can get; 0 = the release does not say.
    effective_cpus: int = 0
    features: list[str] = []
    reason: str = ""


class _Jobs(Struct):
    jobs: list[_Job]


class _Steps(Struct):
    steps: list[_Step]


class _Nodes(Struct):
    nodes: list[_Node]


class JsonQueries:
    """`Queries` of releases since 23.11."""

    def jobs(self, users: Sequence[int], name: str = "", *, ended: bool = False) -> list[str]:
        which = [f"--user={joined(users)}", *([f"--name={name}"] if name else [])]
        return ["squeue", "--json", *which, *(["--states=all"] if ended else [])]

    def read_jobs(self, answer: str) -> Iterator[Job]:
        for job in msgspec.json.decode(answer, type=_Jobs).jobs:
            yield Job(
                id=job.job_id,
                name=job.name,
                state=_state(job.job_state),
                submitted=_whole(job.submit_time),
                node_count=_whole(job.node_count),
                cpus=_whole(job.cpus),
                memory_bytes=_whole(job.memory_per_node) * _MIB,
                gres=parse_gres(job.tres_per_node or ""),
                nodes=expand_hosts(job.nodes),
                starts=_whole(job.start_time),
                user=job.user_id,
                reason=job.state_reason,
                description=job.state_description,
            )

    def steps(self, users: Sequence[int]) -> list[str]:
        return ["squeue", "--steps", "--json", f"--user={joined(users)}"]

    def read_steps(self, answer: str) -> Iterator[Step]:
        for step in msgspec.json.decode(answer, type=_Steps).steps:
            job, _, number = step.id.partition(".")
            if job.isdecimal() and number.isdecimal() and "RUNNING" in step.state:
                yield Step(int(job), step.name, expand_hosts(step.nodes))

    def nodes(self, partitions: str) -> tuple[list[str], ...]:
        # Only the second command fails for a partition that does not exist.
        where = [f"--partition={partitions}"] if partitions else []
        return (
            ["scontrol", "show", "nodes", "--json"],
            ["sinfo", "--noheader", *where, "--format=%P"],
        )

    def read_nodes(self, answers: Sequence[str], partitions: str) -> Iterator[NodeLine]:
        nodes_answer, partitions_answer = answers
        wanted = frozenset(name.rstrip("*") for name in partitions_answer.split())
        default = {name.rstrip("*") for name in partitions_answer.split() if name.endswith("*")}
        for node in msgspec.json.decode(nodes_answer, type=_Nodes).nodes:
            inside = wanted.intersection(node.partitions)
            if not inside:
                continue
            yield NodeLine(
                name=node.name,
                states=node_flags(node.state),
                cpus=node.effective_cpus or node.cpus,
                cpus_allocated=node.alloc_cpus,
                memory_bytes=node.real_memory * _MIB,
                memory_allocated=node.alloc_memory * _MIB,
                gres=parse_gres(node.gres),
                gres_used=parse_gres(node.gres_used),
                address=node.address,
                reason=node.reason,
                partitions=inside,
                in_default=not inside.isdisjoint(default),
                features=frozenset(node.features),
            )


def _state(words: Sequence[str]) -> str:
    """Return a job's state in the one word that squeue prints without JSON: a transitional flag wins over the
    base state."""
    passing = ("COMPLETING", "CONFIGURING")
    return next((word for word in passing if word in words), words[0] if words else "UNKNOWN")


def _whole(number: _Number) -> int:
    return int(number.number) if number.set and not number.infinite else 0
