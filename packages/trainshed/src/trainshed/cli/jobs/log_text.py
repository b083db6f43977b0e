"""Formats lines of logs as text for a terminal. Pure."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

import click

from trainshed.cli.jobs.views import JobView
from trainshed.cli.text.colours import coloured, faint, plain, replica_colour
from trainshed.cli.text.moments import exact_moment, parse_moment
from trainshed.wire.trainshed_v1.timeline import LogLine as Line

_SECOND: Final = len("2026-11-22T08:46:44")


class LineTexts:
    """Formats the lines of one job, each after the label of its writer. Labels are cached, since a log may
    have millions of lines."""

    def __init__(self, job: JobView, *, timestamps: bool = False) -> None:
        self._job = job
        self._timestamps = timestamps
        self._tasks = {replica.id: replica.task for replica in job.program.replicas or ()}
        self._labels: dict[tuple[int, str], tuple[str, int]] = {}

    def of(self, lines: Iterable[Line]) -> list[str]:
        """Return the text of each line, with its line end."""
        labels, texts = self._labels, list[str]()
        for line in lines:
            writer = (line.trial or 0, line.replica)
            label, width = labels.get(writer) or self._label(line)
            message = line.message
            if not message.isprintable():
                message = f"\n{' ' * (width + 2)}".join(coloured(message).split("\n"))
            moment = faint(_moment(line.at)) if self._timestamps else ""
            texts.append(f"{moment}{label}  {message}\n")
        return texts

    def _label(self, line: Line) -> tuple[str, int]:
        trial = line.trial or 0
        replica, task = plain(line.replica), plain(line.task)
        shown = label(trial, replica, self._tasks.get(replica, replica), task, self._job)
        self._labels[trial, line.replica] = shown
        return shown


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
        prefix = f"trial {number}"
        if tuning.replicas > 1:
            prefix += f"  {trial_task}"
        return prefix, len(prefix)
    text = task.ljust(max((len(other.task) for other in job.program.replicas or ()), default=0))
    return click.style(text, fg=replica_colour(replica)), len(text)
