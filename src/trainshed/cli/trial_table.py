"""Makes the table of trials, and the panel that `jobs watch` shows of a tuning job, as lines of styled pieces
for a live display or for plain output. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import click

from trainshed.cli.jobs.views import JobView
from trainshed.cli.text.colours import trial_colour
from trainshed.cli.text.moments import duration
from trainshed.cli.text.tables import Column, best_so_far, cut, grouped, spark, table, width
from trainshed.cli.tuning_views import TrialView, TuningView, assignment, shown
from trainshed.core.study.records import TrialState
from trainshed.core.study.spec import Goal
from trainshed.core.units import Nanos

Piece = tuple[str, str]
"""(text, style). The style is a colour, `bold`, or both, as rich and `terminal_text` read it."""
Line = tuple[Piece, ...]
FAINT = "bright_black"
BEST = "bold green"
_CURVE = 10
"""Width of a trial's own curve."""
_TITLE = 8
"""Width to which names of parameters and of the metric may be cut, if whole names do not fit."""
_NOTE, _LONGER = 12, 28
"""Width to which notes may be cut before curves or whole names are left out; and their maximum width if all
parameters share one column."""
_MOST_COLUMNS = 6
"""Maximum parameters that have columns of their own; more share one column."""
_NEWEST_SHARE = 3
"""If not all trials fit, about one of this many rows is for the newest trials that are over."""
_GAP = "  "


_BAR = 24
"""Width of the bar of progress; the chart of the objective is one to two times as wide."""

_LABEL = 12
"""Maximum width of a label."""

_LEAST_ROWS = 3
"""Minimum rows of trials, however low the terminal is."""


def trial_table(
    metric: str,
    trials: Sequence[TrialView],
    best: Collection[int],
    now: Nanos,
    max_width: int | None,
) -> list[Line]:
    """Return the lines of a table of trials, the titles first. `best`: numbers of the trials that are marked.
    `max_width`: maximum width of a line, None = unlimited."""
    tables = (_cells(form, metric, trials, best, now) for form in _forms(trials))
    form, columns, rows = next(
        (cells for cells in tables if max_width is None or _least(*cells) <= max_width),
        _cells(_form(trials), metric, trials, best, now),
    )
    header, *cells = table(columns, rows, max_width)
    lines: list[Line] = [((_GAP.join(header).rstrip(), FAINT),)]
    for trial, row in zip(trials, cells, strict=True):
        lines.append(_line(trial, row, form, starred=trial.number in best))
    return lines


