"""Preloaders: which there are, whose programs begin in their forks, and what happens where that cannot be."""

import os
import signal

from tests.contract.engines.conftest import House
from tests.contract.engines.warm.running import WARM, how_it_began, preloaded, preloader_of, start
from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.waiting import until


async def test_what_cannot_be_forked_begins_cold_and_says_why(
    house: House, runtime: ToyRuntime
) -> None:
    causes = {
        "threaded": "their import starts 1 threads that a fork would lose",
        "open_file": "their import keeps files open that programs would share (/etc/hostname)",
        "absent": "importing absent failed (ModuleNotFoundError: No module named 'absent')",
        "dies": "the process that imported its frameworks ended with 3",
    }
    for module, why in causes.items():
        assert (await preloaded(house, runtime, module)).startswith(f"started cold: {why}")


async def test_who_cannot_have_a_preloaders_imports_begins_cold_and_is_told_why(
    house: House, runtime: ToyRuntime
) -> None:
    """A job whose packages have another version of a framework, which runs; variables that imports read;
    another project."""
    await preloaded(house, runtime)
    layer = runtime.overriding()
    uid = await start(house, runtime, "which", warm=runtime.warm(), prefix=layer)
    why = f"framework would be imported from {layer.site}, not from the runtime"
    assert await how_it_began(house, uid) == f"started cold: {why}"
    assert house.texts(uid) == ["2.0"]

    variables = {"OMP_NUM_THREADS": "as many", "LD_PRELOAD": "", "LD_BIND_NOW": "1"}
    uid = await start(house, runtime, "none", warm=runtime.warm(), environ=variables)
    why = "LD_BIND_NOW, OMP_NUM_THREADS: an import may read that, and the preloader imported without it"
    assert await how_it_began(house, uid) == f"started cold: {why}"

    uid = await start(house, runtime, "none", warm=runtime.warm(), project="two")
    assert "being imported for the programs that follow" in await how_it_began(house, uid)


async def test_a_killed_preloader_costs_no_program(house: House, runtime: ToyRuntime) -> None:
    await preloaded(house, runtime)
    runs = await start(house, runtime, "late", warm=runtime.warm())
    os.kill(stopped := preloader_of(), signal.SIGSTOP)
    uids = [await start(house, runtime, "coded", warm=runtime.warm()) for _ in range(3)]
    os.kill(stopped, signal.SIGKILL)
    assert (await house.exit(runs)).exit.exit_code == 0
    assert [(await house.exit(uid)).exit.exit_code for uid in uids] == [3] * len(uids)
    assert "started cold: " in " ".join([await how_it_began(house, uid) for uid in uids])
    await until(lambda: not house.engine._preloaders._found)  # pyright: ignore[reportPrivateUsage] - it is seen late
    assert await preloaded(house, runtime) == WARM


async def test_a_program_that_began_warm_lives_on_without_the_service(
    house: House, runtime: ToyRuntime
) -> None:
    await preloaded(house, runtime)
    uid = await start(house, runtime, "late", warm=runtime.warm())
    await house.started(uid)
    await house.restart()
    assert (await house.exit(uid)).exit.exit_code == 0
