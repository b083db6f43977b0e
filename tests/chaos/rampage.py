"""What a chaos run is asked to do, and the killing of the service: when, whom, how often. Seeded."""

import contextlib
import os
import random
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tests.chaos.deeds import Deeds
from tests.chaos.plans import JobPlan, Pace
from tests.chaos.victim import Victim
from tests.e2e.processes import children

_VICTIMS: Final = ("service", "zygote", "both", "buckets", "stop")
_SHARES: Final = (52, 20, 20, 5, 3)


@dataclass(frozen=True, slots=True)
class Options:
    """`minutes`: about how long the kills go on (0 = one about every second). `keep`: leave the directory behind even
    if all is well. `replicas`: how many run at once, so that some jobs wait in the queue. `nodes`: if there are several,
    they are drained at random. `strict`: nodes have room for as many replicas, and no more. `at_ends`: each kill is of
    service and zygote, in the moment in which a program ends."""

    jobs: int
    kills: int
    seed: int
    pace: Pace
    minutes: float = 0.0
    kinds: tuple[str, ...] = ()
    replicas: int = 24
    nodes: int = 1
    strict: bool = False
    at_ends: bool = False
    keep: bool = False


@dataclass
class Kills:
    """What was killed: by victim; how many kills came before the service served; and how often it was stopped by
    SIGTERM instead."""

    by_victim: Counter[str]
    early: int = 0
    stops: int = 0

    @property
    def total(self) -> int:
        return sum(self.by_victim.values())


def rampage(
    options: Options, victim: Victim, deeds: Deeds, plans: list[JobPlan], kills: Kills
) -> None:
    """Submit the jobs and kill, both evenly spread; in the end the service is up. Raises RuntimeError if it is not."""
    chance = random.Random(options.seed + 1)
    waiting = iter(plans)
    submitted = 0
    while kills.total < options.kills:
        victim.start()
        while submitted * options.kills <= kills.total * len(plans) and submitted < len(plans):
            deeds.submit(next(waiting))
            submitted += 1
        is_early = _wait_for_the_moment(options, victim, deeds, chance)
        who = chance.choices(_VICTIMS, _SHARES)[0]
        _kill("both" if options.at_ends else who, is_early, victim, deeds, kills)
        if not victim.pid and chance.random() < 0.1:
            (victim.data / "service.json").unlink(missing_ok=True)
        reap(victim)
    for plan in waiting:
        deeds.submit(plan)
    for _ in range(3):
        victim.start()
        if victim.wait():
            break
    else:
        raise RuntimeError("the service does not come up any more; see service.log")
    deeds.settle()


def _wait_for_the_moment(
    options: Options, victim: Victim, deeds: Deeds, chance: random.Random
) -> bool:
    """Some kills come before the service serves, which is returned, some while a request or a death has just reached it,
    or is about to."""
    mean = options.minutes * 60 / options.kills if options.minutes else 0.8
    if options.at_ends:
        if victim.wait():
            deeds.ending.clear()
            deeds.ending.wait(5)
            time.sleep(chance.uniform(0, 0.01))
        return False
    how = chance.choices(("early", "ambush", "any moment"), (12, 38, 50))[0]
    if how == "early":
        time.sleep(chance.uniform(0, 0.5))
    elif victim.wait() and how == "ambush":
        moment = chance.choice((deeds.stirred, deeds.stirred, deeds.ending))
        moment.clear()
        moment.wait(2 * mean)
        time.sleep(chance.uniform(0, 0.02))
    else:
        time.sleep(min(chance.expovariate(1 / mean), 5 * mean))
    return how == "early"


def _kill(who: str, is_early: bool, victim: Victim, deeds: Deeds, kills: Kills) -> None:
    """SIGKILL, or now and then the SIGTERM of an operator, which is not counted as a kill."""
    if who == "stop":
        kills.stops += victim.stop()
        return
    if who != "service" and not victim.kill_children(who != "buckets"):
        who = "service" if who == "both" else ""
    if who in ("service", "both"):
        kills.early += is_early
        victim.kill()
    if who:
        kills.by_victim[who] += 1
        deeds.tell("killed", victim=who, start=victim.starts)


def reap(victim: Victim) -> None:
    """Take note of those that a killed service left behind and that have ended, as init would."""
    for pid in children(os.getpid()):
        if pid != victim.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
