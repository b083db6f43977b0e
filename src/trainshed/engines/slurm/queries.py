"""How a cluster is asked for its jobs, steps and nodes: for JSON where its release has that, else fields."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, Protocol

from trainshed.engines.slurm.field_queries import FieldQueries
from trainshed.engines.slurm.json_queries import JsonQueries
from trainshed.engines.slurm.records import Job, NodeLine, Step

Answers = Literal["auto", "json", "fields"]
"""What Slurm's commands answer with: "auto" = JSON, if its release is new enough and there are few nodes."""

MOST_NODES_AS_JSON: Final = 5_000
"""A thousand nodes are 2 to 3 MB of JSON, and to decode them holds up everything else for 5 ms; of fields
they are some 80 KB for each partition."""
_JSON_SINCE = (23, 11)
"""In 22.05 all filters are ignored with --json; since 23.11 they hold, and numbers have the same form up to
26.05."""


class Queries(Protocol):
    """Arguments of commands, and how what these print is read. What reads raises ValueError: that is no
    answer to what was asked."""

    def jobs(self, users: Sequence[int], name: str = "", *, ended: bool = False) -> list[str]:
        """`users`: by their numbers. `name`: of the only ones that are asked for; "" = all of those users'.
        `ended`: those as well that are over, for as long as Slurm remembers them (MinJobAge, 5 minutes)."""
        ...

    def read_jobs(self, answer: str) -> Iterable[Job]: ...

    def steps(self, users: Sequence[int]) -> list[str]: ...

    def read_steps(self, answer: str) -> Iterable[Step]:
        """Those that run."""
        ...

    def nodes(self, partitions: str) -> tuple[list[str], ...]:
        """One command, or more. `partitions`: with commas between; "" = all."""
        ...

    def read_nodes(self, answers: Sequence[str], partitions: str) -> Iterable[NodeLine]:
        """Each once. `answers`: one to each command. `partitions`: that were asked for."""
        ...


FIELDS: Final[Queries] = FieldQueries()
JSON: Final[Queries] = JsonQueries()

ASK_RELEASE: Final = ("sinfo", "--version")


def fitting(wanted: Answers, release: str) -> Queries:
    """`release`: the answer to `ASK_RELEASE`, such as "slurm-wlm 24.11.5" or "slurm 23.11.4"."""
    if wanted != "auto":
        return JSON if wanted == "json" else FIELDS
    found = re.search(r"\b(\d{1,4})\.(\d{1,4})", release)
    return JSON if found and (int(found[1]), int(found[2])) >= _JSON_SINCE else FIELDS
