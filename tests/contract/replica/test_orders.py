"""What a service can ask of a shim: signs of life, faults, an end (spec/failures#lost-replicas,
spec/operations#drills)."""

import os
import signal

from tests.contract.replica.conftest import Place

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


def test_a_guardian_that_does_not_listen_does_not_keep_its_program(place: Place) -> None:
    """spec/lifecycle#cancel: leaves no process behind, whatever holds it up."""
    line = place.python(SLEEPS)
    place.up(line)
    os.kill(place.journal()["guardian"], signal.SIGSTOP)
    line.order(o="stop", grace=0)
    record = line.record()
    assert (record["signal"], record["stopped"]) == (signal.SIGKILL, True)
