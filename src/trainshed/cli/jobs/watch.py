"""`trainshed jobs watch`: shows a job's progress until it is over, as a live table on a terminal and as plain
lines elsewhere."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

import click

from trainshed.cli.jobs.follow import Update
from trainshed.cli.jobs.log_text import labelled, line_text
from trainshed.cli.jobs.views import JobView, LogLine, ReplicaView, TimelineView, progress_text
from trainshed.cli.output_format import output_format, print_data
from trainshed.cli.reader import until_reader_leaves
from trainshed.cli.text.colours import (
    entry_colour,
    faint,
    replica_colour,
    severity_colour,
    state_colour,
)
from trainshed.cli.text.moments import duration, local_clock
from trainshed.cli.trial_table import goal, panel
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.wire.trainshed_v1.jobs import Progress
from trainshed.wire.trainshed_v1.record import read

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.spinner import Spinner
    from rich.text import Text

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import Patience, ViewChanges, follow
from trainshed.cli.jobs.logs import require_over
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.trial_table import best_text, best_trial
from trainshed.cli.tuning_views import assignment
from trainshed.core.units import Nanos

_ASK_EVERY = 2.0
"""Minimum seconds between two requests for a job's progress."""
_REFRESHES = 8
"""How often the live table is drawn per second: often enough to look smooth, and cheap."""

_SHOWN_IN_THE_TABLE = frozenset({"trial_began", "trial_succeeded"})
"""Entries of a tuning job's timeline that are not printed, since the live table of trials shows the same."""
_AROUND = 5
"""Lines of the terminal that a table of trials leaves free for its title, a note and the prompt."""


@dataclass(frozen=True, slots=True)
class Row:
    """The row of one replica in the live table."""

    replica: str
    task: str
    state: ReplicaState
    #: How long it has run; "" = it has not started.
    ran: str
    #: Its newest line, and that line's severity; "" = none.
    last: str
    severity: str


@dataclass(frozen=True, slots=True)
class Board:
    """What a follower knows of a job: its last view and the newest lines of its replicas."""

    job: JobView | None = None
    #: First line of the newest entry of its timeline.
    told: str = ""
    #: The newest line of each replica that is not blank.
    newest: tuple[tuple[str, LogLine], ...] = ()

    def after(self, update: Update) -> "Board":
        """Return the board that includes `update`."""
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

    def rows(self, now: Nanos) -> tuple[Row, ...]:
        """Return a row for each replica, in the order of the job's pools."""
        newest = dict(self.newest)
        return tuple(
            _row(replica, newest.get(replica.id), now)
            for replica in (self.job.program.replicas if self.job else ())
        )

    @property
    def tuned(self) -> JobView | None:
        """The tuning job itself, or the one that a pipeline runs; None = there is none."""
        return self.job.program if self.job and self.job.program.tuning else None

    @property
    def note(self) -> str:
        """What the job waits for while it is queued or prepared, with its position in the queue; "" = it is
        not waiting."""
        if self.job is None or self.job.state not in (JobState.QUEUED, JobState.PREPARING):
            return ""
        if self.job.waiting is None:
            return "; ".join(self.job.waits) if self.job.kind != "custom" else self.told
        place = f" (number {self.job.waiting.position})" if self.job.waiting.position else ""
        return "; ".join(self.job.waits) + place


def show(
    updates: Iterable[Update],
    now: Callable[[], int],
    *,
    lines: bool,
    progress: Callable[[], str] | None = None,
    job: JobView | None = None,
) -> JobView | None:
    """Show updates until they end, as a live table on a terminal, else as plain lines. Return the job's last
    view; None if there was none.

    `lines`: print every line of the replicas as well. `progress`: returns how far the job is (`HowFar`).
    `job`: its view before the first update; None = not known.
    """
    if sys.stdout.isatty() and not _is_dumb():
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        return live(updates, now, console, lines=lines, progress=progress, job=job)
    board = Board(job)
    for update in updates:
        board = board.after(update)
        for text in plain(update, board, lines=lines):
            click.echo(text)
    return board.job


