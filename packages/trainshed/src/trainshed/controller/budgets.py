"""The budget usage of this month by projects and users (`core.catalog.quotas.BUDGETS`), and notifications
about it.

When a budget is used up, no job of its project or user starts. When a hard budget is used up, running jobs
also release their nodes.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from trainshed.core.capacity import EACH, QuotaKey
from trainshed.core.catalog.quotas import (
    BUDGETS,
    COST,
    CPU_HOURS,
    GLOBAL,
    GPU_HOURS,
    HARD,
    HARD_BUDGETS,
    JOBS,
)
from trainshed.core.units import Nanos
from trainshed.core.usage import Budget, MachineTime, Prices, Use, budget_amounts, month_of
from trainshed.scheduler.model import limit_of

_EVERY: Final = 10.0
"""Seconds between two checks of all budgets."""
_CACHE_INTERVAL: Final = 10**9
"""Nanoseconds for which a computed usage is reused unless an attempt ends. Computing the usage of running
attempts takes time."""
_UNITS: Final[Mapping[str, str]] = {CPU_HOURS: " CPU-hours", GPU_HOURS: " GPU-hours", COST: ""}
_Account = tuple[str, str]
"""A project, and a user or "" for all users together."""
_Sums = dict[_Account, dict[str, float]]


class Budgets:
    """The configured budgets, and the usage that counts against them.

    `running`: returns the usage of running attempts until a given time. `marks`: percentages, ascending, at
    which notifications about budgets that are not hard are sent. `reached`: receives the budgets that have
    reached a mark and the start of their month, repeatedly. None disables notifications.
    """

    def __init__(
        self,
        prices: Prices,
        running: Callable[[Nanos], Iterable[Use]],
        marks: tuple[int, ...] = (),
        reached: Callable[[tuple[Budget, ...], Nanos], None] | None = None,
    ) -> None:
        self._prices = prices
        self._running = running
        self._marks = marks
        self._reached = reached
        #: The budgets that operators have set.
        self.limits: Mapping[QuotaKey, float] = {}
        #: This month's usage by ended attempts.
        self._ended: _Sums = {}
        #: Usage of other months, by the start of the month. It is kept because a clock may be set back.
        self._others: dict[Nanos, _Sums] = {}
        #: Start and end of this month (ns). At its end, the usage of all budgets restarts at zero.
        self.month: tuple[Nanos, Nanos] = (0, 0)
        self._exhausted: tuple[Mapping[QuotaKey, str], frozenset[QuotaKey]] = ({}, frozenset())
        #: Time until which the last computed usage is valid (ns).
        self._holds_until = 0

    def load(self, used: Iterable[MachineTime], now: Nanos) -> None:
        """Start with this month's stored usage."""
        self.month, self._ended = month_of(now), {}
        for part in used:
            self._count(self._ended, part)

    def add(self, uses: Iterable[Use]) -> None:
        """Add the usage of ended attempts."""
        for use in uses:
            self._turn_page(use.ended)
            self._count(self._ended, use.within(*self.month))

    def set_quotas(self, quotas: Mapping[QuotaKey, float]) -> None:
        budgets = {*BUDGETS, *HARD_BUDGETS}
        self.limits = {key: limit for key, limit in quotas.items() if key.metric in budgets}
        self._holds_until = 0

    def usage(self, now: Nanos) -> Callable[[QuotaKey], float]:
        """Return a function that computes the usage of a budget until now."""
        sums = self._sums(now)
        return lambda key: _of(sums, key)

    def of_projects(self, now: Nanos) -> dict[tuple[str, str], float]:
        """Return this month's usage of each project, by the metrics of budgets."""
        return {
            (project, metric): amount
            for (project, person), used in self._sums(now).items()
            if not person
            for metric, amount in used.items()
        }

    def find_exhausted(self, now: Nanos) -> tuple[Mapping[QuotaKey, str], frozenset[QuotaKey]]:
        """Return two results. The first result contains the projects and users whose budget is used up, by
        the key of their `JOBS` quota, each with a sentence about the used amount. The second result contains
        the same keys, but only for projects and users whose hard budget is used up."""
        if self._holds_until - _CACHE_INTERVAL <= now < self._holds_until:
            return self._exhausted
        sums = self._sums(now)
        gone: dict[QuotaKey, str] = {}
        stopped: set[QuotaKey] = set()
        for key, limit in self._set(sums):
            metric, project, person = key.metric.removesuffix(HARD), key.project_id, key.person
            if (amount := _of(sums, key)) >= limit:
                what = f"{amount:.4g} of {limit:g}{_UNITS[metric]}"
                jobs = QuotaKey(project_id=project, region=GLOBAL, metric=JOBS, person=person)
                gone[jobs] = f"{person or f'project {project}'} has used {what} of this month's budget"
                if key.metric in HARD_BUDGETS:
                    stopped.add(jobs)
        self._exhausted = gone, frozenset(stopped)
        self._holds_until = min(now + _CACHE_INTERVAL, self.month[1])
        return self._exhausted

    def statuses(self, now: Nanos) -> tuple[Budget, ...]:
        """Return all budgets with their present usage."""
        sums, marks = self._sums(now), self._marks
        return tuple(
            Budget(key, limit, _of(sums, key), marks=(100,) if key.metric in HARD_BUDGETS else marks)
            for key, limit in self._set(sums)
            if limit
        )

    async def watch(self, now: Callable[[], int], time_passed: Callable[[], None]) -> None:
        """Check the budgets at regular intervals, until cancelled. `time_passed`: called at each check if
        budgets exist, because a budget may have been used up since the last check."""
        while True:
            await asyncio.sleep(_EVERY)
            standing = self.statuses(now())
            reached = tuple(budget for budget in standing if budget.reached_mark)
            if reached and self._reached is not None:
                self._reached(reached, self.month[0])
            if standing:
                time_passed()

    def _set(self, sums: _Sums) -> Iterator[tuple[QuotaKey, float]]:
        limited = {key.metric for key in self.limits}
        metrics = [metric for metric in (*BUDGETS, *HARD_BUDGETS) if metric in limited]
        for project, person in sums:
            for metric in metrics:
                key = QuotaKey(project_id=project, region=GLOBAL, metric=metric, person=person)
                if person != EACH and (limit := limit_of(self.limits, key)) is not None:
                    yield key, limit

    def _sums(self, now: Nanos) -> _Sums:
        self._turn_page(now)
        sums = {account: dict(used) for account, used in self._ended.items()}
        for use in self._running(now):
            self._count(sums, use.within(*self.month))
        # Include each project and user with a budget: a budget of 0 is used up before any usage.
        for key in self.limits:
            sums.setdefault((key.project_id, key.person), {})
        return sums

    def _count(self, sums: _Sums, part: MachineTime) -> None:
        for metric, amount in budget_amounts(part, self._prices).items():
            for person in dict.fromkeys(("", part.person)):
                account = sums.setdefault((part.project_id, person), {})
                account[metric] = account.get(metric, 0.0) + amount

    def _turn_page(self, now: Nanos) -> None:
        if not self.month[0] <= now < self.month[1]:
            self._others[self.month[0]] = self._ended
            self.month = month_of(now)
            self._ended = self._others.pop(self.month[0], {})


def _of(sums: _Sums, key: QuotaKey) -> float:
    return sums.get((key.project_id, key.person), {}).get(key.metric.removesuffix(HARD), 0.0)
