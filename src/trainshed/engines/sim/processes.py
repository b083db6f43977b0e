"""How simulated programs start, are stopped and end, each by its script. Knows no nodes: whoever tells it to do
something has seen to it that the program can be reached."""

import random
from collections.abc import Callable
from typing import Protocol

from trainshed.core.lifecycle.records import ExitRecord
from trainshed.engines.sim.clock import Clock
from trainshed.engines.sim.programs import SIGKILL, SIGTERM, OnTerm, Reports
from trainshed.engines.sim.seats import Fate, Incarnation, Seat


class Tell(Protocol):
    """Something can be said of an incarnation; `news`: the last of it was not said before."""

    def __call__(self, seat: Seat, one: Incarnation, *, news: bool = False) -> None: ...


class Processes:
    """`longest_start`: ns from a launch to its process, at most. `printed`: called when a program prints a line.
    `reported`: when a program that is listened to reports something."""

    def __init__(
        self,
        clock: Clock,
        longest_start: int,
        dice: random.Random,
        tell: Tell,
        *,
        printed: Callable[[Seat, Incarnation, str], None],
        reported: Callable[[Seat, Incarnation, Reports], None],
    ) -> None:
        self._clock = clock
        self._longest_start = longest_start
        self._random = dice
        self._tell = tell
        self._printed = printed
        self._reported = reported
        self._earliest = 0

    def no_starts_before(self, moment: int) -> None:
        """There is no zygote until then."""
        self._earliest = max(self._earliest, moment)

    def start(self, seat: Seat, one: Incarnation) -> None:
        """Hand it over; its process comes a little later."""
        wait = max(0, self._earliest - self._clock.now)
        delay = wait + self._random.randint(1, self._longest_start)
        self._clock.after(delay, lambda: self._begin(seat, one))

    def stop(self, seat: Seat, one: Incarnation, grace: int) -> None:
        """SIGTERM, and SIGKILL after `grace` ns; what has no process yet gets none; what is over is told again."""
        if one.fate is Fate.STARTING:
            one.fate, one.cause, one.over = Fate.LOST, "never started", self._clock.now
        if not one.lives:
            self._tell(seat, one)
            return
        if one.stopped:
            return
        one.stopped = True
        script = one.script
        if script.on_term is OnTerm.DIE:
            self.end(seat, one, None, SIGTERM)
        elif script.on_term is OnTerm.EXIT and script.term_takes < grace:
            self._end_after(seat, one, script.term_takes, script.term_code, None)
        else:
            self._end_after(seat, one, grace, None, SIGKILL)

    def end(
        self,
        seat: Seat,
        one: Incarnation,
        code: int | None,
        signal: int | None,
        *,
        oom: bool = False,
        stalled: bool = False,
    ) -> None:
        """It ends now, and its record is sealed."""
        one.fate, one.over = Fate.EXITED, self._clock.now
        one.exit = ExitRecord(
            code,
            signal,
            oom,
            one.started,
            self._clock.wall,
            stopped=one.stopped,
            stalled=stalled,
        )
        self._tell(seat, one, news=True)

    def lose(
        self,
        seat: Seat,
        one: Incarnation,
        cause: str,
        *,
        by_service: bool = False,
        tell: bool = True,
    ) -> None:
        """It is gone, and nobody wrote down how."""
        one.fate, one.over = Fate.LOST, self._clock.now
        one.cause, one.by_service = cause, by_service
        if tell:
            self._tell(seat, one, news=True)

    def _begin(self, seat: Seat, one: Incarnation) -> None:
        if one.fate is not Fate.STARTING:
            return
        script = one.script
        if script.start_fails:
            self.lose(seat, one, "its sandbox could not be made", by_service=True)
            return
        one.fate, one.started = Fate.RUNNING, self._clock.wall
        self._tell(seat, one, news=True)
        self._print_later(seat, one)
        self._report_later(seat, one)
        if script.hangs:
            if one.stall_after:
                silent_for = script.runs + one.stall_after
                self._end_after(seat, one, silent_for, None, SIGKILL, stalled=True)
            return
        code = None if script.signal is not None or script.oom else script.code
        signal = SIGKILL if script.oom else script.signal
        self._end_after(seat, one, script.runs, code, signal, oom=script.oom)

    def _print_later(self, seat: Seat, one: Incarnation) -> None:
        for number, delay in enumerate(one.script.prints, 1):

            def prints(text: str = f"step {number}") -> None:
                if one.fate is Fate.RUNNING:
                    self._printed(seat, one, text)

            self._clock.after(delay, prints)

    def _report_later(self, seat: Seat, one: Incarnation) -> None:
        for report in one.script.reports if one.watch_metrics else ():

            def reports(report: Reports = report) -> None:
                if one.fate is Fate.RUNNING:
                    self._reported(seat, one, report)

            self._clock.after(report.after, reports)

    def _end_after(
        self,
        seat: Seat,
        one: Incarnation,
        delay: int,
        code: int | None,
        signal: int | None,
        *,
        oom: bool = False,
        stalled: bool = False,
    ) -> None:
        def ends() -> None:
            if one.fate is Fate.RUNNING:
                self.end(seat, one, code, signal, oom=oom, stalled=stalled)

        self._clock.after(delay, ends)
