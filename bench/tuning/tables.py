"""The figures as Markdown tables, and the check of the budgets."""

from collections.abc import Sequence
from statistics import median

from bench.tuning.engines import Engine
from bench.tuning.figures import RANDOM, Standing, complete, regrets_after, standings
from bench.tuning.pitfalls import FAILING, SPOILT
from bench.tuning.runs import Result

DEFAULT_ENGINE = Engine.GP_BANDIT.value
TPE = Engine.OPTUNA_TPE.value
RATIO = 0.02
"""Maximum ratio to random search's regret after the last trial, as a geometric mean."""


def text(results: Sequence[Result], at: Sequence[int]) -> str:
    """Return the standings, and the medians by case."""
    names = _names(results)
    parts = [_standings(standings(results, names, trials), trials) for trials in at]
    parts += [_cases(results, names, trials) for trials in at]
    parts += [_beaten(results)]
    return "\n\n".join(part for part in parts if part)


def verdicts(results: Sequence[Result], trials: int) -> list[tuple[str, bool]]:
    """Return the budgets of this service's algorithm, and whether they are met. The result is empty if a
    candidate of the comparison is missing."""
    names = {result.task.candidate for result in results}
    table = {standing.candidate: standing for standing in standings(results, sorted(names), trials)}
    if DEFAULT_ENGINE not in table or RANDOM not in table:
        return []
    own = table[DEFAULT_ENGINE]
    first = own.rank <= min(standing.rank for standing in table.values())
    return [
        (f"first on median rank after {trials} trials: {own.rank:g}", first),
        (f"at most {RATIO} of random search's regret: {own.ratio:.4f}", own.ratio <= RATIO),
        (f"never behind random search by more than noise: {own.losses} times", own.losses == 0),
    ]


def pitfalls(results: Sequence[Result], trials: int) -> str:
    """Return the median regret of each candidate."""
    return _cases(results, _names(results), trials)


def _names(results: Sequence[Result]) -> list[str]:
    done = {result.task.candidate for result in results}
    return [name for name in (RANDOM, *(e.value for e in Engine)) if name in done]


def promises(results: Sequence[Result], trials: int) -> list[tuple[str, bool]]:
    """Return the budgets of the pitfalls, and whether they are met. Cases that were not run are skipped."""
    outcomes: list[tuple[str, bool]] = []
    cases = regrets_after(results, trials)
    for problem in (*FAILING, *SPOILT):
        case = cases.get((problem, 1), {})
        if DEFAULT_ENGINE in case and TPE in case:
            own, other = median(case[DEFAULT_ENGINE]), median(case[TPE])
            what = f"{problem}: no worse than {TPE} after {trials} trials: {own:.3g}, {other:.3g}"
            outcomes.append((what, own <= other))
    return outcomes


def _standings(rows: Sequence[Standing], trials: int) -> str:
    if not rows:
        return ""
    lines = [
        f"| after {trials} trials | median rank | regret ÷ random's (95 %) | better / worse than random by "
        "more than noise | seconds per suggestion |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {standing.candidate} | {standing.rank:g} | "
        f"{standing.ratio:.4f} ({standing.low:.4f}–{standing.high:.4f}) | "
        f"{standing.wins} / {standing.losses} | {standing.seconds:.3f} |"
        for standing in rows
    ]
    return "\n".join(lines)


def _cases(results: Sequence[Result], names: Sequence[str], trials: int) -> str:
    cases = complete(regrets_after(results, trials), names)
    if not cases:
        return ""
    lines = [
        f"| median regret after {trials} | pending | seeds | {' | '.join(names)} |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for (problem, pending), case in cases.items():
        cells = " | ".join(f"{median(case[name]):.3g}" for name in names)
        seeds = min(len(regrets) for regrets in case.values())
        lines.append(f"| {problem} | {pending} | {seeds} | {cells} |")
    return "\n".join(lines)


def _beaten(results: Sequence[Result]) -> str:
    """Return a note for each best known value that a candidate has improved."""
    worst: dict[str, float] = {}
    for result in results:
        worst[result.task.problem] = min(worst.get(result.task.problem, 0.0), result.regrets[-1])
    return "\n".join(
        f"{problem}: a value better than the best known by {-regret:.3g} was found; "
        "bench/tuning/learning.py wants it."
        for problem, regret in sorted(worst.items())
        if regret < -1e-9
    )
