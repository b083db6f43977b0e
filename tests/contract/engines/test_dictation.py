"""Lines that a program says to the service stand in its own log, without what must not be written down."""

import json

import pytest

from tests.contract.engines.conftest import PRIMARY, House, Run
from trainshed.engines.port import EngineUnavailable


def test_dictated_lines_stand_beside_what_the_program_prints(house: Run) -> None:
    async def test(house: House) -> None:
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

    house(test)
