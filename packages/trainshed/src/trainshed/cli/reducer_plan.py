"""Computes the plan of a job's reducers: times and gains for several numbers of reducers of one machine type;
and formats it. Pure."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainshed.cli.text.colours import faint
from trainshed.cli.text.tables import Column, pairs, titled
from trainshed.core.job.spec import Accelerators
from trainshed.core.reducers import IMAGE, RECOMMENDED_VCPUS, Fleet, enough
from trainshed.core.specs.machines import MAX_REPLICAS
from trainshed_reduction.layout import bounds, break_even, shares

GIGABYTE = 10**9
BUCKET_CAP_MB = 64
FUSION_THRESHOLD = 134217728
_COLUMNS = (
    Column("REDUCERS", right=True),
    Column("GBPS", right=True),
    Column("MODE"),
    Column("EACH WORKER SUMS", right=True),
    Column("OVER THE RING", right=True),
    Column("PER GB", right=True),
)


@dataclass(frozen=True, slots=True)
class Case:
    """The effect of a number of reducers."""

    reducers: int
    #: Bandwidth of all reducers together, in Gbit/s.
    gbps: float
    is_hybrid: bool
    #: The share of every operation that each worker sums itself; 0 in pure mode.
    worker_share: float
    #: Maximum speed, as a multiple of the ring's.
    limit: float
    #: Minimum seconds per gigabyte.
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of reducers for a job, with the effect of other numbers of them."""

    #: The machines of worker pools 0 and 1.
    workers: Fleet
    #: The accelerators of each worker; None = none.
    accelerators: Accelerators | None
    #: As many reducers as were asked about, else as many as are needed.
    reducers: Fleet
    #: The number of reducers that the rule asks for (spec/reduction#bandwidth).
    needed: int
    #: The fewest reducers that are faster than the ring by themselves; None = no number is.
    break_even: int | None
    #: Minimum seconds per gigabyte without reducers.
    ring: float
    #: The effect of a quarter to all of the reducers that are needed, and of those asked about, ascending.
    cases: tuple[Case, ...]
    #: vCPUs of each reducer.
    reducer_vcpus: float

    @property
    def chosen(self) -> Case:
        return next(case for case in self.cases if case.reducers == self.reducers.count)


def plan(
    workers: Fleet,
    accelerators: Accelerators | None,
    *,
    machine: str,
    gbps: float,
    vcpus: float,
    count: int | None = None,
) -> Plan:
    """Compute a plan. `machine`, `gbps`, `vcpus`: a reducer's machine type, bandwidth in Gbit/s and vCPUs.
    `count`: the number of reducers, None = as many as are needed."""
    needed = enough(workers.total, gbps)
    chosen = count or needed
    counts = sorted({math.ceil(needed * part / 4) for part in range(1, 5)} | {chosen})
    speed = gbps / workers.gbps
    base = 8 / workers.gbps
    cases: list[Case] = []
    for reducers in counts:
        bound = bounds(workers.count, reducers, speed)
        share = round(shares(workers.count, reducers, speed).worker, 9)
        seconds = base * min(bound.pure, bound.hybrid)
        cases.append(Case(reducers, reducers * gbps, share > 0, share, bound.limit, seconds))
    return Plan(
        workers,
        accelerators,
        Fleet(chosen, machine, gbps),
        needed,
        # With two workers no number is faster: their ring sends each gradient once, as reducers do.
        int(round(break_even(workers.count) / speed, 9)) + 1 if workers.count > 2 else None,
        base * bounds(workers.count, 1, speed).ring,
        tuple(cases),
        vcpus,
    )


def plan_lines(plan: Plan, size: int | None) -> Iterator[str]:
    """Yield the lines that show a plan to people. `size`: bytes of a step's gradients, None = not known."""
    workers, reducers = plan.workers, plan.reducers
    met = reducers.count >= plan.needed
    yield f"{reducers} as reducers for {workers}"
    yield ""
    rows = [
        ("workers", f"{_links(workers)} (worker pools 0 and 1)"),
        ("reducers", f"{_links(reducers)} (worker pool 2)"),
        ("rule", _rule(plan, met=met)),
        ("mode", _mode(plan.chosen)),
        ("limit", _limit(plan)),
        ("break-even", _break_even(plan)),
        ("per GB", _times(plan, GIGABYTE)),
    ]
    if size:
        rows.append(("per step", f"{_times(plan, size)} ({size / GIGABYTE:.3g} GB of gradients)"))
    yield from pairs(rows)
    yield ""
    yield from _case_lines(plan)
    yield ""
    yield faint("Worker pools for gcloud ai custom-jobs create; IMAGE is your program's:")
    yield from (f"  {flag}" for flag in pool_flags(plan))
    yield ""
    yield faint("Advice")
    yield from (f"  {line}" for line in _advice(plan))


