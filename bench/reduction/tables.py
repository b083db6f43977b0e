"""The figures as Markdown tables: budgets, the gain of the C part, the numerics, and the faults."""

from collections.abc import Mapping, Sequence

from bench.reduction.faults import Finding
from bench.reduction.figures import Comparison


def budget_table(compared: Sequence[Comparison]) -> str:
    lines = [
        "| workers + reducers, links | operation | gloo | reducers | ratio | limit | target | of the "
        "links' bound, gloo / ours | left a worker ÷ tensor, gloo / ours | with all headers |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for comparison in compared:
        limit = f"{comparison.theory.limit:.2f}" if comparison.theory else "–"
        bound = f"{comparison.ring_part:.1%} / {comparison.part_of_bound:.1%}" if comparison.theory else "–"
        lines.append(
            f"| {comparison.case.title} | {comparison.task.title} | {_seconds(comparison.gloo.seconds)} | "
            f"{_seconds(comparison.ours.seconds)} | **{comparison.ratio:.3f}×** | {limit} | "
            f"{_target(comparison)} | {bound} | "
            f"{comparison.gloo.sent:.3f} / {comparison.ours.sent:.3f}{_verdict(comparison.frugal)} | "
            f"{comparison.gloo.sent_on_wire:.3f} / {comparison.ours.sent_on_wire:.3f} |"
        )
    return "\n".join(lines)


def against(compared: Sequence[Comparison], log_lines: Mapping[str, Sequence[str]]) -> str:
    """Return the table of handicaps and their effects. `log_lines`: lines of the log, by case."""
    lines = [
        "| workers + reducers, links | against the reducers | operation | gloo | auto | ratio | target | "
        "last log message |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for comparison in compared:
        logged = log_lines.get(comparison.case.name, ())
        last = [*logged, "–"][-2 if logged else -1]
        lines.append(
            f"| {comparison.case.title} | {comparison.case.about} | {comparison.task.title} | "
            f"{_seconds(comparison.gloo.seconds)} | {_seconds(comparison.ours.seconds)} | "
            f"**{comparison.ratio:.3f}×** | {_target(comparison)} | {last} |"
        )
    return "\n".join(lines)


def costs(compared: Sequence[Comparison]) -> str:
    lines = [
        "| workers + reducers, links | operation | ratio | processor s per worker and GB, gloo / reducers | "
        "of all reducers per GB of the tensor | processors busy, gloo / reducers |",
        "|---|---|---|---|---|---|",
    ]
    for comparison in compared:
        scale = 1e9 / comparison.task.nbytes
        both = (comparison.gloo, comparison.ours)
        workers = " / ".join(f"{figures.worker_seconds * scale:.2f}" for figures in both)
        busy = " / ".join(f"{figures.busy:.0%}" for figures in both)
        reducers = comparison.ours.reducer_seconds * scale
        lines.append(
            f"| {comparison.case.title} | {comparison.task.title} | {comparison.ratio:.3f} | "
            f"{workers} | {reducers:.2f} | {busy} |"
        )
    return "\n".join(lines)


def numerics(compared: Sequence[Comparison]) -> str:
    """Return one row for each data type, from its first operations, and one row for training."""
    lines = [
        "| | RMS error, gloo | RMS error, reducers | sum in the order of ranks, bit by bit: gloo / "
        "reducers |",
        "|---|---|---|---|",
    ]
    seen: set[str] = set()
    for comparison in compared:
        if comparison.task.dtype and comparison.task.dtype not in seen:
            seen.add(comparison.task.dtype)
            lines.append(
                f"| {comparison.task.dtype} | {comparison.gloo.rms:.2e} | {comparison.ours.rms:.2e} "
                f"| {_yes(comparison.gloo.ordered)} / {_yes(comparison.ours.ordered)} |"
            )
    trained = next((comparison for comparison in compared if comparison.ours.losses), None)
    if trained is not None:
        apart = abs(trained.gloo.losses[-1] - trained.ours.losses[-1])
        lines.append(
            f"| loss of the last step | {trained.gloo.losses[-1]:.6g} | {trained.ours.losses[-1]:.6g} | "
            f"apart by {apart:.1e} |"
        )
    return "\n".join(lines)


def faults(findings: Sequence[Finding]) -> str:
    rows = (f"| {finding.what} | {finding.value} |{_verdict(finding.held)} |" for finding in findings)
    return "\n".join(["| what | what came of it | budget_table |", "|---|---|---|", *rows])


def _target(comparison: Comparison) -> str:
    if not comparison.task.target:
        return "–"
    return f"≥ {comparison.task.target:.2f}{_verdict(comparison.fast)}"


def _verdict(held: bool | None) -> str:
    return "" if held is None else " held" if held else " MISSED"


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
