"""What is seen of programs that begin in forks of a preloader (spec/program#warm-starts) is what is seen of
programs in interpreters of their own."""

import json

from tests.contract.engines.conftest import House
from tests.contract.engines.test_autopsies import HOUR, look, weighed
from tests.contract.engines.test_terminals import shown
from tests.contract.engines.warm.programs import FILES, PACKED, RUN, SHORT, SHORT_FILES
from tests.contract.engines.warm.running import (
    FILE,
    WARM,
    both_ways,
    differences,
    how_it_began,
    preloaded,
    start,
)
from tests.contract.engines.warm.runtimes import ToyRuntime
from tests.soaks import SOAKS


async def test_a_warm_program_is_seen_as_a_cold_one_is(house: House, runtime: ToyRuntime) -> None:
    """A module, a file, and what `trainshed run` packs."""
    assert await preloaded(house, runtime) == WARM
    different = {
        module: differences(*await both_ways(house, runtime, module, *arguments))
        for module, arguments in (RUN if SOAKS else SHORT).items()
    }
    for name in FILES if SOAKS else SHORT_FILES:
        path = str(runtime.layer.site / f"{name}.py")
        different[name] = differences(*await both_ways(house, runtime, FILE, path, "a b"))
    assert not any(different.values()), json.dumps(different)

    layer, module = runtime.packed(PACKED, "task.py")
    cold, warm = await both_ways(house, runtime, module, "a b", prefix=layer)
    assert "ValueError: beside" in cold.errors, cold
    assert warm == cold, differences(cold, warm)

    layer, module = runtime.packed({"go.sh": "echo $0\n"}, "go.sh")
    uid = await start(house, runtime, module, warm=runtime.warm(), prefix=layer)
    assert await how_it_began(house, uid) == "started cold: it is a shell script"
    assert house.texts(uid) == ["go.sh"]

    layer, module = runtime.packed({"own.py": "import platform", "platform.py": ""}, "own.py")
    uid = await start(house, runtime, module, warm=runtime.warm(), prefix=layer)
    assert "platform would be imported from" in await how_it_began(house, uid)


async def test_what_was_random_is_random_in_each_program(house: House, runtime: ToyRuntime) -> None:
    await preloaded(house, runtime)
    drawn: list[tuple[float, float, int, str]] = []
    for _ in range(2):
        uid = await start(house, runtime, "drawn", warm=runtime.warm())
        await house.end(uid)
        drawn.append(tuple(json.loads(str(house.texts(uid)[0]))))
    (first, frozen, seed, key), (second, same, same_seed, other_key) = drawn
    assert first != second
    assert key != other_key
    # Told in docs/warm-starts.md: what an import has kept is shared, the seed of hashes as well.
    assert (frozen, seed) == (same, same_seed)


async def test_what_a_program_that_began_warm_left_can_be_looked_at(
    house: House, runtime: ToyRuntime
) -> None:
    await house.restart(warm_idle=60.0, rules={"autopsy_ttl": HOUR})
    await preloaded(house, runtime)
    uid = await start(house, runtime, "coded", warm=runtime.warm())
    assert await how_it_began(house, uid) == WARM
    await house.engine.release(uid, 1)
    house.forget(uid)
    await weighed(house, uid)
    assert await shown(await look(house, uid), b"echo $MINE") == "a $b\n"
