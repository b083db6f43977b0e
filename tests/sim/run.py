"""Random worlds without a time limit: `python -m tests.sim.run --minutes 10 [--seed N] [--only N] [--worlds
N]`.

Prints statistics, and for the first world that violates a rule its seed and the shortest scenario found that
still violates it. `--only`: a single world with full details. `--worlds`: maximum number. `--quick`: no
search for a shorter scenario, and fewer compared lives. Exits with 1 if a rule was violated.
"""

import argparse
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tests.sim.operator_rules import draw_operator_rules
from tests.sim.random_scenarios import scenario
from tests.sim.scenario import SECOND, Scenario, Submit, SubmitParent
from tests.sim.simulation import Simulation
from tests.sim.starvation import crowded_scenario, starved_jobs
from tests.sim.traces import Life
from trainshed.core.works import Work

_LIVES = 200
"""Lives without a service that are compared after each world."""
_QUICK_LIVES = 40
"""With `--quick`."""
_CROWDED = 20
"""One in this many worlds is crowded and tests starvation."""
_LINES = 80
_WORLD_TIMEOUT = 30
"""Seconds of real time. A world normally takes a tenth of one."""


def main() -> int:
    options = _options()
    if options.only is not None:
        return _show(_world(options.only))
    until = time.monotonic() + options.minutes * 60
    total, seed = Counter[str](), options.seed
    while time.monotonic() < until and seed - options.seed != options.worlds:
        lived = _simulate(_world(seed))
        if lived.wrong:
            print(f"seed {seed}: {lived.wrong[0].splitlines()[0]}", flush=True)
            if not options.quick:
                print("looking for a shorter story …", flush=True)
                _show(_shortest(_world(seed), by=time.monotonic() + 120))
            print(f"seeds {options.seed} to {seed}: {_format_tally(total)}")
            return 1
        total += lived.tally
        for life in range(seed * _LIVES, seed * _LIVES + (_QUICK_LIVES if options.quick else _LIVES)):
            rules = draw_operator_rules(life)
            judge = Life(life, operator_rules=rules).live()
            total["lives compared"] += 1
            if judge.differences:
                print(f"life {life} in {rules}:\n{judge.history_text()}")
                return 1
        seed += 1
    print(f"seeds {options.seed} to {seed - 1}: {_format_tally(total)}")
    return 0


def _format_tally(tally: Counter[str]) -> str:
    return ", ".join(f"{what} {count}" for what, count in tally.most_common())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.sim.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int)
    parser.add_argument("--worlds", type=int, default=-1)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def _world(seed: int) -> Scenario:
    return scenario(seed) if seed % _CROWDED else crowded_scenario(seed)


class Endless(SystemExit):
    """A world takes far too long."""


def _give_up(*_: object) -> None:
    raise Endless(f"not over after {_WORLD_TIMEOUT} s of real time")


def _simulate(world: Scenario) -> Simulation:
    made = Simulation(world)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(_WORLD_TIMEOUT)
    try:
        made.run()
        if world.is_crowd and not made.wrong:
            books, patience = made.books, world.policy.patience
            books.wrong += starved_jobs(books.jobs, books.admissions, patience)
        return made
    except (Exception, Endless) as failure:  # any error is a finding of this world
        trace = "".join(traceback.format_exception(failure)[-12:])
        at = made.clock.now / SECOND
        made.books.wrong.append(f"at {at:.3f} s the run failed: {failure!r}\n{trace}")
        return made
    finally:
        signal.alarm(0)


def _show(world: Scenario) -> int:
    """Print a world and its violations, starting with the end of each history."""
    lived = _simulate(world)
    print(f"seed {world.seed}: {len(world.requests)} requests, {len(world.planned_faults)} planned faults")
    if lived.wrong:
        print(f"{world.policy}, {world.operator_rules}, {world.delays}")
        for request in world.requests:
            print(f"{request.at / SECOND:14.3f}  {_short(request)}")
        for planned_fault in world.planned_faults:
            print(f"{planned_fault.at / SECOND:14.3f}  {planned_fault}")
        print(f"crashes: commits {world.crash_commits}, at {world.crash_times}")
    for wrong in lived.wrong:
        lines = wrong.splitlines()
        print("\n".join(lines[:1] + (["…"] if len(lines) > _LINES else []) + lines[1:][-_LINES:]))
    print(_format_tally(lived.tally))
    return 1 if lived.wrong else 0


def _short(request: object) -> str:
    if isinstance(request, Submit):
        pools = ", ".join(f"{p.replica_count} {p.machine.type}" for p in request.job.spec.pools)
        return f"Submit({request.job.uid}: {pools}; {request.job.spec.scheduling})"
    if isinstance(request, SubmitParent):
        return f"SubmitParent({', '.join(f'{type(w).__name__} {w.uid}' for w in request.works)})"
    return str(request)


def _submitted_works(request: object) -> tuple[Work, ...]:
    if isinstance(request, Submit):
        return (request.job,)
    return request.works if isinstance(request, SubmitParent) else ()


def _shortest(world: Scenario, by: float) -> Scenario:
    """Return a smaller world that still violates a rule."""
    shrinking = True
    while shrinking and time.monotonic() < by:
        shrinking = False
        for smaller in _smaller(world):
            if time.monotonic() > by:
                break
            if _simulate(smaller).wrong:
                world, shrinking = smaller, True
                break
    return world


def _smaller(world: Scenario) -> Iterator[Scenario]:
    """Remove halves first, then single elements."""
    yield replace(world, crash_times=(), crash_commits=())
    for size in (8, 4, 2, 1):
        for field in ("requests", "planned_faults", "crash_times", "crash_commits"):
            held = getattr(world, field)
            for start in range(0, len(held), size):
                left = held[:start] + held[start + size :]
                if field == "requests":
                    submitted = {work.uid for r in left for work in _submitted_works(r)}
                    left = tuple(r for r in left if getattr(r, "uid", None) in {None, *submitted})
                if len(left) < len(held):
                    yield replace(world, **{field: left})


if __name__ == "__main__":
    sys.exit(main())
