"""The frameworks of the runtimes with `preloads` behave the same in programs that start warm and
cold (spec/program#warm-starts)."""

import json
import time
from pathlib import Path

import pytest

from tests.contract.engines import conftest
from tests.contract.engines.conftest import EngineHarness
from tests.contract.engines.warm import framework_programs
from tests.contract.engines.warm.runtimes import Runtime
from tests.contract.engines.warm.warm_starts import differences, outcome, prepare_preloader, start
from tests.e2e.running import CACHE
from trainshed.runtimes.families import FAMILIES, Sheet, parse_minor
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.inventory import Inventory
from trainshed.runtimes.prefix import Prefix, derive_prefix, write_template

pytestmark = pytest.mark.soak


class FrameworkRuntime(Runtime):
    """The newest runtime of a family, built like the service does, with the programs in a layer."""

    def __init__(self, place: Path, sheet: Sheet) -> None:
        built = Inventory(CACHE, now=time.time_ns).build(sheet.family, print)
        minor = parse_minor(built.python)
        assert minor is not None and built.built is not None
        interpreter = Interpreters().get(minor)
        assert interpreter is not None
        base = Prefix(built.built.resolve(), built.python)
        layer = derive_prefix(place / "layer", base, interpreter)
        super().__init__(base, layer, interpreter)
        (layer.site / "none.py").touch()
        name = sheet.family.upper().replace("-", "_")
        for program in ("TRAINS", "DRAWN"):
            text = getattr(framework_programs, f"{name}_{program}")
            (layer.site / f"{program.lower()}.py").write_text(text)
        write_template(layer, layer)


@pytest.mark.parametrize(
    "sheet", [sheet for sheet in FAMILIES if sheet.preloads], ids=lambda sheet: sheet.family
)
async def test_framework_behaves_the_same_after_a_warm_start(
    harness: EngineHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sheet: Sheet
) -> None:
    # A cold start took 18 s on a busy machine.
    monkeypatch.setattr(conftest, "EVENT_TIMEOUT", 180.0)
    runtime = FrameworkRuntime(tmp_path, sheet)
    notice = await prepare_preloader(harness, runtime, *sheet.preloads, pause=1.0)
    assert notice.startswith("started warm: ") and sheet.preloads[-1] in notice, notice
    warm = runtime.warm(*sheet.preloads)
    cold_outcome, warm_outcome = [
        await outcome(harness, await start(harness, runtime, "trains", warm=how)) for how in (None, warm)
    ]
    assert cold_outcome.exit_code == 1 and cold_outcome.output, cold_outcome
    assert warm_outcome == cold_outcome, differences(cold_outcome, warm_outcome)
    drawn: list[tuple[object, ...]] = []
    for _ in range(2):
        uid = await start(harness, runtime, "drawn", warm=warm)
        await harness.end(uid)
        # TensorFlow prints messages about the CPU first.
        shown = [str(line["m"]) for line in harness.log(uid) if line["s"] == "o"]
        drawn.append(tuple(json.loads(shown[-1])))
    assert all(first != other for first, other in zip(*drawn, strict=True)), drawn
