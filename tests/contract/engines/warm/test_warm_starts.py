"""A program that starts in a fork of a preloader behaves like one with its own interpreter
(spec/program#warm-starts)."""

import json

from tests.contract.engines.conftest import EngineHarness
from tests.contract.engines.test_autopsies import HOUR, measured_autopsy, open_shell
from tests.contract.engines.test_terminals import output_of
from tests.contract.engines.warm.programs import FILES, PACKED, RUN, SHORT, SHORT_FILES
from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.contract.engines.warm.warm_starts import (
    FILE,
    WARM,
    cold_and_warm,
    differences,
    prepare_preloader,
    start,
    start_notice,
)
from tests.soaks import SOAKS


async def test_program_has_the_same_outcome_after_a_warm_start_and_a_cold_start(
    harness: EngineHarness, runtime: ToyRuntime
) -> None:
    """The programs run as a module, as a file, and as packed by `trainshed run`."""
    assert await prepare_preloader(harness, runtime) == WARM
    different = {
        module: differences(*await cold_and_warm(harness, runtime, module, *arguments))
        for module, arguments in (RUN if SOAKS else SHORT).items()
    }
    for name in FILES if SOAKS else SHORT_FILES:
        path = str(runtime.layer.site / f"{name}.py")
        different[name] = differences(*await cold_and_warm(harness, runtime, FILE, path, "a b"))
    assert not any(different.values()), json.dumps(different)

    layer, module = runtime.pack_layer(PACKED, "task.py")
    cold, warm = await cold_and_warm(harness, runtime, module, "a b", prefix=layer)
    assert "ValueError: beside" in cold.errors, cold
    assert warm == cold, differences(cold, warm)

    layer, module = runtime.pack_layer({"go.sh": "echo $0\n"}, "go.sh")
    uid = await start(harness, runtime, module, warm=runtime.warm(), prefix=layer)
    assert await start_notice(harness, uid) == "started cold: the program is a shell script"
    assert harness.texts(uid) == ["go.sh"]

    layer, module = runtime.pack_layer({"own.py": "import platform", "platform.py": ""}, "own.py")
    uid = await start(harness, runtime, module, warm=runtime.warm(), prefix=layer)
    assert "platform would be imported from" in await start_notice(harness, uid)


async def test_programs_after_warm_starts_have_different_random_numbers(
    harness: EngineHarness, runtime: ToyRuntime
) -> None:
    await prepare_preloader(harness, runtime)
    drawn: list[tuple[float, float, int, str]] = []
    for _ in range(2):
        uid = await start(harness, runtime, "drawn", warm=runtime.warm())
        await harness.end(uid)
        drawn.append(tuple(json.loads(str(harness.texts(uid)[0]))))
    (first, frozen, seed, key), (second, same, same_seed, other_key) = drawn
    assert first != second
    assert key != other_key
    # docs/warm-starts.md: values that an import has stored are shared, including the hash seed.
    assert (frozen, seed) == (same, same_seed)


async def test_autopsy_of_a_warm_program_can_be_opened(harness: EngineHarness, runtime: ToyRuntime) -> None:
    await harness.restart(warm_idle=60.0, rules={"autopsy_ttl": HOUR})
    await prepare_preloader(harness, runtime)
    uid = await start(harness, runtime, "coded", warm=runtime.warm())
    assert await start_notice(harness, uid) == WARM
    await harness.engine.release(uid, 1)
    harness.forget(uid)
    await measured_autopsy(harness, uid)
    assert await output_of(await open_shell(harness, uid), b"echo $MINE") == "a $b\n"
