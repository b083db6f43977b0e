"""Which part of the job this process plays: its role, its rank, and where the others are.

Owns the reading of `CLUSTER_SPEC` and `TF_CONFIG`. Opens no connection.

The service describes the cluster to every replica as JSON:

    {"cluster": {"workerpool0": ["host-a:2222"], "workerpool1": ["host-b:2222", "host-c:2222"]},
     "task": {"type": "workerpool1", "index": 0}}

An AI Platform job says `master` or `chief`, `worker` and `evaluator` where a Vertex AI job counts
pools. Both spellings are read here, and nobody else in the program sees the difference.
"""

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class ClusterError(Exception):
    """The description of the cluster cannot be used; the message says what is wrong with it."""


class Role(enum.Enum):
    """What a replica does."""

    PRIMARY = "primary"
    WORKER = "worker"
    EVALUATOR = "evaluator"
    NONE = "none"
    """A parameter server or a reducer: this program has no work for it."""


class Address(NamedTuple):
    """Where a replica can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as one replica sees it.

    Attributes:
        role: What this replica does.
        rank: Its place among the replicas that train: 0 is the primary, then the workers in the
            order of the cluster's list. `None` for a replica that does not train.
        size: How many replicas train.
        primary: Where the primary listens; `None` when the primary is alone.
    """

    role: Role
    rank: int | None
    size: int
    primary: Address | None

    @property
    def label(self) -> str:
        """The replica's name in the lines that it prints."""
        return f"worker {self.rank}" if self.role is Role.WORKER else self.role.value


_ROLES: Mapping[str, Role] = {
    "workerpool0": Role.PRIMARY,
    "chief": Role.PRIMARY,
    "master": Role.PRIMARY,
    "workerpool1": Role.WORKER,
    "worker": Role.WORKER,
    "workerpool2": Role.NONE,
    "ps": Role.NONE,
    "workerpool3": Role.EVALUATOR,
    "evaluator": Role.EVALUATOR,
}

ALONE = Cluster(Role.PRIMARY, rank=0, size=1, primary=None)


def read_cluster(environment: Mapping[str, str]) -> Cluster:
    """Reads the cluster from a replica's environment variables.

    `CLUSTER_SPEC` is preferred: it names every pool. `TF_CONFIG` is what an AI Platform job on a
    prebuilt runtime gets instead. With neither, the program is alone.

    Raises:
        ClusterError: The variable does not hold a cluster that this program can use.
    """
    for variable in ("CLUSTER_SPEC", "TF_CONFIG"):
        text = environment.get(variable, "").strip()
        if text:
            try:
                return _parse(json.loads(text))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ClusterError(
                    f"{variable} cannot be read ({type(error).__name__}: {error}). It should be"
                    f" the JSON that the training service sets; it is: {text[:200]}"
                ) from error
    return ALONE


def _parse(spec: Any) -> Cluster:
    pools: dict[Role, list[str]] = {}
    listed: dict[str, list[str]] = spec.get("cluster") or {}
    for name, addresses in listed.items():
        pools.setdefault(_ROLES[name], []).extend(addresses)
    task: dict[str, Any] = spec.get("task") or {}
    role = _ROLES[task["type"]] if "type" in task else Role.PRIMARY
    index = int(task.get("index", 0))

    primaries, workers = pools.get(Role.PRIMARY, []), pools.get(Role.WORKER, [])
    if len(primaries) > 1:
        raise ValueError(f"{len(primaries)} primaries are listed, one is allowed")
    if role is Role.WORKER and not (primaries and 0 <= index < len(workers)):
        raise ValueError(f"worker {index} is not in the cluster, or the cluster has no primary")
    return Cluster(
        role=role,
        rank={Role.PRIMARY: 0, Role.WORKER: index + 1}.get(role),
        size=1 + len(workers),
        primary=_address(primaries[0]) if primaries and workers else None,
    )


def _address(text: str) -> Address:
    host, separator, port = text.rpartition(":")
    if not separator or not host:
        raise ValueError(f"{text!r} is not of the form host:port")
    return Address(host.strip("[]"), int(port))
