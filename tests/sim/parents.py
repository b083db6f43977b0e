"""The dependencies of tuning jobs and pipelines in a simulation: a deterministic advisor, and simulated
metrics and buckets.
"""

import itertools
import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

from trainshed.controller.parents import ParentStores
from trainshed.core.curves import Point
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid
from trainshed.core.study.records import Measurement, TrialState
from trainshed.core.study.spec import StudySpec
from trainshed.core.tuning.records import SeenSummaries
from trainshed.core.units import Nanos
from trainshed.store.sqlite.database import Store
from trainshed.studies.advisor_client import ProcessAdvisor
from trainshed.studies.port import Curve, Proposals, StoppingVerdict, TrialData


class CountingAdvisor(ProcessAdvisor):
    """An advisor that proposes x = number of the trial / 1000 for every parameter, as a pure function."""

    def __init__(self, most: int | None = None) -> None:
        #: Total number of points; None: unlimited.
        self.most = most

    async def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        del seed
        last = max((trial.number for trial in trials), default=0)
        left = count if self.most is None else min(count, self.most - last)
        points = [
            tuple((parameter.id, (last + 1 + n) / 1000) for parameter in spec.parameters) for n in range(left)
        ]
        return Proposals(tuple(points), exhausted=left < count)

    async def should_stop(
        self, spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
    ) -> tuple[StoppingVerdict, ...]:
        del spec, curves
        return (StoppingVerdict(should_stop=False, why="nothing is stopped here"),) * len(numbers)


class FakeMetrics:
    """Fake measurements by job, set by a test."""

    def __init__(self) -> None:
        self.of: dict[JobUid, tuple[Measurement, ...]] = {}
        self.usual: Callable[[JobUid], tuple[Measurement, ...]] = lambda uid: ()

    def measurements(self, job_uid: JobUid, started: int = 0) -> tuple[Measurement, ...]:
        del started
        return self.of.get(job_uid) or self.usual(job_uid)


class LearningAdvisor(CountingAdvisor):
    """An advisor whose points depend on all visible trials and their results.

    It stops trials whose second or a later measurement is below `bar`.
    """

    def __init__(self, most: int | None = None, bar: float = 0.0) -> None:
        super().__init__(most)
        self.bar = bar

    async def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        left = count if self.most is None else max(0, min(count, self.most - len(trials)))
        shown = list(trials)
        points: list[tuple[tuple[str, float], ...]] = []
        for _ in range(left):
            facts = [(trial.number, trial.parameters, trial.final and trial.final.metrics) for trial in shown]
            dice = random.Random(f"{seed} {facts}")
            point = tuple((parameter.id, dice.random()) for parameter in spec.parameters)
            points.append(point)
            shown.append(TrialData(len(shown) + 1, TrialState.ACTIVE, point))
        return Proposals(tuple(points), exhausted=left < count)

    async def should_stop(
        self, spec: StudySpec, curves: Sequence[Curve], numbers: Sequence[int]
    ) -> tuple[StoppingVerdict, ...]:
        known = {curve.number: curve.measurements for curve in curves}
        lasts = [known[number][-1].value(spec.metrics[0].id) for number in numbers]
        return tuple(
            StoppingVerdict(
                len(known[number]) > 1 and last is not None and last < self.bar, f"{last} is below {self.bar}"
            )
            for number, last in zip(numbers, lasts, strict=True)
        )


def fresh_uids() -> Iterator[int]:
    """Yield uids for jobs created by parents, different from the uids in tests."""
    return itertools.count(10**15)


async def _nothing(_: object) -> tuple[tuple[int, str], ...]:
    """Return no lines: simulated programs print nothing."""
    return ()


Logged = Callable[[Job, str], Awaitable[tuple[SeenSummaries, Sequence[Point]] | None]]


async def _no_logs(_job: Job, _tag: str) -> None:
    """Return None: simulated programs have no log directory."""


def parent_stores(
    store: Store,
    now: Callable[[], int],
    *,
    advisor: ProcessAdvisor | None = None,
    reported: Callable[[JobUid, int], tuple[Measurement, ...]] | None = None,
    empty: Collection[str] = (),
    printed: Callable[[object], Awaitable[Sequence[tuple[int, str]]]] | None = None,
    logged: Logged | None = None,
    uids: Iterator[int] | None = None,
) -> ParentStores:
    """Return the dependencies of parents over a store of the simulation.

    `empty` contains the locations without a model. `uids` continues the uids of an earlier service.
    """
    numbers = uids or fresh_uids()
    return ParentStores(
        intake=store.intake,
        reader=store.reader,
        studies=store.studies,
        models=store.models,
        advisor=advisor or CountingAdvisor(),
        reported_measurements=reported or FakeMetrics().measurements,
        last_written=lambda uri: Nanos(uri not in empty),
        printed_lines=printed or _nothing,
        logged_points=logged or _no_logs,
        now=now,
        new_uid=lambda: JobUid(next(numbers)),
    )