def pool_flags(plan: Plan) -> list[str]:
    """Return the flags of gcloud that make the three worker pools."""
    devices = plan.accelerators
    accelerated = (
        f"accelerator-type={devices.type},accelerator-count={devices.count}," if devices else ""
    )
    flag = "--worker-pool-spec=machine-type={},replica-count={},{}container-image-uri={}"
    machine = plan.workers.machine
    counts = (1, plan.workers.count - 1)
    return [
        *(flag.format(machine, count, accelerated, "IMAGE") for count in counts),
        flag.format(plan.reducers.machine, plan.reducers.count, "", IMAGE),
    ]


def plan_document(plan: Plan, size: int | None) -> dict[str, Any]:
    """Return a plan as JSON for programs. Bandwidths are in Gbit/s, times in seconds. `size`: bytes of a
    step's gradients, None = not known."""
    devices = plan.accelerators
    document: dict[str, Any] = {
        "workers": _fleet(plan.workers)
        | {"accelerators": {"type": devices.type, "count": devices.count} if devices else None},
        "reducers": _fleet(plan.reducers),
        "reducersNeeded": plan.needed,
        "ruleIsMet": plan.reducers.count >= plan.needed,
        "breakEvenReducers": plan.break_even,
        "ringSecondsPerGb": round(plan.ring, 6),
        **_case(plan.chosen),
        "cases": [{"reducers": case.reducers, **_case(case)} for case in plan.cases],
        "workerPoolFlags": pool_flags(plan),
        "bucketCapMb": BUCKET_CAP_MB,
    }
    if size:
        document["gradientsBytes"] = size
        document["ringSecondsPerStep"] = round(plan.ring * size / GIGABYTE, 6)
        document["secondsPerStep"] = round(plan.chosen.seconds * size / GIGABYTE, 6)
    return document


def _case(case: Case) -> dict[str, Any]:
    return {
        "mode": "hybrid" if case.is_hybrid else "pure",
        "workerShare": round(case.worker_share, 6),
        "limitOverRing": round(case.limit, 4),
        "secondsPerGb": round(case.seconds, 6),
    }


def _fleet(fleet: Fleet) -> dict[str, Any]:
    return {
        "count": fleet.count,
        "machineType": fleet.machine,
        "gbps": fleet.gbps,
        "totalGbps": fleet.total,
    }


def _case_lines(plan: Plan) -> Iterator[str]:
    rows = [
        (
            f"{case.reducers}",
            f"{case.gbps:g}",
            "hybrid" if case.is_hybrid else "pure",
            f"{case.worker_share:.1%}" if case.is_hybrid else "–",
            f"{case.limit:.2f} ×",
            _seconds(case.seconds),
        )
        for case in plan.cases
    ]
    yield from titled(_COLUMNS, rows)


def _links(fleet: Fleet) -> str:
    return f"{fleet}, {fleet.gbps:g} Gbps each, {fleet.total:g} Gbps together"


def _rule(plan: Plan, *, met: bool) -> str:
    if met:
        spare = plan.reducers.count - plan.needed
        return "met" + (f", with {spare} more than needed" if spare else "")
    return (
        f"not met: {plan.needed} would be enough ({plan.needed * plan.reducers.gbps:g} Gbps); a job "
        "with fewer gets a warning, and runs"
    )


def _mode(case: Case) -> str:
    if not case.is_hybrid:
        return "pure: reducers alone add up"
    return f"hybrid: each worker adds up {case.worker_share:.1%} of every operation, the reducers the rest"


def _limit(plan: Plan) -> str:
    if plan.workers.count == 2:
        return "1.00 × the ring: two workers gain nothing, a ring of two sends each gradient once as well"
    return f"{plan.chosen.limit:.2f} × as fast as the ring, at most"


def _break_even(plan: Plan) -> str:
    if plan.break_even is None:
        return "none"
    number = plan.break_even
    if number == 1:
        return "1 reducer alone is faster than the ring"
    return f"{number} reducers alone are faster than the ring; fewer are with the workers' help (hybrid)"


def _times(plan: Plan, size: int) -> str:
    times = size / GIGABYTE
    return (
        f"{_seconds(plan.chosen.seconds * times)} at least; the ring {_seconds(plan.ring * times)}"
    )


def _advice(plan: Plan) -> Iterator[str]:
    yield (
        f"DistributedDataParallel(model, bucket_cap_mb={BUCKET_CAP_MB}): larger operations fill the links "
        "(default 25)."
    )
    yield (
        f"HOROVOD_FUSION_THRESHOLD={FUSION_THRESHOLD} is the public advice for Horovod; here Horovod does "
        "not use reducers."
    )
    if plan.reducer_vcpus and plan.reducer_vcpus < RECOMMENDED_VCPUS:
        yield (
            f"{plan.reducers.machine} has {plan.reducer_vcpus:g} vCPUs; reducers of {RECOMMENDED_VCPUS} "
            "and more are recommended, which have more bandwidth each."
        )
    if plan.needed > MAX_REPLICAS:
        yield (
            f"A worker pool has at most {MAX_REPLICAS} replicas: choose machines with more bandwidth for "
            "reducers."
        )


def _seconds(length: float) -> str:
    return f"{length * 1000:.3g} ms" if length < 1 else f"{length:.3g} s"
