"""Forks that wait for programs before there are any, and programs that begin in forks without asking."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from pathlib import Path

from tests.contract.engines.conftest import House, Run
from tests.contract.engines.test_stock import children, guardians, until
from tests.contract.engines.warm.programs import PROGRAMS
from tests.contract.engines.warm.running import (
    FILE,
    MOST_IDLE,
    TEXT,
    WARM,
    both_ways,
    differences,
    how_it_began,
    is_forked,
    namespaced,
    preloaded,
    preloader_of,
    start,
    until_forked,
)
from tests.contract.engines.warm.runtimes import ToyRuntime
from trainshed.core import warm_start
from trainshed.engines.local.preloaders import Preloaders
from trainshed.replica.preloader import becoming
from trainshed.replica.system import unix_sockets


def count_waiting_forks(house: House) -> int:
    """Forks that wait with idle shims."""
    waiting = 0
    for shim in children(house.zygote()):
        with contextlib.suppress(OSError):
            for guardian in guardians(shim):
                names = [Path(f"/proc/{child}/comm").read_text() for child in children(guardian)]
                waiting += f"{becoming.WAITING}\n" in names
    return waiting


def test_forks_wait_for_programs_with_idle_shims(house: Run, runtime: ToyRuntime) -> None:
    @namespaced
    async def test(house: House) -> None:
        assert await preloaded(house, runtime) == WARM
        await until(lambda: count_waiting_forks(house) >= 2)
        # One that waits needs nothing of its preloader any more.
        stopped = preloader_of()
        os.kill(stopped, signal.SIGSTOP)
        uid = await start(house, runtime, "numbered", warm=runtime.warm())
        assert await how_it_began(house, uid) == WARM
        assert house.texts(uid) == ["3"]
        os.kill(stopped, signal.SIGCONT)

    house(test)


def test_who_connects_to_a_preloader_and_says_nothing_holds_nobody_up(
    house: Run, runtime: ToyRuntime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        assert await preloaded(house, runtime) == WARM
        made = preloader_of()
        (place,) = (
            each for each in house.data.rglob("*") if each.is_socket() and is_of(each, made)
        )
        with contextlib.ExitStack() as stack:
            for said in (b"", b"", b"{", b"nothing\n", b'{"namespaces": ["pid"]}\n'):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                unix_sockets.connect(connection, str(place))
                connection.sendall(said)
            for _ in range(MOST_IDLE + 2):
                assert await preloaded(house, runtime) == WARM
        assert preloader_of() == made

    house(test)


def is_of(place: Path, process: int) -> bool:
    """Whether this process listens there."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    inodes = {line[6] for line in lines if line[-1].endswith(place.name)}
    opened = Path(f"/proc/{process}/fd").iterdir()
    return bool(
        {f"socket:[{inode}]" for inode in inodes} & {str(each.readlink()) for each in opened}
    )


def test_of_a_fork_that_waited_in_vain_nothing_is_left(house: Run, runtime: ToyRuntime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        for _ in range(MOST_IDLE):
            await preloaded(house, runtime)
            await until(lambda: count_waiting_forks(house) >= 1)
            uid = await start(house, runtime, "alone", warm=None)
            await house.end(uid)
            assert house.texts(uid) == ["True"]

    house(test)


def test_forks_wait_though_a_cold_program_came_between(house: Run, runtime: ToyRuntime) -> None:
    @namespaced
    async def test(house: House) -> None:
        await preloaded(house, runtime)
        await until(lambda: count_waiting_forks(house) >= 1)
        uid = await start(house, runtime, "alone", warm=None)
        await house.end(uid)
        await until(lambda: count_waiting_forks(house) == len(children(house.zygote())) >= 6)

    house(test)


def test_a_program_that_asks_for_nothing_begins_in_an_interpreter_that_is_up_already(
    house: Run, runtime: ToyRuntime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        bare = runtime.warm_without_imports()
        assert not await is_forked(house, runtime)
        await until_forked(house, runtime)
        # What only frameworks read is nothing to it.
        assert await is_forked(house, runtime, OMP_NUM_THREADS="as many", CUDA_VISIBLE_DEVICES="0")
        assert not await is_forked(house, runtime, PYTHONOPTIMIZE="1")
        # One that hangs costs the programs that meet it a second, but for those that a fork waits for, and is
        # replaced.
        stopped = preloader_of()
        os.kill(stopped, signal.SIGSTOP)
        while await is_forked(house, runtime):
            pass
        await until_forked(house, runtime)
        assert preloader_of() != stopped
        cold, warm = await both_ways(house, runtime, "look", "a b", warm=bare, begun="")
        assert warm == cold, differences(cold, warm)

    house(test)


def test_nothing_is_imported_in_a_program_that_asks_for_nothing(
    house: Run, runtime: ToyRuntime
) -> None:
    @namespaced
    async def test(house: House) -> None:
        bare = runtime.warm_without_imports()
        await until_forked(house, runtime)
        different: dict[str, object] = {}
        for argv in (
            ("bare",),
            (FILE, str(runtime.layer.site / "bare.py")),
            (FILE, str(runtime.layer.site / "beside" / "first.py")),
            (TEXT, PROGRAMS["bare"]),
        ):
            found = await both_ways(house, runtime, *argv, warm=bare, begun="")
            different[argv[-1]] = differences(*found)
        assert not any(different.values()), json.dumps(different)

    house(test)


def test_of_programs_that_begin_at_once_no_more_are_forked_than_there_are_processors(
    runtime: ToyRuntime, tmp_path: Path
) -> None:
    """A fork that does not wait already takes a processor as long as a start, and waits for more
    processes."""

    async def test() -> None:
        preloaders = Preloaders(tmp_path, 60.0)
        template = str(runtime.base.template)
        argv = ("python3", "x.py")

        def is_forked() -> bool:
            asked = runtime.warm_without_imports()
            begins = preloaders.beginning(asked, "one", argv, template, warm_start.ENVIRONMENT)
            assert not begins.cold_because
            return bool(begins.preloader) and not begins.only_waiting

        for _ in range(400):
            if is_forked():
                break
            await asyncio.sleep(0.05)
        others = (os.cpu_count() or 1) - 1
        assert [is_forked() for _ in range(others + 1)] == [True] * others + [False]
        await preloaders.close()

    asyncio.run(test())
