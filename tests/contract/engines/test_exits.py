"""How programs end and what is recorded of it (spec/failures#user-code)."""

import os
import signal

from tests.contract.engines.conftest import House, Run
from trainshed.core.launch import Limits, Software
from trainshed.core.lifecycle.replica_events import ReplicaLost


def test_a_command_that_is_not_there_ends_like_in_a_shell(house: Run) -> None:
    async def test(house: House) -> None:
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

    house(test)


def test_a_command_may_be_as_long_as_the_system_takes_it(house: Run) -> None:
    """Its order reaches guardians in pieces (spec/invariants#shims)."""

    async def test(house: House) -> None:
        for size in (40_000, 80_000, 130_000):
            uid = await house.run("sh", "-c", "echo $#", "sh", "x" * size, "y" * size)
            assert (await house.exit(uid)).exit.exit_code == 0
            assert house.texts(uid)[-1] == "2"

    house(test)


def test_memory_limit_hit_by_the_main_process_is_an_oom(house: Run) -> None:
    """spec/failures#out-of-memory: out of memory, main process."""

    async def test(house: House) -> None:
        assert house.engine.capabilities().oom_verdict
        uid = await house.python(
            "import time; b = bytearray(300 << 20); time.sleep(60)", limits=Limits(memory=100 << 20)
        )
        end = await house.exit(uid)
        assert end.exit.oom
        assert end.exit.signal == signal.SIGKILL

    house(test)


def test_memory_limit_hit_by_a_child_leaves_the_verdict_to_the_main_process(house: Run) -> None:
    """spec/failures#out-of-memory: an OOM of a child alone; the main process's own exit decides."""

    async def test(house: House) -> None:
        assert house.engine.capabilities().oom_verdict
        program = (
            "import subprocess, sys\n"
            "eater = 'import time; b = bytearray(300 << 20); time.sleep(60)'\n"
            "c = subprocess.run([sys.executable, '-c', eater])\n"
            "print('child', c.returncode)\n"
            "raise SystemExit(3)"
        )
        uid = await house.python(program, limits=Limits(memory=100 << 20))
        end = await house.exit(uid)
        assert (end.exit.exit_code, end.exit.oom) == (3, False)
        assert house.texts(uid) == ["child -9"]

    house(test)


def test_the_tail_is_the_end_of_the_log_within_two_kilobytes(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.python("for i in range(1000): print('line', i)\nraise SystemExit(1)")
        end = await house.exit(uid)
        assert end.exit.log_lines == 1000
        assert end.exit.tail.endswith("line 998\nline 999")
        assert len(end.exit.tail.encode()) <= 2048

    house(test)


def test_a_program_killed_from_outside(house: Run) -> None:
    async def test(house: House) -> None:
        uid = await house.python("import time; print('up'); time.sleep(60)")
        await house.line(uid, lambda text: text == "up")
        os.kill(house.shim(uid)["guardian"], signal.SIGKILL)
        end = await house.exit(uid)
        assert (end.exit.signal, end.exit.oom) == (signal.SIGKILL, False)

    house(test)


def test_a_kill_from_outside_after_a_child_ran_out_of_memory_is_no_oom(house: Run) -> None:
    async def test(house: House) -> None:
        assert house.engine.capabilities().oom_verdict
        program = (
            "import os, signal, subprocess, sys, time\n"
            "eater = 'import time; b = bytearray(300 << 20); time.sleep(60)'\n"
            "subprocess.run([sys.executable, '-c', eater])\n"
            "time.sleep(0.3)\n"
            "os.kill(os.getpid(), signal.SIGKILL)"
        )
        uid = await house.python(program, limits=Limits(memory=100 << 20))
        end = await house.exit(uid)
        assert (end.exit.signal, end.exit.oom) == (signal.SIGKILL, False)

    house(test)


def test_a_replica_that_the_service_cannot_start_is_its_own_failure(house: Run) -> None:
    """spec/failures#service-failures: the service itself failed; also when it is asked again after a
    restart."""

    async def test(house: House) -> None:
        # Levels with a view of their own need the one, the others copy the other.
        uid = await house.run(
            "true",
            buckets=(("odd", "/dev/null/here"),),
            software=Software(template="/nowhere/here"),
        )
        end = await house.end(uid)
        assert isinstance(end, ReplicaLost)
        assert end.by_service
        assert "/dev/null/here" in end.cause or "/nowhere/here" in end.cause
        await house.restart()
        assert await house.end(uid) == end

    house(test)
