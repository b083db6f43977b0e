"""The frameworks of the runtimes that have `preloads`: in programs that begin warm they do what they do in
others (spec/program#warm-starts)."""

import json
import time
from pathlib import Path

import pytest

from tests.contract.engines import conftest, framework_programs
from tests.contract.engines.conftest import House, Run
from tests.contract.engines.test_warm_starts import (
    Runtime,
    differences,
    namespaced,
    outcome,
    preloaded,
    start,
)
from tests.e2e.running import CACHE
from trainshed.runtimes.families import PYTORCH, SCIKIT_LEARN, XGBOOST
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.inventory import Inventory
from trainshed.runtimes.prefix import Prefix, derive_prefix, write_template
from trainshed.runtimes.sheet import Sheet, parse_minor
from trainshed.runtimes.tensorflow.sheet import SHEET as TENSORFLOW

pytestmark = pytest.mark.soak


class FrameworkRuntime(Runtime):
    """The newest one of a family as the service builds it, with the programs in a layer."""

    def __init__(self, place: Path, sheet: Sheet, python: str) -> None:
        built = Inventory(CACHE, now=time.time_ns).build(sheet.family, print, python=python)
        minor = parse_minor(built.python)
        assert minor is not None and built.built is not None
        interpreter = Interpreters(CACHE / "interpreters.json").get(minor)
        assert interpreter is not None
        self.base = Prefix(built.built.resolve(), built.python)
        self.layer = derive_prefix(place / "layer", self.base, interpreter)
        (self.layer.site / "none.py").touch()
        name = sheet.family.upper().replace("-", "_")
        for program in ("TRAINS", "DRAWN"):
            text = getattr(framework_programs, f"{name}_{program}")
            (self.layer.site / f"{program.lower()}.py").write_text(text)
        write_template(self.layer, self.layer)
        self.places = interpreter.places


@pytest.mark.parametrize(
    ("sheet", "python"),
    [
        pytest.param(PYTORCH, "", id="pytorch"),
        pytest.param(SCIKIT_LEARN, "", id="scikit-learn"),
        pytest.param(XGBOOST, "", id="xgboost"),
        pytest.param(TENSORFLOW, "", id="tensorflow"),
    ],
)
def test_a_framework_does_the_same_in_warm_programs_and_draws_anew(
    house: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sheet: Sheet, python: str
) -> None:
    # Cold, it took 18 s on a busy machine.
    monkeypatch.setattr(conftest, "PATIENCE", 180.0)
    runtime = FrameworkRuntime(tmp_path, sheet, python)

    @namespaced
    async def test(house: House) -> None:
        begun = await preloaded(house, runtime, *sheet.preloads, pause=1.0)
        assert begun.startswith("started warm: ") and sheet.preloads[-1] in begun, begun
        warm = runtime.warm(*sheet.preloads)
        found = [
            await outcome(house, await start(house, runtime, "trains", warm=how))
            for how in (None, warm)
        ]
        assert found[0][0] == 1 and len(found[0][2]) > 0, found[0]
        assert found[1] == found[0], differences(found[0], found[1])
        drawn: list[tuple[object, ...]] = []
        for _ in range(2):
            uid = await start(house, runtime, "drawn", warm=warm)
            await house.end(uid)
            # TensorFlow talks of the processor first.
            shown = [str(line["m"]) for line in house.log(uid) if line["s"] == "o"]
            drawn.append(tuple(json.loads(shown[-1])))
        assert all(one != other for one, other in zip(*drawn, strict=True)), drawn

    house(test)
