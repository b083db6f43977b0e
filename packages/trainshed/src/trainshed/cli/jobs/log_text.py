"""Formats lines of logs, and entries of timelines among them, as text for a terminal. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import click

from trainshed.cli.jobs.views import JobView, TimelineView
from trainshed.cli.text.colours import (
    coloured,
    entry_colour,
    plain,
    replica_colour,
    severity_colour,
    trial_number_colour,
)
from trainshed.cli.text.moments import exact_moment, parse_moment
from trainshed.core.names import SERVICE_TASK
from trainshed.wire.trainshed_v1.timeline import LogLine as Line

_SECOND: Final = len("2026-11-22T08:46:44")


class LineTexts:
    """Formats the lines of one job, each after the label of its writer. Labels and colours are cached, since
    a log may have millions of lines."""

    def __init__(self, job: JobView, *, timestamps: bool = False) -> None:
        self._job = job
        self._timestamps = timestamps
        self._tasks = {replica.id: replica.task for replica in job.program.replicas}
        self._labels: dict[tuple[int, str], tuple[str, int]] = {}

    def of(self, lines: Iterable[Line]) -> list[str]:
        """Return the text of each line, with its line end."""
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
        """Return the text of a timeline's entry that stands among the lines, with its line end."""
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
    """Return the terminal sequences that begin and end a text of this severity."""
    begin, _, end = click.style("\0", fg=severity_colour(severity)).partition("\0")
    return begin, end


def _faint(text: str) -> str:
    return click.style(text, fg="bright_black")


def _moment(at: str) -> str:
    """Return the time of a line in this machine's zone, such as `2026-11-20 06:05:12.345  `."""
    return f"{_second(at[:_SECOND])}.{at[_SECOND + 1 : _SECOND + 4]}  "


@lru_cache(64)
def _second(text: str) -> str:
    return exact_moment(parse_moment(f"{text}Z")).partition(".")[0]


def label(trial: int, replica: str, task: str, trial_task: str, job: JobView) -> tuple[str, int]:
    """Return the label of a line's writer, and its width in characters. `task`: the replica's name in the
    job; `trial_task`: its name in the trial's job."""
    if tuning := job.program.tuning:
        number = str(trial).rjust(len(str(tuning.first_trial + tuning.max_trials - 1)))
        prefix = click.style(f"trial {number}", fg=trial_number_colour(trial))
        if tuning.replicas > 1:
            prefix += "  " + click.style(trial_task, fg=replica_colour(replica))
        return prefix, len(click.unstyle(prefix))
    text = task.ljust(prefix_width(job.program))
    return click.style(text, fg=replica_colour(replica)), len(text)


def prefix_width(job: JobView) -> int:
    """Return the width of the longest name of a job's replicas, by which lines are aligned."""
    return max((len(replica.task) for replica in job.replicas), default=0)


def event_text(entry: TimelineView, width: int) -> str:
    """Return the first line of a timeline's entry as a line of the service, in the entry's colour or grey."""
    label = SERVICE_TASK.ljust(width)
    first = (entry.message.strip().splitlines() or [""])[0]
    colour = entry_colour(entry.kind, entry.effect) or "bright_black"
    return click.style(f"{label}  {first}", fg=colour)
