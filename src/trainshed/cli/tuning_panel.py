"""A tuning job at a glance: how far it is, the best so far, the objective over the trials, the trials. Pure."""

from collections.abc import Iterator

from trainshed.cli.sparks import best_so_far, grouped, spark
from trainshed.cli.tables import cut, width
from trainshed.cli.trial_table import BEST, FAINT, Line, Piece, chosen, trial_table
from trainshed.cli.tuning_views import TrialView, TuningView, assignment, shown
from trainshed.cli.views import JobView
from trainshed.core.study.spec import Goal
from trainshed.core.study.trials import TrialState

_BAR = 24
_LABEL = 12
"""Characters that a label has at most."""
_LEAST_ROWS = 3


def panel(job: JobView, now: int, room: int, height: int | None = None) -> list[Line]:
    """The lines below the title. `room`: characters per line; `height`: so many lines at most, None for no bound."""
    tuning = job.tuning
    if tuning is None:
        return []
    lines = [_progress(tuning), *_trend(tuning, job.trials, room)]
    if best := best_trial(tuning, job.trials):
        lines.append(_best(tuning, best, room))
    if not job.trials:
        return lines
    rows = len(job.trials)
    if height is not None:
        # Of the height one line is the table's titles, one is empty, one says how many are left out.
        rows = max(_LEAST_ROWS, height - len(lines) - 3)
    trials = chosen(tuning, job.trials, rows)
    lines += [(), *trial_table(tuning.metric, trials, {tuning.best}, now, room)]
    if hidden := len(job.trials) - len(trials):
        lines.append(((f"… and {hidden} more: trainshed jobs describe {job.id}", FAINT),))
    return lines


def best_trial(tuning: TuningView, trials: tuple[TrialView, ...]) -> TrialView | None:
    """The best so far, None as long as none has a result."""
    return next((trial for trial in trials if trial.number == tuning.best), None)


def best_text(tuning: TuningView, best: TrialView) -> str:
    """`trial 5: accuracy 0.9667 at step 12`."""
    assert best.value is not None
    return f"trial {best.number}: {tuning.metric} {shown(best.value, 6)} at step {best.step}"


def counts(tuning: TuningView) -> str:
    """`7 of 12 done, 4 running, 1 without a result`."""
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


def _trend(tuning: TuningView, trials: tuple[TrialView, ...], room: int) -> Iterator[Line]:
    """The objective by the trials' numbers, and the best of all up to each, on the same scale."""
    over = [trial for trial in trials if trial.state.is_over]
    if sum(trial.value is not None for trial in over) < 2:
        return
    better = max if tuning.goal is Goal.MAXIMIZE else min
    values = [trial.value for trial in over]
    blocks = max(_BAR, min(room - 2 * _LABEL, 2 * _BAR))
    drawn = grouped(values, blocks, better)
    so_far = grouped(best_so_far(values, better), blocks, better)
    # One line is drawn with both in it, so that the same height means the same in both.
    both = spark([*drawn, *so_far])
    known = [value for value in values if value is not None]
    span = f"  {shown(min(known))} to {shown(max(known))}"
    marked = _marked(tuning, over, both[: len(drawn)])
    yield (_label(tuning, tuning.metric), *marked, (span, FAINT))
    yield (_label(tuning, "so far"), (both[len(drawn) :], "green"))


def _marked(tuning: TuningView, over: list[TrialView], blocks: str) -> Iterator[Piece]:
    """The blocks, with the best in its colour and those without a result in theirs, if each stands for one trial."""
    if len(over) != len(blocks):
        yield blocks, "cyan"
        return
    for trial, block in zip(over, blocks, strict=True):
        if trial.number == tuning.best:
            yield block, BEST
        else:
            yield block, "red" if trial.state is TrialState.INFEASIBLE else "cyan"


def _best(tuning: TuningView, best: TrialView, room: int) -> Line:
    head = best_text(tuning, best)
    told = f"  {assignment(best.parameters)}"
    label = _label(tuning, "best")
    left = room - width(label[0]) - width(head)
    return (label, (head, BEST), (cut(told, left) if left > len("  a=…") else "", ""))


def _label(tuning: TuningView, text: str) -> Piece:
    room = min(_LABEL, max(len("so far"), width(tuning.metric)))
    return cut(text, room).ljust(room + 2), FAINT


def goal(tuning: TuningView) -> str:
    """`maximize accuracy`."""
    return f"{tuning.goal.value.lower()} {tuning.metric}"
