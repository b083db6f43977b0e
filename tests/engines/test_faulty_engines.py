"""The conformance suite notices engines that do not do what the port asks of them: the toy engine, with one
fault each."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.engines.toy import ToyEngine, ToyLab
from trainshed.core.launch import LaunchPlan, Limits
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.conformance.lab import Lab
from trainshed.engines.conformance.suite import Conformance
from trainshed.engines.port import Capabilities, Slot, SlotRequest


class TellsNobody(ToyEngine):
    async def drop_reducers(
        self, job_uid: JobUid, attempt: int, reducers: Collection[ReplicaId]
    ) -> None:
        pass


class ForgetsLosses(ToyEngine):
    async def drop_reducers(
        self, job_uid: JobUid, attempt: int, reducers: Collection[ReplicaId]
    ) -> None:
        self._lost((job_uid, attempt)).unlink(missing_ok=True)
        await super().drop_reducers(job_uid, attempt, reducers)


class Unlimited(ToyEngine):
    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        await super().launch([replace(plan, limits=Limits()) for plan in plans])


class SaysThatItLimits(Unlimited):
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities(), enforced_memory=True)


class HasAnyNode(ToyEngine):
    async def allocate(
        self, job_uid: JobUid, attempt: int, requests: Sequence[SlotRequest]
    ) -> tuple[Slot, ...]:
        here = [replace(request, node="toy-0") for request in requests]
        return await super().allocate(job_uid, attempt, here)


class LaunchesTheRest(ToyEngine):
    async def launch(self, plans: Sequence[LaunchPlan]) -> None:
        for plan in plans:
            await super().launch([plan])


class StopsWhatRuns(ToyEngine):
    async def stop(self, job_uid: JobUid, attempt: int, grace: int) -> None:
        for place in self._gangs.get((job_uid, attempt), {}).values():
            if place.incarnation:
                self._stop(place, place.incarnation, grace)


class FaultyLab(ToyLab):
    def __init__(self, directory: Path, kind: type[ToyEngine], patience: float) -> None:
        super().__init__(directory)
        self._kind = kind
        self.patience = patience

    def engine(self) -> ToyEngine:
        return self._kind(self._directory)


@pytest.mark.parametrize(
    ("kind", "test", "noticed"),
    [
        (TellsNobody, "programs_are_told_which_reducers_are_lost", "in vain for the end"),
        (ForgetsLosses, "programs_are_told_which_reducers_are_lost", "in vain for the end"),
        (Unlimited, "a_program_that_does_nothing_any_more_is_ended", "in vain for the end"),
        (HasAnyNode, "a_node_that_is_not_there_is_refused_to_the_whole_gang", "LaunchRejected"),
        (LaunchesTheRest, "without_a_slot_nothing_is_launched", "all of them or none"),
        (StopsWhatRuns, "a_stop_reports_the_latest_incarnation_of_each_replica", "in vain for"),
    ],
)
def test_a_fault_is_noticed(kind: type[ToyEngine], test: str, noticed: str, tmp_path: Path) -> None:
    notices(FaultyLab(tmp_path, kind, patience=3.0), test, noticed)


def test_a_limit_that_is_declared_and_does_not_hold_is_noticed(tmp_path: Path) -> None:
    """Soon, because its program takes half a gigabyte a second."""
    lab = FaultyLab(tmp_path, SaysThatItLimits, patience=0.5)
    notices(lab, "a_program_that_takes_too_much_memory_is_known_for_it", "in vain for the end")


def notices(lab: Lab, test: str, noticed: str) -> None:
    run: Callable[[Lab], None] = getattr(Conformance(), f"test_{test}")
    with pytest.raises((AssertionError, pytest.fail.Exception), match=noticed):
        run(lab)
