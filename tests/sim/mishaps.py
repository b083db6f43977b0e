"""Causes the faults of a scenario in its world, each at its time."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from tests.sim.engine.world import World
from tests.sim.scenario import HOUR, Mishap
from trainshed.engines.port import Fault


class Mishaps:
    """`tally`: counts events. `blocks`: called with the ns for which a fault may reduce capacity."""

    def __init__(
        self, world: World, dice: random.Random, tally: Counter[str], blocks: Callable[[int], None]
    ) -> None:
        self._world = world
        self._dice = dice
        self._tally = tally
        self._blocks = blocks

    def plan(self, mishaps: Sequence[Mishap]) -> None:
        for mishap in mishaps:
            self._world.clock.at(mishap.at, lambda mishap=mishap: self._befall(mishap))

    def _befall(self, mishap: Mishap) -> None:
        world, node = self._world, mishap.node
        until = world.clock.now + mishap.lasts
        self._tally[mishap.kind] += 1
        self._blocks(mishap.lasts + HOUR)
        match mishap.kind:
            case "die":
                world.die(node)
                world.clock.at(until, lambda: world.come_back(node))
            case "cut_off":
                world.cut_off(node)
                world.clock.at(until, lambda: world.come_back(node))
            case "drain":
                world.drain(node)
                world.clock.at(until, lambda: world.drain(node, draining=False))
            case "kill_zygote":
                world.kill_zygote(mishap.lasts)
            case "kill_shim":
                if running := world.running():
                    world.kill_shim(self._dice.choice(running))
            case "kill_program":
                self._kill_program()
            case "refuse":
                world.refuse_launches += 1
            case "fail":
                world.fail(until)
            case _:
                raise AssertionError(mishap.kind)

    def _kill_program(self) -> None:
        world = self._world
        if not (running := world.running()):
            return
        sim_slot = self._dice.choice(running)
        if sim_slot.latest is not None and world.clock.now >= world.unavailable_until:
            world.inject(
                sim_slot.job_uid,
                sim_slot.attempt,
                sim_slot.replica,
                sim_slot.latest.number,
                Fault.KILL,
            )
