"""Causes the planned faults of a scenario in its world, each at its time."""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from tests.sim.engine.world import World
from tests.sim.scenario import HOUR, PlannedFault
from trainshed.engines.port import Fault


class FaultPlanner:
    """Schedules faults. `tally` counts events. `blocks` is called with the ns for which a fault may reduce
    capacity."""

    def __init__(
        self, world: World, dice: random.Random, tally: Counter[str], blocks: Callable[[int], None]
    ) -> None:
        self._world = world
        self._dice = dice
        self._tally = tally
        self._blocks = blocks

    def plan(self, planned_faults: Sequence[PlannedFault]) -> None:
        for planned_fault in planned_faults:
            self._world.clock.at(
                planned_fault.at, lambda planned_fault=planned_fault: self._cause(planned_fault)
            )

    def _cause(self, planned_fault: PlannedFault) -> None:
        world, node = self._world, planned_fault.node
        until = world.clock.now + planned_fault.lasts
        self._tally[planned_fault.kind] += 1
        self._blocks(planned_fault.lasts + HOUR)
        match planned_fault.kind:
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
                world.kill_zygote(planned_fault.lasts)
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
                raise AssertionError(planned_fault.kind)

    def _kill_program(self) -> None:
        world = self._world
        if not (running := world.running()):
            return
        sim_slot = self._dice.choice(running)
        if sim_slot.latest is not None and world.clock.now >= world.unavailable_until:
            world.inject(
                sim_slot.job_uid, sim_slot.attempt, sim_slot.replica, sim_slot.latest.number, Fault.KILL
            )
