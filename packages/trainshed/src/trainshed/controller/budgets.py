"""What projects and people have used of this month's budgets (`core.usage.BUDGETS`), and whose is used up.

A job that runs goes on when a budget is used up; none of those that are counted by it starts.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from trainshed.core.capacity import QuotaKey, limit_of
from trainshed.core.catalog.quotas import BUDGETS, COST, CPU_HOURS, GLOBAL, GPU_HOURS, JOBS
from trainshed.core.lifecycle.records import Job
from trainshed.core.units import Nanos
from trainshed.core.usage import (
    MachineTime,
    Prices,
    Use,
    budgeted,
    month_of,
    uses,
)

_SOON: Final = 10**9
"""Nanoseconds for which an answer holds while nothing is given back: to count what runs takes a while."""
_UNITS: Final[Mapping[str, str]] = {CPU_HOURS: " CPU-hours", GPU_HOURS: " GPU-hours", COST: ""}
_Account = tuple[str, str]
"""A project, and a person or "", which stands for all together."""


class Budgets:
    """The budgets that are set, and what counts against them. `running`: the jobs that hold places."""

    def __init__(self, prices: Prices, running: Callable[[], Iterable[Job]]) -> None:
        self._prices = prices
        self._running = running
        self._limits: Mapping[QuotaKey, float] = {}
        #: What was used in this month by attempts that are over.
        self._ended: dict[_Account, dict[str, float]] = {}
        self._month: tuple[Nanos, Nanos] = (0, 0)
        self._exhausted: Mapping[QuotaKey, str] = {}
        #: Until when the former holds (ns).
        self._holds_until = 0

    def load(self, used: Iterable[MachineTime], now: Nanos) -> None:
        """Begin with what was used in this month so far."""
        self._month, self._ended = month_of(now), {}
        for part in used:
            self._count(self._ended, part)

    def add(self, given_back: Iterable[Use]) -> None:
        """Take in what attempts have given back."""
        for use in given_back:
            self._turn_page(use.ended)
            self._count(self._ended, use.within(*self._month))

    def set_quotas(self, quotas: Mapping[QuotaKey, float]) -> None:
        self._limits = {key: limit for key, limit in quotas.items() if key.metric in BUDGETS}
        self._holds_until = 0

    def used(self, now: Nanos) -> Callable[[QuotaKey], float]:
        """Return the function that says how much of a budget was used until now."""
        sums = self._sums(now)
        return lambda key: sums.get((key.project_id, key.person), {}).get(key.metric, 0.0)

    def exhausted(self, now: Nanos) -> Mapping[QuotaKey, str]:
        """Return the keys of the numbers of jobs of those whose budget is used up, with a sentence each."""
        if not self._limits:
            return {}
        if now < self._holds_until:
            return self._exhausted
        sums = self._sums(now)
        gone: dict[QuotaKey, str] = {}
        for (project, person), used in sums.items():
            for metric, amount in used.items():
                limit = limit_of(self._limits, QuotaKey(project, GLOBAL, metric, person))
                if limit is not None and amount >= limit:
                    what = f"{amount:.4g} of {limit:g}{_UNITS[metric]}"
                    gone[QuotaKey(project, GLOBAL, JOBS, person)] = (
                        f"{person or f'project {project}'} has used {what} of this month's budget"
                    )
        self._exhausted, self._holds_until = gone, min(now + _SOON, self._month[1])
        return gone

    @property
    def next_month(self) -> Nanos:
        """When all budgets begin anew (ns)."""
        return self._month[1]

    def _sums(self, now: Nanos) -> dict[_Account, dict[str, float]]:
        self._turn_page(now)
        sums = {account: dict(used) for account, used in self._ended.items()}
        for job in self._running():
            for use in uses(job, now):
                self._count(sums, use.within(*self._month))
        # A budget of nothing is used up before anything was used.
        for key in self._limits:
            sums.setdefault((key.project_id, key.person), dict.fromkeys(BUDGETS, 0.0))
        return sums

    def _count(self, sums: dict[_Account, dict[str, float]], part: MachineTime) -> None:
        for metric, amount in budgeted(part, self._prices).items():
            for person in dict.fromkeys(("", part.person)):
                account = sums.setdefault((part.project_id, person), {})
                account[metric] = account.get(metric, 0.0) + amount

    def _turn_page(self, now: Nanos) -> None:
        if now >= self._month[1]:
            self._month, self._ended = month_of(now), {}
