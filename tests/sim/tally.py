"""What runs of the simulation were made of, in numbers."""

from collections import Counter
from dataclasses import dataclass, field, fields

SECOND = 10**9
YEAR = 365.25 * 24 * 3600 * SECOND


@dataclass(slots=True)
class Tally:
    """`virtual_ns`: how long the worlds lasted. `starts`: programs. `steps`: of the machine, each compared
    with the reference. `parents`: tuning jobs and pipelines, by their ends. `batches`: COMMITs of the real
    writer, and `company`: how many of them were of several writes. `rules`: what the failure table decided,
    by row. `ends`: of jobs, by state."""

    worlds: int = 0
    virtual_ns: int = 0
    jobs: int = 0
    commits: int = 0
    batches: int = 0
    company: int = 0
    steps: int = 0
    lives: int = 0
    crashes: int = 0
    starts: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    killed: Counter[str] = field(default_factory=Counter[str])
    rules: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    parents: Counter[str] = field(default_factory=Counter[str])

    def add(self, other: "Tally") -> None:
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.worlds} worlds, {self.virtual_ns / YEAR:.1f} years, {self.jobs} jobs, "
                f"{self.starts} programs, {self.commits} commits, {self.crashes} crashes of the service, "
                f"{self.steps} steps and {self.lives} lives compared with the reference",
                f"{self.batches} commits by the real writer, {self.company} of them of several writes",
                f"ends: {_most_common(self.ends)}",
                f"tuning jobs and pipelines: {_most_common(self.parents)}",
                f"rules: {_most_common(self.rules)}",
                f"faults: {_most_common(self.faults)}",
                f"the service was killed: {_most_common(self.killed)}",
            )
        )


def _most_common(counted: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counted.most_common()) or "none"
