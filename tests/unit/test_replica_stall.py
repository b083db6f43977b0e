"""When a program counts as stalled: counters and times only (issue: Stall watchdog)."""

import pytest

from trainshed.replica.observe.stall import Patience, Sample


class Program:
    """Counters that grow at steady rates, looked at as often as the watchdog would."""

    def __init__(self, after: float) -> None:
        self.now = 1000.0
        self.output, self.cpu, self.moved = 5, 3.0, 700
        self.patience = Patience(after, self.now, self._sample())

    def _sample(self) -> Sample:
        # Processor time is told in whole ticks.
        return Sample(self.output, int(self.cpu * 100) / 100, self.moved)

    def run(self, seconds: float, *, busy: float = 0.0) -> float | None:
        """Let it run on, using that part of a processor; after how many seconds it counts as stalled."""
        begin = self.now
        while self.now - begin < seconds:
            self.now += self.patience.pause
            self.cpu += busy * self.patience.pause
            if self.patience.is_over(self.now, self._sample()):
                return self.now - begin
        return None


@pytest.mark.parametrize("after", [0.5, 3.0, 60.0, 3600.0])
def test_nothing_at_all_is_a_stall_after_that_time_and_not_before(after: float) -> None:
    stalled = Program(after).run(2 * after)
    assert stalled is not None
    assert after <= stalled <= after * 1.1 + 0.2


@pytest.mark.parametrize("busy", [0.008, 0.05, 1.0])
def test_computing_is_progress(busy: float) -> None:
    assert Program(10.0).run(1000.0, busy=busy) is None


@pytest.mark.parametrize("counter", ["output", "moved"])
def test_output_and_bytes_moved_are_progress(counter: str) -> None:
    program = Program(10.0)
    for _ in range(5):
        assert program.run(9.0) is None
        setattr(program, counter, getattr(program, counter) + 1)
    assert program.run(20.0) is not None


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """The shim itself was frozen, or the machine slept: the program is given its time once more."""
    program = Program(10.0)
    assert program.run(5.0) is None
    program.now += 3600
    assert program.run(9.0) is None
    assert program.run(5.0) is not None
