"""The load of a chaos run, and the kills of the service: time, target and count. Seeded."""

import contextlib
import http.client
import os
import random
import time
from dataclasses import dataclass
from typing import Final

from tests.chaos.actions import JobActions
from tests.chaos.disk import SmallDisk
from tests.chaos.plans import JobPlan, Pace
from tests.chaos.tuning import Tunings
from tests.chaos.victim import RequestRejected, Span, Victim
from tests.e2e.processes import children

_VICTIMS: Final = ("service", "zygote", "both", "buckets", "stop")
_WEIGHTS: Final = (52, 20, 20, 5, 3)
FAULTS: Final = ("advisor", "hang", "disk")
"""Faults at random times: the advisor is killed, the zygote stopped, the disk filled."""
_FAULTS_PER_KIND: Final = 3
"""Number of faults of each kind."""
_MEAN_KILL_INTERVAL: Final = 0.8
"""Seconds between two kills."""
_ZYGOTE_REPLACEMENT_TIMEOUT: Final = 120.0
"""Seconds within which a hung zygote must be replaced while jobs wait for a start."""
_RESPONSE_TIMEOUT: Final = 3.0
"""Seconds within which the service must answer in the meantime."""


@dataclass(frozen=True, slots=True)
class Options:
    """`nodes`: several nodes are drained at random. `strict`: nodes have capacity for exactly the replicas
    that may run at once. `at_ends`: each kill hits service and zygote while a program exits. `faults`:
    selected `FAULTS`. `tunings`: number of additional tuning jobs.
    """

    jobs: int
    kills: int
    seed: int
    pace: Pace
    kinds: tuple[str, ...] = ()
    nodes: int = 1
    strict: bool = False
    at_ends: bool = False
    faults: tuple[str, ...] = FAULTS
    tunings: int = 2


def run_load(
    options: Options,
    victim: Victim,
    actions: JobActions,
    plans: list[JobPlan],
    *,
    tunings: Tunings,
    disk: SmallDisk | None,
) -> None:
    """Submit the jobs and kill the service at evenly spread times. At the end the service runs. Raises
    RuntimeError if it does not."""
    chance = random.Random(options.seed + 1)
    waiting = iter(plans)
    submitted = tuned = kills = 0
    faults = _moments(options, chance)
    while kills < options.kills:
        victim.start()
        while tuned < len(tunings.all) and tuned * options.kills <= kills * len(tunings.all):
            tunings.submit(tuned)
            tuned += 1
        while submitted * options.kills <= kills * len(plans) and submitted < len(plans):
            actions.submit(next(waiting))
            submitted += 1
        while due := faults.get(kills):
            kills += _cause_fault(due.pop(), victim, actions, disk, chance)
        _wait_for_kill_time(options, victim, actions, chance)
        who = chance.choices(_VICTIMS, _WEIGHTS)[0]
        kills += _kill("both" if options.at_ends else who, victim, actions)
        if not victim.pid and chance.random() < 0.1:
            (victim.data / "service.json").unlink(missing_ok=True)
        reap(victim)
    for plan in waiting:
        actions.submit(plan)
    for number in range(tuned, len(tunings.all)):
        tunings.submit(number)
    for _ in range(3):
        victim.start()
        if victim.wait():
            break
    else:
        raise RuntimeError("the service does not come up any more; see service.log")
    actions.settle()
    tunings.close()


