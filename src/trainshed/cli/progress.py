"""A job's progress, shown: a live table on a terminal, plain lines everywhere else.

What is shown is worked out in `Board`, without a terminal; rich is loaded for the live table only.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import click

from trainshed.cli.colours import entry_colour, faint, replica_colour, severity_colour, state_colour
from trainshed.cli.following import Update
from trainshed.cli.logs import labelled, line_text
from trainshed.cli.moments import duration, local_clock
from trainshed.cli.tuning_panel import goal, panel
from trainshed.cli.views import JobView, LogLine, ReplicaView, TimelineView
from trainshed.core.lifecycle.states import JobState, ReplicaState

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.spinner import Spinner
    from rich.text import Text

_REFRESHES = 8
"""Per second: a table that follows the eye, for next to no work."""

_SHOWN_IN_THE_TABLE = frozenset({"trial_began", "trial_succeeded"})
"""Entries of a tuning job's story that a live table of its trials tells by itself."""
_AROUND = 5
"""Lines of a terminal that a table of trials leaves to its title, to a note, and to the prompt."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of one replica: `ran` is "" before it started, `last` is its newest line."""

    replica: str
    task: str
    state: ReplicaState
    ran: str
    last: str
    severity: str


@dataclass(frozen=True, slots=True)
class Board:
    """A job and the newest lines of its replicas, as far as updates have told. `told`: the newest entry
    of its story."""

    job: JobView | None = None
    told: str = ""
    newest: tuple[tuple[str, LogLine], ...] = ()

    def after(self, update: Update) -> "Board":
        """The board when `update` is known."""
        match update:
            case JobView():
                return replace(self, job=update)
            case TimelineView():
                return replace(self, told=first_line(update.message))
            case LogLine():
                if not update.message.strip():
                    return self
                newest = dict(self.newest) | {update.replica: update}
                return replace(self, newest=tuple(newest.items()))
            case _:
                assert_never(update)

    def rows(self, now: int) -> tuple[Row, ...]:
        """A row per replica, in the order of the job's pools."""
        newest = dict(self.newest)
        return tuple(
            _row(replica, newest.get(replica.id), now)
            for replica in (self.job.program.replicas if self.job else ())
        )

    @property
    def tuned(self) -> JobView | None:
        """The tuning job that this is, or that a pipeline has."""
        return self.job.program if self.job and self.job.program.tuning else None

    @property
    def note(self) -> str:
        """What the job waits for while it does not run, and its place in the queue."""
        if self.job is None or self.job.state not in (JobState.QUEUED, JobState.PREPARING):
            return ""
        if self.job.waiting is None:
            return "; ".join(self.job.waits) if self.job.kind != "custom" else self.told
        place = f" (number {self.job.waiting.position})" if self.job.waiting.position else ""
        return "; ".join(self.job.waits) + place


def show(updates: Iterable[Update], now: Callable[[], int], *, lines: bool) -> JobView | None:
    """Show updates until they end, in the way that fits where the output goes.

    `lines`: print every line of the replicas as well. Returns the job's last view, None if there was none.
    """
    if sys.stdout.isatty() and not _is_dumb():
        from rich.console import Console

        return live(updates, now, Console(highlight=False, soft_wrap=True), lines=lines)
    board = Board()
    for update in updates:
        board = board.after(update)
        for text in plain(update, board, lines=lines):
            click.echo(text)
    return board.job


def plain(update: Update, board: Board, *, lines: bool) -> Iterator[str]:
    """The text lines that tell of an update where nothing can be drawn."""
    match update:
        case TimelineView():
            yield story_line(update)
        case LogLine():
            if lines:
                yield board_line(update, board)
        case JobView():
            return
        case _:
            assert_never(update)


def story_line(entry: TimelineView) -> str:
    """An entry of the story among the lines of a job."""
    text = f"{local_clock(entry.at)}  {entry.kind}: {first_line(entry.message)}"
    colour = entry_colour(entry.kind, entry.effect)
    return click.style(text, fg=colour) if colour else faint(text)


def board_line(line: LogLine, board: Board) -> str:
    """A line of a replica behind the replica's name."""
    return labelled(line, board.job) if board.job else line_text(line, line.replica, 0)


def first_line(text: str) -> str:
    """The first line of a message, without its end."""
    return (text.strip().splitlines() or [""])[0].strip()


def _row(replica: ReplicaView, newest: LogLine | None, now: int) -> Row:
    started = replica.started
    return Row(
        replica=replica.id,
        task=replica.task,
        state=replica.state,
        ran=duration((replica.ended or now) - started) if started else "",
        # A program's own colours would spill over the table.
        last=click.unstyle(newest.message).strip() if newest else "",
        severity=newest.severity if newest else "",
    )


def live(
    updates: Iterable[Update], now: Callable[[], int], console: "Console", *, lines: bool
) -> JobView | None:
    """Show updates as a table that is drawn over and over, and lines above it. As `show` otherwise."""
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    board = Board()
    # One for all the time: each knows when it began to turn.
    spinner = Spinner("dots", style="yellow")

    def drawn() -> "RenderableType":
        return _table(board, now(), spinner, console)

    with Live(get_renderable=drawn, console=console, refresh_per_second=_REFRESHES):
        for update in updates:
            board = board.after(update)
            if isinstance(update, TimelineView) and update.kind in _SHOWN_IN_THE_TABLE:
                continue
            for text in plain(update, board, lines=lines):
                console.print(Text.from_ansi(text))
    return board.job


def _table(board: Board, now: int, spinner: "Spinner", console: "Console") -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    title = Text()
    if board.job:
        title.append(board.job.display_name or board.job.id, "bold")
        title.append("  ").append_text(_state(board.job.state))
        title.append(f"  {duration(board.job.lasted(now))}", "bright_black")
    parts: list[RenderableType] = [Text(), title]
    if board.tuned and board.tuned.tuning:
        title.append(f"  {goal(board.tuned.tuning)}", "bright_black")
        height = console.height - _AROUND - bool(board.note)
        for line in panel(board.tuned, now, console.width, height):
            parts.append(Text.assemble(*line, no_wrap=True, overflow="ellipsis"))
    else:
        parts.append(_replicas(board, now))
    if board.note:
        spinner.update(text=Text(board.note, "yellow", no_wrap=True, overflow="ellipsis"))
        parts.append(spinner)
    return Group(*parts)


def _replicas(board: Board, now: int) -> "RenderableType":
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2), expand=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True)
    rows.add_column(no_wrap=True, justify="right")
    rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in board.rows(now):
        rows.add_row(
            Text(row.task, replica_colour(row.replica)),
            _state(row.state),
            Text(row.ran, "bright_black"),
            Text(row.last, severity_colour(row.severity) or ""),
        )
    return rows


def _state(state: JobState | ReplicaState) -> "Text":
    from rich.text import Text

    return Text(state.value, state_colour(state))


def _is_dumb() -> bool:
    return os.environ.get("TERM", "dumb") in ("", "dumb")