def plain(update: Update, board: Board, *, lines: bool) -> Iterator[str]:
    """Yield the lines that tell of an update outside the live table."""
    match update:
        case TimelineView():
            yield timeline_line(update)
        case LogLine():
            if lines:
                yield board_line(update, board)
        case JobView():
            return
        case _:
            assert_never(update)


def timeline_line(entry: TimelineView) -> str:
    """Return the text of a timeline's entry that is printed among a job's lines."""
    text = f"{local_clock(entry.at)}  {entry.kind}: {first_line(entry.message)}"
    colour = entry_colour(entry.kind, entry.effect)
    return click.style(text, fg=colour) if colour else faint(text)


def board_line(line: LogLine, board: Board) -> str:
    """Return a replica's line with the replica's name before it."""
    return labelled(line, board.job) if board.job else line_text(line, line.replica, 0)


def first_line(text: str) -> str:
    """Return the first line of a message; "" if it is blank."""
    return (text.strip().splitlines() or [""])[0].strip()


def _row(replica: ReplicaView, newest: LogLine | None, now: Nanos) -> Row:
    started = replica.started
    return Row(
        replica=replica.id,
        task=replica.task,
        state=replica.state,
        ran=duration((replica.ended or now) - started) if started else "",
        # A program's own colours would run into the rest of the table.
        last=click.unstyle(newest.message).strip() if newest else "",
        severity=newest.severity if newest else "",
    )


class HowFar:
    """How far a job is, as text. The service is asked in a thread, only after the job has printed something,
    and at most every `_ASK_EVERY` seconds. `asked`: asks the service; None = the progress is not shown."""

    def __init__(self, asked: Callable[[], str] | None) -> None:
        self._asked = asked
        self._since = 0.0
        self._asking: threading.Thread | None = None
        #: True if lines came since the service was last asked.
        self._is_old = False
        #: The last answer; "" = not known.
        self.text = ""

    def printed(self) -> None:
        """Note that the job has printed something."""
        self._is_old = True

    def refresh(self) -> None:
        """Ask the service if it is time to. Call it regularly, not only after lines, so that the last lines
        of a burst count as well."""
        is_asking = self._asking is not None and self._asking.is_alive()
        if self._asked is None or not self._is_old or is_asking:
            return
        if time.monotonic() - self._since < _ASK_EVERY:
            return
        self._since, self._is_old = time.monotonic(), False
        self._asking = threading.Thread(target=self._look, args=(self._asked,), daemon=True)
        self._asking.start()

    def _look(self, asked: Callable[[], str]) -> None:
        # An older service has no such method. If the service is away, the stream's follower says so.
        with contextlib.suppress(Refused, Unreachable):
            self.text = asked()


def live(
    updates: Iterable[Update],
    now: Callable[[], int],
    console: "Console",
    *,
    lines: bool,
    progress: Callable[[], str] | None = None,
    job: JobView | None = None,
) -> JobView | None:
    """As `show`, by a live table on the terminal and lines above it."""
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    board = Board(job)
    far = HowFar(progress)
    # One object for all refreshes, because it remembers when it began to turn.
    spinner = Spinner("dots", style="yellow")

    def drawn() -> "RenderableType":
        running = board.job is not None and board.job.state is JobState.RUNNING
        if running:
            far.refresh()
        return _table(board, now(), spinner, console, far.text if running else "")

    with Live(get_renderable=drawn, console=console, refresh_per_second=_REFRESHES):
        for update in updates:
            board = board.after(update)
            if isinstance(update, LogLine):
                far.printed()
            if isinstance(update, TimelineView) and update.kind in _SHOWN_IN_THE_TABLE:
                continue
            for text in plain(update, board, lines=lines):
                console.print(Text.from_ansi(text))
    return board.job


def _table(
    board: Board, now: Nanos, spinner: "Spinner", console: "Console", far: str = ""
) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    title = Text()
    if board.job:
        title.append(board.job.display_name or board.job.id, "bold")
        title.append("  ").append_text(_state(board.job.state))
        waited = f"waits for {duration((board.job.ended or now) - board.job.created)}"
        title.append(f"  {board.job.lasted(now) or waited}", "bright_black")
        if far:
            title.append(f"  {far}", "bright_black")
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


