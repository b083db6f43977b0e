"""What programs print, and lines that are written beside it (spec/logs)."""

import json

import pytest

from tests.contract.engines.conftest import PRIMARY, House
from trainshed.engines.port import EngineUnavailable


async def test_streams_are_told_apart(house: House) -> None:
    uid = await house.run("sh", "-c", "echo out; echo err >&2; printf last")
    await house.exit(uid)
    lines = [(line["s"], line["m"]) for line in house.log(uid)]
    assert sorted(lines) == [("e", "err"), ("o", "last"), ("o", "out")]


async def test_lines_of_children_that_outlive_the_main_process_are_kept(house: House) -> None:
    uid = await house.run("sh", "-c", "(echo child; exec sleep 60) & echo main; sleep 0.2")
    end = await house.exit(uid)
    assert sorted(map(str, house.texts(uid))) == ["child", "main"]
    assert end.exit.log_lines == 2


async def test_dictated_lines_stand_beside_what_the_program_prints(house: House) -> None:
    uid = await house.python("import time; time.sleep(60)")
    await house.started(uid)
    lines = [json.dumps({"severity": "ERROR", "message": "x" * 9000})] * 20
    await house.engine.write_log(uid, 1, PRIMARY, [*lines, "y" * 100_000, "last"])
    assert house.texts(uid)[-1] == "last"
    assert house.texts(uid).count(lines[0]) == 20
    # As of a line that is printed, no part of it is longer than others can be.
    parts = [text for text in map(str, house.texts(uid)) if text.startswith("y")]
    assert len(parts) > 1
    assert "".join(parts) == "y" * 100_000
    with pytest.raises(EngineUnavailable, match="over"):
        await house.engine.write_log(uid, 2, PRIMARY, ["nobody"])