def chosen(tuning: TuningView, trials: Sequence[TrialView], max_rows: int) -> tuple[TrialView, ...]:
    """Return at most `max_rows` trials to be shown, ascending by number: the best one, those that run, then
    the newest and the best of the others."""
    if len(trials) <= max_rows:
        return tuple(trials)
    running = [trial for trial in trials if not trial.state.is_over]
    over = [trial for trial in trials if trial.state.is_over]
    # The best one is shown in any case.
    kept = {trial.number for trial in [*ranked(tuning, trials)[:1], *running[::-1]][:max_rows]}
    left = max_rows - len(kept)
    kept |= {trial.number for trial in over[::-1][: left // _NEWEST_SHARE]}
    for trial in [*ranked(tuning, trials), *over[::-1]]:
        if len(kept) >= max_rows:
            break
        kept.add(trial.number)
    return tuple(trial for trial in trials if trial.number in kept)


def ranked(tuning: TuningView, trials: Sequence[TrialView]) -> list[TrialView]:
    """Return the trials with a result, the best first; of equal ones the earlier first."""
    sign = -1 if tuning.goal is Goal.MAXIMIZE else 1
    valued = [
        (sign * trial.value, trial.number, trial) for trial in trials if trial.value is not None
    ]
    return [trial for _, _, trial in sorted(valued, key=lambda entry: entry[:2])]


def terminal_text(line: Line) -> str:
    """Return a line with terminal sequences, which `click.echo` removes for pipes."""
    return "".join(_styled(text, style) for text, style in line)


@dataclass(frozen=True, slots=True)
class _Form:
    """A form of the table of trials; forms differ in how wide they are."""

    #: Names of the parameters.
    names: tuple[str, ...]
    #: Whether there is a column for notes.
    notes: bool
    #: Whether each parameter has a column of its own.
    own_columns: bool = False
    #: Whether there is a column with each trial's own curve.
    curves: bool = False
    #: Whether titles are never cut.
    whole: bool = False

    def columns(self, metric: str, trials: Sequence[TrialView]) -> list[Column]:
        return [
            Column("TRIAL", right=True),
            Column("STATE"),
            Column(self._title(metric, map(_reached, trials)), right=True),
            Column("STEP", right=True),
            Column("TIME", right=True),
            *([Column("CURVE")] if self.curves else []),
            *self._parameter_columns(trials),
            *([Column("NOTE", flexible=True)] if self.notes else []),
        ]

    def cells(self, trial: TrialView, now: Nanos, *, starred: bool) -> list[str]:
        parameters = dict(trial.parameters)
        values = [shown(parameters[name]) if name in parameters else "–" for name in self.names]
        return [
            f"{'★ ' if starred else ''}{trial.number}",
            trial.word,
            _reached(trial),
            str(trial.step) if trial.step else "–",
            duration(trial.ran(now)) if trial.started else "–",
            *([_curve(trial)] if self.curves else []),
            *(values if self.own_columns else [assignment(trial.parameters)]),
            *(
                [_note(trial) if self.own_columns else cut(_note(trial), _LONGER)]
                if self.notes
                else []
            ),
        ]

    def _parameter_columns(self, trials: Sequence[TrialView]) -> list[Column]:
        if not self.own_columns:
            return [Column("PARAMETERS", flexible=True)]
        parameters = [dict(trial.parameters) for trial in trials]
        columns: list[Column] = []
        for name in self.names:
            values = [values[name] for values in parameters if name in values]
            right = not any(isinstance(value, str) for value in values)
            columns.append(Column(self._title(name, map(shown, values)), right=right))
        return columns

    def _title(self, name: str, cells: Iterable[str]) -> str:
        return name if self.whole else cut(name, max(_TITLE, *map(width, cells)))


_Cells = tuple[_Form, list[Column], list[list[str]]]


def _form(trials: Sequence[TrialView]) -> _Form:
    """Return the narrowest form."""
    names = dict.fromkeys(name for trial in trials for name, _ in trial.parameters)
    return _Form(tuple(names), notes=any(map(_note, trials)))


def _forms(trials: Sequence[TrialView]) -> list[_Form]:
    """Return the forms with a column per parameter, the widest first; [] if there are too many parameters."""
    least = _form(trials)
    if len(least.names) > _MOST_COLUMNS:
        return []
    curves = any(len(trial.curve) > 1 for trial in trials)
    return [
        replace(least, own_columns=True, curves=with_curves, whole=whole)
        for with_curves in ((True, False) if curves else (False,))
        for whole in (True, False)
    ]


def _cells(
    form: _Form, metric: str, trials: Sequence[TrialView], best: Collection[int], now: Nanos
) -> _Cells:
    rows = [form.cells(trial, now, starred=trial.number in best) for trial in trials]
    return form, form.columns(metric, trials), rows


def _least(form: _Form, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> int:
    """Return the width that the table needs so that only notes are cut."""
    widths = [
        max(width(text) for text in (column.title, *(row[index] for row in rows)))
        for index, column in enumerate(columns)
    ]
    if form.notes:
        widths[-1] = min(widths[-1], _NOTE)
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(trial: TrialView, row: Sequence[str], form: _Form, *, starred: bool) -> Line:
    plain = BEST if starred else ""
    styles = {
        1: BEST if starred else trial_colour(trial.state, trial.job_state),
        2: plain or ("" if trial.state.is_over else "cyan"),
        4: plain or FAINT,
    }
    if form.curves:
        styles[5] = plain or FAINT
    if _note(trial):
        why = "red" if trial.state is TrialState.INFEASIBLE else "yellow"
        styles[len(row) - 1] = why if trial.reason or trial.stopped_early else FAINT
    pieces: list[Piece] = []
    for index, cell in enumerate(row):
        if index:
            pieces.append((_GAP, ""))
        pieces.append((cell, styles.get(index, plain)))
    while pieces and not pieces[-1][0].strip():
        pieces.pop()
    return tuple(pieces)


def _curve(trial: TrialView) -> str:
    values = grouped(trial.curve, _CURVE, lambda _, later: later)
    return spark(values).ljust(_CURVE) if values else ""


def _reached(trial: TrialView) -> str:
    return "–" if trial.reached is None else shown(trial.reached)


def _note(trial: TrialView) -> str:
    """Return the note of a trial: why it has no result, that it was stopped early, or its other metrics. For
    a failed program it is the program's last line, which stands in the public message between the first line
    and the last one, a link."""
    if lines := trial.reason.strip().splitlines():
        said = [line.strip() for line in lines[1:-1] if line.strip()]
        return said[-1] if said else lines[0].strip()
    return "stopped early" if trial.stopped_early else trial.more


def _styled(text: str, style: str) -> str:
    words = style.split()
    colour = next((word for word in words if word != "bold"), None)
    return click.style(text, fg=colour, bold="bold" in words or None)


def panel(job: JobView, now: Nanos, max_width: int, height: int | None = None) -> list[Line]:
    """Return the lines that show a tuning job below its title: progress, trend, best trial and table; [] for
    another job. `max_width`: maximum width of a line; `height`: maximum lines, None = unlimited."""
    tuning = job.tuning
    if tuning is None:
        return []
    lines = [_progress(tuning), *_trend(tuning, job.trials, max_width)]
    if best := best_trial(tuning, job.trials):
        lines.append(_best(tuning, best, max_width))
    if not job.trials:
        return lines
    rows = len(job.trials)
    if height is not None:
        # One line is the table's titles, one is empty, one says how many trials are left out.
        rows = max(_LEAST_ROWS, height - len(lines) - 3)
    trials = chosen(tuning, job.trials, rows)
    lines += [(), *trial_table(tuning.metric, trials, {tuning.best}, now, max_width)]
    if hidden := len(job.trials) - len(trials):
        lines.append(((f"… and {hidden} more: trainshed jobs describe {job.id}", FAINT),))
    return lines


def best_trial(tuning: TuningView, trials: tuple[TrialView, ...]) -> TrialView | None:
    """Return the best trial so far; None if none has a result."""
    return next((trial for trial in trials if trial.number == tuning.best), None)


def best_text(tuning: TuningView, best: TrialView) -> str:
    """Return the best trial's result as text, such as `trial 5: accuracy 0.9667 at step 12`."""
    assert best.value is not None
    return f"trial {best.number}: {tuning.metric} {shown(best.value, 6)} at step {best.step}"


def counts(tuning: TuningView) -> str:
    """Return the numbers of trials as text, such as `7 of 12 done, 4 running, 1 without a result`."""
    parts = [f"{tuning.done} of {tuning.most} done"]
    if tuning.running:
        parts.append(f"{tuning.running} running")
    if tuning.infeasible:
        parts.append(f"{tuning.infeasible} without a result")
    if tuning.exhausted:
        parts.append("nothing left to try")
    return ", ".join(parts)


def _progress(tuning: TuningView) -> Line:
    done = round(_BAR * min(1.0, tuning.done / tuning.most))
    runs = min(_BAR - done, round(_BAR * tuning.running / tuning.most))
    return (
        _label(tuning, "trials"),
        ("━" * done, "green"),
        ("━" * runs, "cyan"),
        ("━" * (_BAR - done - runs), FAINT),
        ("  " + counts(tuning), ""),
    )


def _trend(tuning: TuningView, trials: tuple[TrialView, ...], max_width: int) -> Iterator[Line]:
    """Yield two charts over the trials' numbers, on the same scale: the objective, and the best so far."""
    over = [trial for trial in trials if trial.state.is_over]
    if sum(trial.value is not None for trial in over) < 2:
        return
    better = max if tuning.goal is Goal.MAXIMIZE else min
    values = [trial.value for trial in over]
    blocks = max(_BAR, min(max_width - 2 * _LABEL, 2 * _BAR))
    drawn = grouped(values, blocks, better)
    so_far = grouped(best_so_far(values, better), blocks, better)
    # Both are drawn as one line, so that the same height means the same value in both.
    both = spark([*drawn, *so_far])
    known = [value for value in values if value is not None]
    span = f"  {shown(min(known))} to {shown(max(known))}"
    marked = _marked(tuning, over, both[: len(drawn)])
    yield (_label(tuning, tuning.metric), *marked, (span, FAINT))
    yield (_label(tuning, "so far"), (both[len(drawn) :], "green"))


def _marked(tuning: TuningView, over: list[TrialView], blocks: str) -> Iterator[Piece]:
    """Yield the blocks with their colours. If each stands for one trial, the best trial and those without a
    result have colours of their own."""
    if len(over) != len(blocks):
        yield blocks, "cyan"
        return
    for trial, block in zip(over, blocks, strict=True):
        if trial.number == tuning.best:
            yield block, BEST
        else:
            yield block, "red" if trial.state is TrialState.INFEASIBLE else "cyan"


def _best(tuning: TuningView, best: TrialView, max_width: int) -> Line:
    head = best_text(tuning, best)
    parameters = f"  {assignment(best.parameters)}"
    label = _label(tuning, "best")
    left = max_width - width(label[0]) - width(head)
    return (label, (head, BEST), (cut(parameters, left) if left > len("  a=…") else "", ""))


def _label(tuning: TuningView, text: str) -> Piece:
    cells = min(_LABEL, max(len("so far"), width(tuning.metric)))
    return cut(text, cells).ljust(cells + 2), FAINT


def goal(tuning: TuningView) -> str:
    """Return the goal as text, such as `maximize accuracy`."""
    return f"{tuning.goal.value.lower()} {tuning.metric}"
