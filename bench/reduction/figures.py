"""Computes figures from samples: medians, ratios, theoretical values, and checks of budgets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.reduction.cases import WHOLE, Case, Task
from bench.reduction.measuring import Sample
from bench.reduction.network import PAYLOAD_SHARE
from bench.reduction.running import Results
from bench.reduction.sides import GLOO
from trainshed_reduction import layout

LOSS = 1e-5
"""Maximum relative difference of losses and of parameter sums between training with reducers and training
with gloo."""


@dataclass(frozen=True, slots=True)
class Theory:
    """The minimum seconds that the links allow, for the ring and for reducers, and the maximum speedup of
    reducers over the ring."""

    ring: float
    reducers: float
    limit: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a task on one side, over all rounds.

    `seconds`: median of all operations. `low`, `high`: lowest and highest median of a round. `sent`,
    `sent_on_wire`: as multiples of the tensor's size. The other fields are as in `Sample`.
    """

    seconds: float
    low: float
    high: float
    sent: float
    sent_on_wire: float
    busy: float
    worker_seconds: float
    reducer_seconds: float
    rms: float
    ordered: bool
    losses: tuple[float, ...]
    parameters: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One side with reducers, compared with gloo.

    `ratio`: gloo's time divided by this side's time. `part_of_bound`: fraction of the links' limit that this
    side reaches. `ring_part`: fraction of the ring's limit that gloo reaches. Both fractions are 0 if the
    rate is unknown.
    """

    case: Case
    task: Task
    gloo: Figures
    ours: Figures
    theory: Theory | None

    @property
    def ratio(self) -> float:
        return self.gloo.seconds / self.ours.seconds

    @property
    def part_of_bound(self) -> float:
        return self.theory.reducers / self.ours.seconds if self.theory else 0.0

    @property
    def ring_part(self) -> float:
        return self.theory.ring / self.gloo.seconds if self.theory else 0.0

    @property
    def fast(self) -> bool | None:
        """Whether the speedup reaches the target; None = the task has no budget."""
        return self.ratio >= self.task.target if self.task.target else None

    @property
    def frugal(self) -> bool | None:
        due = self.case.wire and self.task.nbytes >= WHOLE
        return self.ours.sent <= self.case.wire if due else None

    @property
    def same_training(self) -> bool | None:
        """Whether losses and parameters equal gloo's; None = the task is not training."""
        if not self.gloo.losses:
            return None
        pairs = (
            *zip(self.gloo.losses, self.ours.losses, strict=True),
            (self.gloo.parameters, self.ours.parameters),
        )
        return all(abs(a - b) <= LOSS * abs(a) for a, b in pairs)

    @property
    def held(self) -> bool:
        return False not in (self.fast, self.frugal, self.same_training)


def theory(case: Case, nbytes: int) -> Theory | None:
    """Return the theoretical values, or None if links have no rate or different rates."""
    if not case.rate or case.about:
        return None
    once = nbytes * 8 / (case.rate * 1e6 * PAYLOAD_SHARE)
    speed = (case.reducer_rate or case.rate) / case.rate
    bounds = layout.bounds(case.workers, case.reducers, speed)
    return Theory(bounds.ring * once, bounds.reducers * once, bounds.limit)


def figures(samples: Sequence[Sample], nbytes: int) -> Figures:
    """Return the figures. `samples`: one sample per round, at least one."""
    rounds = [median(sample.seconds) for sample in samples]
    return Figures(
        median(seconds for sample in samples for seconds in sample.seconds),
        min(rounds),
        max(rounds),
        median(sample.sent for sample in samples) / nbytes,
        median(sample.sent_on_wire for sample in samples) / nbytes,
        median(sample.busy for sample in samples),
        median(sample.worker_seconds for sample in samples),
        median(sample.reducer_seconds for sample in samples),
        max(sample.rms for sample in samples),
        all(sample.ordered for sample in samples),
        tuple(loss for sample in samples for loss in sample.losses),
        samples[-1].parameters,
    )


def comparisons(case: Case, results: Results, side: str) -> list[Comparison]:
    """Return the comparisons of all tasks that both gloo and this side have run."""
    compared: list[Comparison] = []
    for task in case.tasks:
        gloo, ours = results.samples(GLOO.name, task), results.samples(side, task)
        if gloo and ours:
            compared.append(
                Comparison(
                    case,
                    task,
                    figures(gloo, task.nbytes),
                    figures(ours, task.nbytes),
                    theory(case, task.nbytes),
                )
            )
    return compared
