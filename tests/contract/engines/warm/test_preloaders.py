"""Preloaders: how they are selected, which programs start in their forks, and what happens if a
fork is impossible."""

import os
import signal

from tests.contract.engines.conftest import EngineHarness
from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.contract.engines.warm.warm_starts import (
    WARM,
    preloader_pid,
    prepare_preloader,
    start,
    start_notice,
)
from tests.waiting import until


async def test_module_that_cannot_be_preloaded_causes_a_cold_start(
    harness: EngineHarness, runtime: ToyRuntime
) -> None:
    causes = {
        "threaded": "importing the frameworks starts 1 threads that a fork would lose",
        "open_file": "importing the frameworks opens files that programs would share (/etc/hostname)",
        "absent": "importing absent failed (ModuleNotFoundError: No module named 'absent')",
        "dies": "the process that imported its frameworks ended with 3",
    }
    for module, why in causes.items():
        assert (await prepare_preloader(harness, runtime, module)).startswith(f"started cold: {why}")


async def test_job_whose_imports_differ_from_the_preloader_starts_cold_with_a_reason(
    harness: EngineHarness, runtime: ToyRuntime
) -> None:
    """The causes: packages of the job with another version of a framework, variables that imports
    read, and another project. The program runs cold in all cases."""
    await prepare_preloader(harness, runtime)
    layer = runtime.overriding()
    uid = await start(harness, runtime, "which", warm=runtime.warm(), prefix=layer)
    why = f"framework would be imported from {layer.site}, not from the runtime"
    assert await start_notice(harness, uid) == f"started cold: {why}"
    assert harness.texts(uid) == ["2.0"]

    variables = {"OMP_NUM_THREADS": "as many", "LD_PRELOAD": "", "LD_BIND_NOW": "1"}
    uid = await start(harness, runtime, "none", warm=runtime.warm(), environ=variables)
    why = "LD_BIND_NOW, OMP_NUM_THREADS: an import may read that, and the preloader imported without it"
    assert await start_notice(harness, uid) == f"started cold: {why}"

    uid = await start(harness, runtime, "none", warm=runtime.warm(), project="two")
    assert "being imported for the programs that follow" in await start_notice(harness, uid)


async def test_killed_preloader_does_not_affect_programs(harness: EngineHarness, runtime: ToyRuntime) -> None:
    await prepare_preloader(harness, runtime)
    runs = await start(harness, runtime, "late", warm=runtime.warm())
    os.kill(stopped := preloader_pid(), signal.SIGSTOP)
    uids = [await start(harness, runtime, "coded", warm=runtime.warm()) for _ in range(3)]
    os.kill(stopped, signal.SIGKILL)
    assert (await harness.exit(runs)).exit.exit_code == 0
    assert [(await harness.exit(uid)).exit.exit_code for uid in uids] == [3] * len(uids)
    assert "started cold: " in " ".join([await start_notice(harness, uid) for uid in uids])
    await until(lambda: not harness.engine._preloaders._found)  # pyright: ignore[reportPrivateUsage] - it is seen late
    assert await prepare_preloader(harness, runtime) == WARM


async def test_warm_program_survives_a_service_restart(harness: EngineHarness, runtime: ToyRuntime) -> None:
    await prepare_preloader(harness, runtime)
    uid = await start(harness, runtime, "late", warm=runtime.warm())
    await harness.wait_for_start(uid)
    await harness.restart()
    assert (await harness.exit(uid)).exit.exit_code == 0
