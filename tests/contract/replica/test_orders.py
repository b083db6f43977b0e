"""What a service can ask of a shim: signs of life, faults, an end (spec/failures#lost-replicas,
spec/operations#drills)."""

import os
import signal

import pytest

from tests.contract.replica.conftest import SECOND, Place
from trainshed.replica import protocol

SLEEPS = "import time; print('up'); time.sleep(60)"
FLOODS = "import sys\nwhile True: sys.stdout.write('x' * 60 + '\\n')"


def test_a_ping_is_answered_while_output_floods(place: Place) -> None:
    line = place.python(FLOODS)
    place.up(line)
    for number in range(20):
        line.order(o="ping", n=number)
        assert line.hear("pong")["n"] == number
    line.order(o="stop", grace=0)
    assert line.record()["log_lines"] > 0


@pytest.mark.parametrize(
    ("kind", "killed_by", "oom"),
    [
        (protocol.FAULT_KILL, signal.SIGKILL, False),
        (protocol.FAULT_OOM, signal.SIGKILL, True),
        (protocol.FAULT_SEGV, signal.SIGSEGV, False),
    ],
)
def test_a_fault_ends_the_program_like_the_real_thing(
    place: Place, kind: str, killed_by: int, oom: bool
) -> None:
    """spec/operations#drills: a worker's kill, an OOM, a crash, on demand."""
    line = place.python(SLEEPS)
    place.up(line)
    line.order(o="fault", kind=kind)
    record = line.record()
    assert (record["signal"], record["oom"], record["child_oom"]) == (killed_by, oom, 0)
    assert (record["stopped"], record["stalled"]) == (False, False)


def test_a_fault_at_the_very_beginning_is_not_forgotten(place: Place) -> None:
    line = place.python(SLEEPS)
    line.order(o="fault", kind=protocol.FAULT_KILL)
    assert line.record()["signal"] == signal.SIGKILL


def test_an_end_that_was_asked_for_is_told_from_one_that_was_not(place: Place) -> None:
    line = place.python(SLEEPS)
    place.up(line)
    line.order(o="stop", grace=10 * SECOND)
    record = line.record()
    assert (record["signal"], record["stopped"]) == (signal.SIGTERM, True)
    assert not place.python("pass").record()["stopped"]


def test_a_guardian_that_does_not_listen_does_not_keep_its_program(place: Place) -> None:
    """spec/lifecycle#cancel: leaves no process behind, whatever holds it up."""
    line = place.python(SLEEPS)
    place.up(line)
    os.kill(place.journal()["guardian"], signal.SIGSTOP)
    line.order(o="stop", grace=0)
    record = line.record()
    assert (record["signal"], record["stopped"]) == (signal.SIGKILL, True)


def test_the_next_incarnation_goes_on_in_directory_and_log(place: Place) -> None:
    """spec/failures#lost-replicas: restarts keep the replica's directory; the log's numbers go on."""
    first = place.run("sh", "-c", "echo one > state; echo first; kill -9 $$")
    assert first.record()["signal"] == signal.SIGKILL
    # At once: its end has been reported, so the slot is free.
    record = place.run("cat", "state").record()
    assert (record["exit_code"], record["log_lines"]) == (0, 2)
    assert [(line["n"], line["m"]) for line in place.log()] == [(0, "first"), (1, "one")]
