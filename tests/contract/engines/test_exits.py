"""How programs end and how the end is recorded (spec/failures#user-code). Output of programs, and
lines that the service adds to it (spec/logs)."""

import json
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, House
from trainshed.core.launch import Software
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.engines.port import EngineUnavailable


async def test_missing_command_exits_with_127(house: House) -> None:
    uid = await house.run("no-such-command", environ=(("PATH", "/nowhere"),))
    end = await house.exit(uid)
    assert end.exit.exit_code == 127
    text = str(house.texts(uid)[-1])
    assert "no-such-command" in text
    assert "/nowhere" in text
    uid = await house.run("/no/such/file")
    assert (await house.exit(uid)).exit.exit_code == 127
    text = str(house.texts(uid)[-1])
    assert text.startswith("/no/such/file: ")
    assert "looked in" not in text
    uid = await house.run("", "argument")
    assert (await house.exit(uid)).exit.exit_code == 127
    assert str(house.texts(uid)[-1]).startswith("'': command not found")
    uid = await house.run("/etc/passwd")
    assert (await house.exit(uid)).exit.exit_code == 126


async def test_login_shell_has_the_programs_path(house: House, tmp_path: Path) -> None:
    """/etc/profile sets a PATH without any framework's Python."""
    paths = ("PATH", f"/usr/bin:/bin:{tmp_path}/it's mine")
    for shell in ("sh", "bash"):
        uid = await house.run(shell, "-lc", "echo $PATH", environ=(paths,))
        await house.exit(uid)
        assert str(house.texts(uid)[-1]).endswith(paths[1]), shell


async def test_long_command_line_is_passed_completely(house: House) -> None:
    """The order reaches the main process in pieces (spec/invariants#shims)."""
    for size in (40_000, 80_000, 130_000):
        uid = await house.run("sh", "-c", "echo $#", "sh", "x" * size, "y" * size)
        assert (await house.exit(uid)).exit.exit_code == 0
        assert house.texts(uid)[-1] == "2"


async def test_failed_start_is_reported_as_a_service_failure(house: House) -> None:
    """spec/failures#service-failures: the service itself failed, and a restarted service reports
    the same."""
    # Levels with a view of their own need the bucket directory. The other levels copy the template.
    uid = await house.run(
        "true", buckets=(("odd", "/dev/null/here"),), software=Software(template="/nowhere/here")
    )
    end = await house.end(uid)
    assert isinstance(end, ReplicaLost) and end.by_service
    assert "/dev/null/here" in end.cause or "/nowhere/here" in end.cause
    await house.restart()
    assert await house.end(uid) == end


async def test_log_distinguishes_stdout_and_stderr(house: House) -> None:
    uid = await house.run("sh", "-c", "echo out; echo err >&2; printf last")
    await house.exit(uid)
    lines = [(line["s"], line["m"]) for line in house.log(uid)]
    assert sorted(lines) == [("e", "err"), ("o", "last"), ("o", "out")]


async def test_log_contains_output_of_children_after_the_main_process(house: House) -> None:
    until_up = "until [ -e up ]; do sleep 0.01; done"
    script = f"(echo child; : >up; exec sleep 60) & echo main; {until_up}"
    uid = await house.run("sh", "-c", script)
    end = await house.exit(uid)
    assert sorted(map(str, house.texts(uid))) == ["child", "main"]
    assert end.exit.log_lines == 2


async def test_lines_written_by_the_service_appear_in_the_replicas_log(house: House) -> None:
    uid = await house.python("import time; time.sleep(60)")
    await house.started(uid)
    lines = [json.dumps({"severity": "ERROR", "message": "x" * 9000})] * 20
    await house.engine.write_log(uid, 1, PRIMARY, [*lines, "y" * 100_000, "last"])
    assert house.texts(uid)[-1] == "last"
    assert house.texts(uid).count(lines[0]) == 20
    # Like a printed line, a written line is split into parts of limited length.
    parts = [text for text in map(str, house.texts(uid)) if text.startswith("y")]
    assert len(parts) > 1
    assert "".join(parts) == "y" * 100_000
    with pytest.raises(EngineUnavailable, match="ended"):
        await house.engine.write_log(uid, 2, PRIMARY, ["nobody"])
