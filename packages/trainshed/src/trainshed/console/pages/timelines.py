"""Makes the chart of a job's attempts: the incarnations of its replicas as bars over time. Pure."""

from typing import Final

from msgspec import Struct, field

from trainshed.console.rendering import epoch, seconds_text
from trainshed.wire.trainshed_v1.jobs import JobDescription
from trainshed.wire.trainshed_v1.timeline import Incarnation, Timeline, Verdict

WIDTH: Final = 1000.0
"""Width of a chart, in its own units; it stands for the whole time of the job."""
_LEAST_WIDTH: Final = 2.0
"""Minimum width of a bar, so that it can be seen."""
_MOST_ROWS: Final = 64
"""Maximum rows that are shown."""
_MOST_MARKS: Final = 12
"""Newest marks that are listed in words."""
_DRILL: Final = "drill_fired"
"""Kind of the timeline's entries that say that a fault was injected."""
_TICKS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
"""Possible seconds between two labels of the scale."""
_FEWEST: Final = 4
"""The number of labels that the scale is meant to have at least."""


class Bar(Struct, frozen=True):
    """A span of time: one incarnation of a replica, or the job's waiting or running."""

    x: float
    width: float
    #: run, good, bad, off or wait.
    tone: str
    #: Text that is shown while a pointer rests on it.
    title: str


class Mark(Struct, frozen=True):
    """A verdict or a drill, at a moment."""

    x: float
    title: str
    is_drill: bool = False
    #: Time since the job was created, as text.
    after: str = ""
    #: The replica's task, if the title does not name it; "" = the attempt's.
    task: str = ""
    #: Seconds since 1970.
    at: float = 0.0


class Row(Struct):
    """The bars and marks of a replica, or of the job as a whole."""

    name: str
    bars: list[Bar] = field(default_factory=list[Bar])
    marks: list[Mark] = field(default_factory=list[Mark])


class Chart(Struct, frozen=True):
    """The chart of a job. Horizontal positions go from 0 to WIDTH."""

    rows: tuple[Row, ...]
    #: (position, text) of each label of the scale.
    ticks: tuple[tuple[float, str], ...]
    #: (position, number) of each attempt's start.
    attempts: tuple[tuple[float, int], ...]
    #: Number of rows that are not shown.
    left_out: int = 0
    #: The last marks of all rows, in order of time.
    marks: tuple[Mark, ...] = ()


class _Scale(Struct, frozen=True):
    """Converts times to positions on the chart."""

    #: Seconds since 1970, as is the next.
    began: float
    ended: float

    @property
    def span(self) -> float:
        """Seconds of the whole chart; at least one, so that it can be drawn."""
        return max(self.ended - self.began, 1.0)

    def place(self, moment: float) -> float:
        return round(min(max((moment - self.began) / self.span, 0.0), 1.0) * WIDTH, 1)

    def mark(self, at: float, title: str, task: str, *, is_drill: bool) -> Mark:
        whose = "" if task in title else task
        return Mark(self.place(at), title, is_drill, seconds_text(at - self.began), whose, at)

    def verdict(self, verdict: Verdict, task: str) -> Mark:
        at = epoch(verdict.at)
        return self.mark(at, verdict.message, task, is_drill=bool(verdict.drill))


def chart(story: Timeline, job: JobDescription, now: float) -> Chart:
    """Return the chart of a job. `now`: seconds since 1970, the end of the chart of a job that is not
    over."""
    scale = _Scale(epoch(job.create_time), epoch(job.end_time) or now)
    whole = Row("job", _job_bars(job, scale))
    rows = {whole.name: whole}
    for attempt in story.attempts:
        whole.marks += [scale.verdict(verdict, "") for verdict in attempt.verdicts]
        for replica in attempt.replicas:
            row = rows.setdefault(replica.task, Row(replica.task))
            for life in replica.incarnations:
                if life.start_time:
                    row.bars.append(_life_bar(life, attempt.attempt, scale))
                if life.start_time and life.verdict is not None:
                    row.marks.append(scale.verdict(life.verdict, replica.task))
    tasks = {replica.id: replica.task for attempt in story.attempts for replica in attempt.replicas}
    for entry in story.entries:
        if entry.kind == _DRILL:
            task = tasks.get(str(entry.details.get("replica", "")), "")
            fired = scale.mark(epoch(entry.at), entry.message, task, is_drill=True)
            rows.get(task, whole).marks.append(fired)
    shown = tuple(rows.values())
    marks = sorted((mark for row in shown for mark in row.marks), key=lambda mark: mark.at)
    return Chart(
        rows=shown[:_MOST_ROWS],
        ticks=tuple(
            (scale.place(scale.began + second), _tick_text(second)) for second in _ticks(scale.span)
        ),
        attempts=tuple(
            (scale.place(epoch(attempt.start_time)), attempt.attempt)
            for attempt in story.attempts
            if attempt.start_time and attempt.attempt
        ),
        left_out=max(0, len(shown) - _MOST_ROWS),
        marks=tuple(marks[-_MOST_MARKS:]),
    )


def _job_bars(job: JobDescription, scale: _Scale) -> list[Bar]:
    """Return the bars that show how long the job waited and how long it ran."""
    bars: list[Bar] = []
    started = epoch(job.start_time) or scale.ended
    if started > scale.began:
        text = f"waited and prepared for {seconds_text(started - scale.began)}"
        bars.append(Bar(0, scale.place(started), "wait", text))
    if job.start_time:
        tone = {"SUCCEEDED": "good", "FAILED": "bad", "CANCELLED": "off"}.get(job.state, "run")
        left = scale.place(started)
        text = f"ran for {seconds_text(scale.ended - started)}"
        bars.append(Bar(left, max(WIDTH - left, _LEAST_WIDTH), tone, text))
    return bars


def _life_bar(life: Incarnation, attempt: int, scale: _Scale) -> Bar:
    left = scale.place(epoch(life.start_time))
    right = scale.place(epoch(life.end_time) or scale.ended)
    title = f"attempt {attempt}, start {life.incarnation}: {_ending(life)}"
    return Bar(left, max(right - left, _LEAST_WIDTH), _tone(life), title)


def _tone(life: Incarnation) -> str:
    if life.lost:
        return "bad"
    if life.exit is None:
        return "run"
    if life.exit.stopped:
        return "off"
    return "good" if life.exit.exit_code == 0 else "bad"


def _ending(life: Incarnation) -> str:
    end = life.exit
    if life.lost:
        return f"lost: {life.lost}"
    if end is None:
        return "running"
    if end.out_of_memory:
        return "out of memory"
    if end.stopped:
        return "stopped by the service"
    if end.signal:
        return f"ended by signal {end.signal}"
    return f"exit code {end.exit_code}"


def _ticks(span: float) -> list[float]:
    """Return the seconds from the beginning at which the scale has labels."""
    step = next((tick for tick in _TICKS if span / tick <= _FEWEST + 2), _TICKS[-1])
    while span / step > 2 * _FEWEST:
        step *= 2
    return [float(step * place) for place in range(int(span // step) + 1)]


def _tick_text(seconds: float) -> str:
    """Return a label, without the units that are 0: 0, 30s, 1m, 1m 30s, 2h."""
    whole = round(seconds)
    parts = (
        (whole // 86400, "d"),
        (whole // 3600 % 24, "h"),
        (whole // 60 % 60, "m"),
        (whole % 60, "s"),
    )
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "0"