def _moments(options: Options, chance: random.Random) -> dict[int, list[str]]:
    """Draw the kills after which faults occur. None occur at the very end, when few starts remain."""
    moments: dict[int, list[str]] = {}
    for fault in sorted(options.faults) * _FAULTS_PER_KIND:
        moments.setdefault(chance.randrange(1, max(2, options.kills * 3 // 4)), []).append(fault)
    return moments


def _cause_fault(
    fault: str, victim: Victim, actions: JobActions, disk: SmallDisk | None, chance: random.Random
) -> bool:
    """Cause one of `FAULTS` while the service is up and not killed. Return whether a process was killed."""
    if not victim.wait():
        return False
    if fault == "advisor":
        return _kill_advisor(victim, actions, chance)
    if fault == "hang":
        _stop_zygote(victim, actions)
    elif disk is not None:
        actions.tell("disk filled", start=victim.starts)
        disk.fill()
        try:
            until = time.monotonic() + chance.uniform(1, 4)
            while time.monotonic() < until:
                _check_answers(victim)
                time.sleep(0.2)
        finally:
            disk.empty()
        actions.tell("disk emptied", start=victim.starts)
    return False


def _kill_advisor(victim: Victim, actions: JobActions, chance: random.Random) -> bool:
    """Wait for the advisor process, which only exists during the computation of a suggestion, and kill it."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        time.sleep(chance.uniform(0, 0.1))
        if victim.kill_children("advisor"):
            actions.tell("advisor killed", start=victim.starts)
            return True
    return False


def _stop_zygote(victim: Victim, actions: JobActions) -> None:
    """Stop the zygote, if it exists. A killed zygote is replaced at the next start of a program."""
    until = time.monotonic() + 5
    while not victim.stop_zygote():
        if time.monotonic() > until:
            return
        time.sleep(0.05)
    actions.tell("zygote stopped", start=victim.starts)
    began = time.time_ns()
    until = time.monotonic() + _ZYGOTE_REPLACEMENT_TIMEOUT
    while victim.waits_for_zygote and time.monotonic() < until:
        _check_answers(victim)
        time.sleep(0.2)
    victim.hangs.append(Span(began, time.time_ns()))
    if victim.waits_for_zygote:
        victim.faults.append(f"a zygote that hangs was not replaced within {_ZYGOTE_REPLACEMENT_TIMEOUT:g} s")


def _check_answers(victim: Victim) -> None:
    """Check that the service responds during a fault."""
    began = time.monotonic()
    try:
        victim.call("GET", "/trainshed/v1/nodes")
    except (RequestRejected, OSError, http.client.HTTPException) as failure:
        victim.faults.append(f"a look at the nodes failed: {failure}")
    if (took := time.monotonic() - began) > _RESPONSE_TIMEOUT:
        victim.faults.append(f"a look at the nodes took {took:.1f} s")


def _wait_for_kill_time(options: Options, victim: Victim, actions: JobActions, chance: random.Random) -> None:
    """Wait for the time of the next kill: before the service is ready, or close to a request or an exit."""
    if options.at_ends:
        if victim.wait():
            actions.ending.clear()
            actions.ending.wait(5)
            time.sleep(chance.uniform(0, 0.01))
        return
    how = chance.choices(("early", "ambush", "any moment"), (12, 38, 50))[0]
    if how == "early":
        time.sleep(chance.uniform(0, 0.5))
    elif victim.wait() and how == "ambush":
        moment = chance.choice((victim.stirred, victim.stirred, actions.ending))
        moment.clear()
        moment.wait(2 * _MEAN_KILL_INTERVAL)
        time.sleep(chance.uniform(0, 0.02))
    else:
        time.sleep(min(chance.expovariate(1 / _MEAN_KILL_INTERVAL), 5 * _MEAN_KILL_INTERVAL))


def _kill(who: str, victim: Victim, actions: JobActions) -> bool:
    """Send SIGKILL, or sometimes SIGTERM like an operator, which does not count as a kill. Return whether it
    was a kill.
    """
    if who == "stop":
        if victim.stop():
            actions.tell("service stopped", start=victim.starts)
        return False
    kind = "buckets" if who == "buckets" else "zygote"
    if who != "service" and not victim.kill_children(kind):
        who = "service" if who == "both" else ""
    if who in ("service", "both"):
        victim.kill()
    if who:
        actions.tell(f"{who} killed", start=victim.starts)
    return bool(who)


def reap(victim: Victim) -> None:
    """Reap exited children of killed services, like init."""
    for pid in children(os.getpid()):
        if pid != victim.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
