"""Chooses how a cluster is queried for its jobs, steps and nodes: in JSON where its release supports that,
else by fields."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from trainshed_cluster.slurm.field_queries import FieldQueries
from trainshed_cluster.slurm.json_queries import JsonQueries
from trainshed_cluster.slurm.records import Job, NodeLine, Step

MOST_NODES_AS_JSON: Final = 5_000
"""A thousand nodes are 2 to 3 MB of JSON, and to decode them holds up everything else for 5 ms; of fields
they are some 80 KB for each partition."""
_JSON_SINCE = (23, 11)
"""In 22.05 all filters are ignored with --json; since 23.11 they hold, and numbers have the same form up to
26.05."""


class Queries(Protocol):
    """Makes the arguments of queries and parses their answers. The parsers raise ValueError if a text is no
    answer to the query."""

    def jobs(self, users: Sequence[int], name: str = "", *, ended: bool = False) -> list[str]:
        """Return the query of jobs. `users`: their ids. `name`: of the jobs; "" = all jobs of those users.
        `ended`: include jobs that are over, for as long as Slurm remembers them (MinJobAge, 5 minutes)."""
        ...

    def read_jobs(self, answer: str) -> Iterable[Job]: ...

    def steps(self, users: Sequence[int]) -> list[str]: ...

    def read_steps(self, answer: str) -> Iterable[Step]:
        """Yield the running steps."""
        ...

    def nodes(self, partitions: str) -> tuple[list[str], ...]:
        """Return the arguments of one or more commands. `partitions`: separated by commas; "" = all."""
        ...

    def read_nodes(self, answers: Sequence[str], partitions: str) -> Iterable[NodeLine]:
        """Yield each node once. `answers`: one per command. `partitions`: as they were queried."""
        ...


FIELDS: Final[Queries] = FieldQueries()
JSON: Final[Queries] = JsonQueries()

ASK_RELEASE: Final = ("sinfo", "--version")


def fitting(release: str) -> Queries:
    """Return the queries to use. `release`: the answer to `ASK_RELEASE`, such as "slurm-wlm 24.11.5" or
    "slurm 23.11.4"."""
    match = re.search(r"\b(\d{1,4})\.(\d{1,4})", release)
    return JSON if match and (int(match[1]), int(match[2])) >= _JSON_SINCE else FIELDS
