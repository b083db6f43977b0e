"""Lines of logs, and entries of timelines among them, as text for a terminal. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import click

from trainshed.cli.jobs.views import JobView, LogLine, TimelineView
from trainshed.cli.text.colours import (
    entry_colour,
    replica_colour,
    severity_colour,
    trial_number_colour,
)
from trainshed.cli.text.moments import exact_moment, parse_moment
from trainshed.cli.text.printable import coloured, plain
from trainshed.core.names import SERVICE_TASK
from trainshed.wire.trainshed_v1.timeline import LogLine as Line

_SECOND: Final = len("2026-11-22T08:46:44")


class LineTexts:
    """The lines of one job, behind who wrote them. Labels and colours are worked out once: a log may have
    millions of lines."""

    def __init__(self, job: JobView, *, timestamps: bool) -> None:
        self._job = job
        self._timestamps = timestamps
        self._tasks = {replica.id: replica.task for replica in job.program.replicas}
        self._labels: dict[tuple[int, str], tuple[str, int]] = {}

    def of(self, lines: Iterable[Line]) -> list[str]:
        """Each with its line end."""
        labels, texts = self._labels, list[str]()
        for line in lines:
            writer = (line.trial or 0, line.replica)
            label, width = labels.get(writer) or self._label(line)
            begin, end = _styles(line.severity)
            message = line.message
            if not message.isprintable():
                message = f"{end}\n{' ' * (width + 2)}{begin}".join(coloured(message).split("\n"))
            moment = f"{_faint(_moment(line.at))}" if self._timestamps else ""
            texts.append(f"{moment}{label}  {begin}{message}{end}\n")
        return texts

    def entry(self, entry: TimelineView) -> str:
        """An entry of the timeline that stands among them."""
        head = _faint(f"{exact_moment(entry.at)}  ") if self._timestamps else ""
        return f"{head}{event_text(entry, prefix_width(self._job.program))}\n"

    def _label(self, line: Line) -> tuple[str, int]:
        trial = line.trial or 0
        replica, task = plain(line.replica), plain(line.task)
        shown = label(trial, replica, self._tasks.get(replica, replica), task, self._job)
        self._labels[trial, line.replica] = shown
        return shown


@lru_cache(64)
def _styles(severity: str) -> tuple[str, str]:
    """What begins and what ends a text of that severity."""
    begin, _, end = click.style("\0", fg=severity_colour(severity)).partition("\0")
    return begin, end


def _faint(text: str) -> str:
    return click.style(text, fg="bright_black")


def _moment(at: str) -> str:
    """`2026-11-20 06:05:12.345  ` of this machine's zone."""
    return f"{_second(at[:_SECOND])}.{at[_SECOND + 1 : _SECOND + 4]}  "


@lru_cache(64)
def _second(text: str) -> str:
    return exact_moment(parse_moment(f"{text}Z")).partition(".")[0]


def labelled(line: LogLine, job: JobView) -> str:
    """A line behind who wrote it: a replica, of a tuning job a trial (and which of its replicas, if they are
    several)."""
    tasks = {replica.id: replica.task for replica in job.program.replicas}
    task = tasks.get(line.replica, line.replica)
    prefix, width = label(line.trial, line.replica, task, line.task, job)
    return f"{prefix}  {_message(line, width)}"


def label(trial: int, replica: str, task: str, trial_task: str, job: JobView) -> tuple[str, int]:
    """Who wrote a line, and how wide that is. `task`: the replica's name in the job, `trial_task`: in the
    trial's."""
    if tuning := job.program.tuning:
        number = str(trial).rjust(len(str(tuning.first + tuning.most - 1)))
        prefix = click.style(f"trial {number}", fg=trial_number_colour(trial))
        if tuning.replicas > 1:
            prefix += "  " + click.style(trial_task, fg=replica_colour(replica))
        return prefix, len(click.unstyle(prefix))
    text = task.ljust(prefix_width(job.program))
    return click.style(text, fg=replica_colour(replica)), len(text)


def prefix_width(job: JobView) -> int:
    """How wide the names of a job's replicas are, so that its lines align."""
    return max((len(replica.task) for replica in job.replicas), default=0)


def line_text(line: LogLine, label: str, width: int) -> str:
    """A line for a terminal, behind the name of its replica; styles vanish in pipes."""
    prefix = click.style(label.ljust(width), fg=replica_colour(line.replica))
    return f"{prefix}  {_message(line, max(width, len(label)))}"


def _message(line: LogLine, width: int) -> str:
    """Further lines of a message stand below its first: they are not to be taken for lines of others."""
    lines = line.message.split("\n")
    colour = severity_colour(line.severity)
    return ("\n" + " " * (width + 2)).join(click.style(text, fg=colour) for text in lines)


def event_text(entry: TimelineView, width: int) -> str:
    """An entry of the timeline among lines of programs: as of the service, and fainter."""
    label = SERVICE_TASK.ljust(width)
    first = (entry.message.strip().splitlines() or [""])[0]
    colour = entry_colour(entry.kind, entry.effect) or "bright_black"
    return click.style(f"{label}  {first}", fg=colour)
