"""Guardians whose programs run for more than a second: they become a program of a page of memory, and nobody
but the machine notices (docs/adr/0140)."""

import os
import select
import signal

import pytest

from tests.contract.replica.conftest import LEVELS, PATIENCE, PYTHON, SECOND, Line, Place
from tests.contract.replica.test_expel import alive
from tests.resting import resident, wait_for_rest
from trainshed.replica import protocol
from trainshed.replica.system import reaper

NAMESPACED = [level for level in LEVELS if level != protocol.LEVEL_SESSION]
SLEEPS = "import time; print('up'); time.sleep(60)"

pytestmark = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"),
    reason="there is no reaper for other machines: NOT tested",
)


@pytest.fixture
def place(place: Place) -> Place:
    if place.level == protocol.LEVEL_SESSION:
        pytest.skip("its guardian has processes to end that no kernel would end for it")
    return place


def rested(place: Place, program: str, *argv: str, **fields: object) -> Line:
    """A program of which the guardian has come to rest."""
    line = place.run(PYTHON, "-c", program, *argv, **fields)
    place.up(line)
    wait_for_rest(place.journal()["guardian"])
    return line


def test_it_takes_next_to_no_memory(place: Place) -> None:
    rested(place, SLEEPS)
    assert resident(place.journal()["guardian"]) < 64 << 10


@pytest.mark.parametrize(
    ("end", "code", "killed_by"),
    [("sys.exit(7)", 7, None), ("os.kill(os.getpid(), 11)", None, signal.SIGSEGV)],
)
def test_how_its_program_ends_is_told(
    place: Place, end: str, code: int | None, killed_by: int | None
) -> None:
    line = rested(place, f"import os, sys, time; print('up'); time.sleep(2); {end}")
    record = line.record()
    assert (record["exit_code"], record["signal"]) == (code, killed_by)
    assert record["ended"] - record["started"] > SECOND


def test_nobody_is_left_when_its_program_ends(place: Place) -> None:
    mark = f"mark-{place.slot}"
    stays = f"import os; os.execv({PYTHON!r}, [{PYTHON!r}, '-c', 'import time; time.sleep(60)', {mark!r}])"
    line = rested(
        place,
        "import os, time\n"
        f"if os.fork() == 0:\n    os.setsid(); {stays}\n"
        "print('up'); time.sleep(2); print('over')",
    )
    assert len(alive(mark)) == 2  # The main process names it as well.
    assert line.record()["exit_code"] == 0
    assert alive(mark) == []
    assert place.texts() == ["up", "over"]


def test_orphans_are_reaped_and_are_not_the_programs_end(place: Place) -> None:
    line = place.python(
        "import os, time\n"
        "print('up'); time.sleep(2)\n"
        "if os.fork() == 0:\n"
        "    for _ in range(200):\n"
        "        if os.fork() == 0: time.sleep(0.1); os._exit(3)\n"
        "    os._exit(4)\n"
        "os.wait()\n"
        "def dead(): return [p for p in os.listdir('/proc') if p.isdigit()"
        " and b') Z ' in open('/proc/%s/stat' % p, 'rb').read()]\n"
        "while len([p for p in os.listdir('/proc') if p.isdigit()]) > 60: time.sleep(0.05)\n"
        "time.sleep(0.2); print(dead())",
    )
    assert line.record()["exit_code"] == 0
    assert place.texts() == ["up", "[]"]


@pytest.mark.parametrize(
    ("kind", "killed_by", "oom"),
    [
        (protocol.FAULT_KILL, signal.SIGKILL, False),
        (protocol.FAULT_OOM, signal.SIGKILL, True),
        (protocol.FAULT_SEGV, signal.SIGSEGV, False),
    ],
)
def test_faults_reach_the_program(place: Place, kind: str, killed_by: int, oom: bool) -> None:
    """spec/operations#drills: a worker's kill, an OOM, a crash, on demand."""
    line = rested(place, SLEEPS)
    line.order(o="fault", kind=kind)
    record = line.record()
    assert (record["signal"], record["oom"]) == (killed_by, oom)


def test_a_request_to_stop_reaches_its_whole_group_once(place: Place) -> None:
    """spec/lifecycle#cancel: SIGTERM, and time to react."""
    line = rested(
        place,
        "import os, signal, time\n"
        "def told(number, frame): os.write(1, b'told\\n')\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "child = os.fork()\n"
        "print('up', flush=True)\n"
        "try:\n    time.sleep(60) if child == 0 else os.waitpid(child, 0)\n"
        "finally:\n    pass",
    )
    line.order(o="stop", grace=SECOND)
    record = line.record()
    assert (record["signal"], record["stopped"]) == (signal.SIGKILL, True)
    assert place.texts().count("told") == 2


def test_all_is_over_when_it_is_killed(place: Place) -> None:
    mark = f"mark-{place.slot}"
    line = rested(place, SLEEPS, mark)
    os.kill(place.journal()["guardian"], signal.SIGKILL)
    assert line.record()["signal"] == signal.SIGKILL
    assert alive(mark) == []


def test_all_is_over_when_its_shim_is_killed(place: Place) -> None:
    mark = f"mark-{place.slot}"
    rested(place, SLEEPS, mark)
    guardian = os.pidfd_open(place.journal()["guardian"])
    os.kill(place.journal()["shim"], signal.SIGKILL)
    assert select.select([guardian], [], [], PATIENCE)[0]
    os.close(guardian)
    assert alive(mark) == []


def test_its_program_may_not_look_into_it(place: Place) -> None:
    """spec/program#isolation: memory, environment and handles of the guardian are its own."""
    if place.level == protocol.LEVEL_ROOT:
        pytest.skip("a program that is root may trace whatever it sees")
    line = place.python(
        "import os, time\n"
        "print('up'); time.sleep(2)\n"
        "for name in ('mem', 'environ', 'fd/1', 'exe', 'root', 'maps'):\n"
        "    path = '/proc/1/' + name\n"
        "    try:\n"
        "        if name in ('fd/1', 'exe', 'root'): os.readlink(path)\n"
        "        else: os.read(os.open(path, os.O_RDONLY), 1)\n"
        "    except OSError as error:\n"
        "        continue\n"
        "    print(name)\n"
        "try:\n    os.kill(1, 9)\nexcept OSError: pass\n"
        "print('lives')"
    )
    assert line.record()["exit_code"] == 0
    assert place.texts() == ["up", "lives"]


def test_machines_without_a_reaper_keep_their_guardians() -> None:
    with pytest.raises(KeyError):
        reaper.program("riscv64")
