"""What is kept where each replica has a place of its own, as in Pods: for attempts of the same kind alone,
and with nothing left in it of the one before."""

import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.engines.remote_lab import RemoteLab
from tests.ports import free_port
from trainshed.core.names import JobUid
from trainshed.engines.conformance.lab import Program
from trainshed.engines.conformance.stage import (
    PRIMARY,
    SECOND_REPLICA,
    Stage,
    requests_for,
    staged,
)
from trainshed.engines.port import EngineUnavailable, SlotRequest
from trainshed.engines.remote import slots

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")

SHORT = 1.0
"""Seconds of a lease."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """All that each agent has for itself."""
    (tmp_path / "place/tmp").mkdir(parents=True)
    (tmp_path / "place/etc").mkdir()
    (tmp_path / "place/etc/motd").write_text("of the image")
    return tmp_path / "place"


@pytest.fixture
def lab(tmp_path: Path, place: Path) -> RemoteLab:
    return RemoteLab(tmp_path, free_port(), keep=600.0, apart=True, alone=str(place))


def held(stage: Stage) -> dict[str, dict[str, int]]:
    assert isinstance(stage.lab, RemoteLab)
    return stage.lab.held()


async def hold(stage: Stage, uid: JobUid, *requests: SlotRequest) -> None:
    """As `Stage.allocate` does, but as it is asked for."""
    while True:
        try:
            await stage.engine.allocate(uid, 1, requests)
        except EngineUnavailable:
            await stage.lab.pass_time()
        else:
            return


async def request(stage: Stage, uid: JobUid) -> SlotRequest:
    [found] = requests_for(uid, (await stage.nodes())[0], PRIMARY)
    return replace(found, project="ours", service_account="jobs@ours")


async def over(stage: Stage, program: Program, *written: Path) -> JobUid:
    """A job of one replica, until it has been given back. `written`: files that are, while it has its
    place."""
    uid = stage.job()
    await hold(stage, uid, await request(stage, uid))
    await stage.launch(stage.plan(uid, program))
    await stage.exited(uid)
    for path in written:
        path.write_text("left")
    await stage.engine.release(uid, 1)
    return uid


class TestAKeptPod:
    @staged
    async def test_the_next_job_of_the_project_begins_there(self, stage: Stage) -> None:
        first = await over(stage, Program(prints=1))
        before = held(stage)
        second = await over(stage, Program(prints=2))
        assert before and held(stage) == before
        assert [len(stage.lines(uid)) for uid in (first, second)] == [1, 2]

    @staged
    async def test_a_gang_goes_on_with_all_of_another_ones_places(self, stage: Stage) -> None:
        gang = (PRIMARY, SECOND_REPLICA)
        for _ in range(2):
            uid = stage.job()
            await stage.allocate(uid, *gang)
            before = held(stage)
            await stage.launch(*(stage.plan(uid, Program(prints=1), one) for one in gang))
            for one in gang:
                await stage.exited(uid, one)
            await stage.engine.release(uid, 1)
            stage.forget(uid)
        assert len(before) == 2 and held(stage) == before

    @staged
    async def test_it_stays_kept_though_no_attempt_has_it(self, stage: Stage) -> None:
        slots_round, slots._ROUND = slots._ROUND, 0.05
        try:
            await stage.restart()
            await over(stage, Program())
            before = held(stage)
            await stage.for_a_while()
            assert before and held(stage) == before
        finally:
            slots._ROUND = slots_round

    @staged
    async def test_it_makes_way_for_whoever_waits_for_room(self, stage: Stage) -> None:
        assert isinstance(stage.lab, RemoteLab)
        await over(stage, Program())
        assert held(stage)
        stage.lab.be_short(short=True)
        await stage.until(lambda: not held(stage), "that it is given back")
        await over(stage, Program())
        await stage.until(lambda: not held(stage), "that it is not kept either")

    @staged
    async def test_it_is_not_kept_on_a_node_that_is_to_be_left(self, stage: Stage) -> None:
        assert isinstance(stage.lab, RemoteLab)
        await over(stage, Program())
        assert held(stage)
        stage.lab.drain((await stage.nodes())[0], draining=True)
        await stage.until(lambda: not held(stage), "that it is given back")


@pytest.mark.parametrize("other", ["project", "service_account", "image", "machine"])
def test_who_is_of_another_kind_does_not(lab: RemoteLab, other: str) -> None:
    async def body(_: object, stage: Stage) -> None:
        await over(stage, Program())
        before = held(stage)
        uid = stage.job()
        await hold(stage, uid, replace(await request(stage, uid), **{other: "another"}))
        assert len(before) == 1 and held(stage).keys() > before.keys()
        await stage.engine.release(uid, 1)

    staged(body)(None, lab)


def test_nothing_of_the_job_before_is_there(lab: RemoteLab, place: Path) -> None:
    async def body(_: object, stage: Stage) -> None:
        child = f"trainshed-{os.getpid()}-stays"
        first = await over(stage, Program(prints=1, child=child), place / "tmp/notes")
        before = held(stage)
        assert before and not stage.lab.leftovers(child)
        assert not list((place / "tmp").iterdir())
        assert isinstance(stage.lab, RemoteLab)
        [directory] = stage.lab.agents_directories()
        assert not [one for one in directory.rglob(f"{first}*") if ".place" not in one.name]
        await over(stage, Program(prints=1))
        assert held(stage) == before

    staged(body)(None, lab)


@pytest.mark.parametrize("name", ["etc/motd", "etc/added"])
def test_a_place_that_was_changed_is_not_kept(lab: RemoteLab, place: Path, name: str) -> None:
    async def body(_: object, stage: Stage) -> None:
        await over(stage, Program(), place / name)
        assert not held(stage)

    staged(body)(None, lab)


def test_it_waits_for_longer_than_an_agent_lives_without_its_service(tmp_path: Path) -> None:
    async def body(_: object, stage: Stage) -> None:
        await over(stage, Program())
        before = held(stage)
        until = time.monotonic() + 3 * SHORT
        await stage.until(lambda: time.monotonic() > until, "the end of a lease")
        await over(stage, Program(prints=1))
        assert before and held(stage) == before

    (tmp_path / "place").mkdir()
    alone = str(tmp_path / "place")
    lab = RemoteLab(tmp_path, free_port(), keep=600.0, apart=True, alone=alone, lease=SHORT)
    staged(body)(None, lab)
