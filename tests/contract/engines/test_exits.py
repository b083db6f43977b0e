"""How programs end and how the end is recorded (spec/failures#user-code). Output of programs, and
lines that the service adds to it (spec/logs)."""

import json
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, EngineHarness
from trainshed.core.launch import Software
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.engines.port import EngineUnavailable


async def test_missing_command_exits_with_127(harness: EngineHarness) -> None:
    uid = await harness.run("no-such-command", environ=(("PATH", "/nowhere"),))
    end = await harness.exit(uid)
    assert end.exit.exit_code == 127
    text = str(harness.texts(uid)[-1])
    assert "no-such-command" in text
    assert "/nowhere" in text
    uid = await harness.run("/no/such/file")
    assert (await harness.exit(uid)).exit.exit_code == 127
    text = str(harness.texts(uid)[-1])
    assert text.startswith("/no/such/file: ")
    assert "looked in" not in text
    uid = await harness.run("", "argument")
    assert (await harness.exit(uid)).exit.exit_code == 127
    assert str(harness.texts(uid)[-1]).startswith("'': command not found")
    uid = await harness.run("/etc/passwd")
    assert (await harness.exit(uid)).exit.exit_code == 126


async def test_login_shell_has_the_programs_path(harness: EngineHarness, tmp_path: Path) -> None:
    """/etc/profile sets a PATH without any framework's Python."""
    paths = ("PATH", f"/usr/bin:/bin:{tmp_path}/it's mine")
    for shell in ("sh", "bash"):
        uid = await harness.run(shell, "-lc", "echo $PATH", environ=(paths,))
        await harness.exit(uid)
        assert str(harness.texts(uid)[-1]).endswith(paths[1]), shell


async def test_long_command_line_is_passed_completely(harness: EngineHarness) -> None:
    """The order reaches the main process in pieces (spec/invariants#shims)."""
    for size in (40_000, 80_000, 130_000):
        uid = await harness.run("sh", "-c", "echo $#", "sh", "x" * size, "y" * size)
        assert (await harness.exit(uid)).exit.exit_code == 0
        assert harness.texts(uid)[-1] == "2"


async def test_failed_preparation_of_a_program_is_reported_as_a_service_failure(
    harness: EngineHarness,
) -> None:
    """spec/failures#service-failures: the service itself failed, and a restarted service reports the same."""
    # Levels with a view of their own need the bucket directory. The other levels copy the template.
    uid = await harness.run(
        "true", buckets=(("odd", "/dev/null/here"),), software=Software(template="/nowhere/here")
    )
    end = await harness.end(uid)
    assert isinstance(end, ReplicaLost) and end.by_service
    assert "/dev/null/here" in end.cause or "/nowhere/here" in end.cause
    await harness.restart()
    assert await harness.end(uid) == end


async def test_log_distinguishes_stdout_and_stderr(harness: EngineHarness) -> None:
    uid = await harness.run("sh", "-c", "echo out; echo err >&2; printf last")
    await harness.exit(uid)
    lines = [(line["s"], line["m"]) for line in harness.log(uid)]
    assert sorted(lines) == [("e", "err"), ("o", "last"), ("o", "out")]


async def test_log_contains_the_output_of_children_that_outlive_the_main_process(
    harness: EngineHarness,
) -> None:
    until_up = "until [ -e up ]; do sleep 0.01; done"
    script = f"(echo child; : >up; exec sleep 60) & echo main; {until_up}"
    uid = await harness.run("sh", "-c", script)
    end = await harness.exit(uid)
    assert sorted(map(str, harness.texts(uid))) == ["child", "main"]
    assert end.exit.log_lines == 2


async def test_lines_written_by_the_service_appear_in_the_replicas_log(harness: EngineHarness) -> None:
    uid = await harness.python("import time; time.sleep(60)")
    await harness.wait_for_start(uid)
    lines = [json.dumps({"severity": "ERROR", "message": "x" * 9000})] * 20
    await harness.engine.write_log(uid, 1, PRIMARY, [*lines, "y" * 100_000, "last"])
    assert harness.texts(uid)[-1] == "last"
    assert harness.texts(uid).count(lines[0]) == 20
    # Like a printed line, a written line is split into parts of limited length.
    parts = [text for text in map(str, harness.texts(uid)) if text.startswith("y")]
    assert len(parts) > 1
    assert "".join(parts) == "y" * 100_000
    with pytest.raises(EngineUnavailable, match="ended"):
        await harness.engine.write_log(uid, 2, PRIMARY, ["nobody"])