def _replicas(board: Board, now: Nanos) -> "RenderableType":
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


@click.command()
@takes_job
@output_format("text", "Output as text, or as JSON lines at each change.")
@takes_endpoint
@click.pass_obj
def command(session: Session, endpoint: Endpoint, job: str, form: str) -> None:
    """Show the progress of a job until it ends.

    The exit status is 0 if the job succeeded, 1 otherwise, 130 after Ctrl-C (the job goes on).
    """
    client = endpoint.client(raw=form == "json")
    submitted = JobView.parse(find_job(client, job, endpoint.project))
    if form == "text":
        follow_to_end(client, submitted, session)
        return
    with _going_on(submitted):
        over = _printed(client, submitted)
    if over.state is not JobState.SUCCEEDED:
        raise SystemExit(1)


def follow_to_end(
    client: Client, job: JobView, session: Session, *, lines: bool = False, goes_on: bool = True
) -> None:
    """Show a job's progress until it is over, and how it ended. `lines`: print every line of its replicas as
    well. `goes_on`: the job does after Ctrl-C; otherwise KeyboardInterrupt is raised. Raises SystemExit
    unless it succeeded; Refused, Unreachable."""
    with _going_on(job) if goes_on else until_reader_leaves():
        over = watched(client, job, session, lines=lines)
    for line in ending(over, session.now()):
        click.echo(line)
    if over.state is not JobState.SUCCEEDED:
        raise SystemExit(1)


@contextlib.contextmanager
def _going_on(job: JobView) -> Generator[None]:
    """On Ctrl-C say that the job goes on, and raise SystemExit with status 130. Ends the command as well if
    nobody reads its output any more."""
    try:
        with until_reader_leaves():
            yield
    except KeyboardInterrupt:
        click.echo(
            f"The job goes on. Its lines: trainshed jobs logs -f {job.id}; end it: trainshed jobs cancel"
            f" {job.id}",
            err=True,
        )
        raise SystemExit(130) from None


def watched(client: Client, job: JobView, session: Session, *, lines: bool = False) -> JobView:
    """Show a job's progress until it is over, and return its last view. `lines`: print every line of its
    replicas as well. Raises Refused, Unreachable."""
    # Nobody can read what hundreds of trials write, and their table shows no lines.
    readable = job.program.tuning is None
    show(
        follow(client, job.uid, lines=readable, patience=_patience(client, job)),
        session.now,
        lines=lines and readable,
        progress=(lambda: _far(client, job.uid)) if readable else None,
        job=job,
    )
    return require_over(client, job.uid)


def _far(client: Client, uid: str) -> str:
    """Return the job's progress as text. Raises Refused, Unreachable."""
    return progress_text(read(client.get(job_path(uid, "/progress")), Progress))


def ending(over: JobView, now: Nanos) -> list[str]:
    """Return the lines that tell how a job ended: its state and duration, the best trial of a tuning job, the
    model of a pipeline, the error."""
    state = click.style(over.state.value, fg=state_colour(over.state), bold=True)
    lines = [f"{state} after {text}" if (text := over.lasted(now)) else state]
    tuned = over.program
    if tuned.tuning and (best := best_trial(tuned.tuning, tuned.trials)):
        lines.append(f"best is {click.style(best_text(tuned.tuning, best), fg='green')}")
        lines.append(f"with {assignment(best.parameters, 6)}")
    if over.model:
        lines.append(f"model {over.model}")
    return [*lines, over.error] if over.error else lines


def _printed(client: Client, job: JobView) -> JobView:
    views = ViewChanges()
    for view in _patience(client, job).outlast(
        lambda: client.stream(job_path(job.uid, "/watch")),
        lambda update: iter([update] if views.fresh(update) else []),
    ):
        print_data(view, stream=True)
    return require_over(client, job.uid)


def _patience(client: Client, job: JobView) -> Patience:
    return Patience(client, job.uid, f"trainshed jobs watch {job.id}")
