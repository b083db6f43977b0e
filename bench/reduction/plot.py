"""The figures as a plot: speedup over gloo, and throughput by tensor size. Requires the dependency group for
development."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.reduction.cases import MIB
from bench.reduction.figures import Comparison

_OURS, _GLOO, _INK, _FAINT = "#1a6fb0", "#9a9a9a", "#222222", "#d8d8d8"
_STYLE = {
    # Keep text as text instead of paths, and make the file reproducible.
    "svg.fonttype": "none",
    "svg.hashsalt": "trainshed",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(ratios: Sequence[Comparison], sizes: Sequence[Comparison], path: Path) -> None:
    """Draw an SVG. `ratios`: comparisons that are drawn as bars. `sizes`: comparisons that are points of the
    curves."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawing: Any = mpl  # The type annotations of the library are incomplete.
    with drawing.rc_context(_STYLE):
        figure: Any = Figure(figsize=(9, 0.9 + 0.34 * max(len(ratios), 9)), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _bars(left, ratios)
        _curves(right, sizes)
        figure.savefig(
            path, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None
        )


def _bars(axes: Any, compared: Sequence[Comparison]) -> None:
    rows = range(len(compared))
    names = [f"{comparison.task.title}\n{comparison.case.title}" for comparison in compared]
    axes.barh(rows, [comparison.ratio for comparison in compared], height=0.6, color=_OURS, label="measured")
    for row, comparison in zip(rows, compared, strict=True):
        axes.text(0.04, row, f"{comparison.ratio:.2f}×", color="white", va="center")
        if comparison.theory:
            _tick(axes, comparison.theory.limit, row, _INK)
        if comparison.task.target:
            _tick(axes, comparison.task.target, row, "#d9822b")
    axes.plot([], [], color=_INK, label="limit by theory")
    axes.plot([], [], color="#d9822b", label="budget_table")
    axes.axvline(1, color=_INK, linewidth=0.6)
    axes.set_yticks(rows, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("times faster than gloo")
    axes.legend(loc="lower right", frameon=True, framealpha=1, edgecolor=_FAINT, fontsize=7)


def _tick(axes: Any, at: float, row: int, colour: str) -> None:
    axes.plot([at, at], [row - 0.38, row + 0.38], color=colour, linewidth=2)


def _curves(axes: Any, compared: Sequence[Comparison]) -> None:
    compared = sorted(compared, key=lambda comparison: comparison.task.nbytes)
    if not compared:
        axes.set_axis_off()
        return
    sizes = [comparison.task.nbytes / MIB for comparison in compared]
    curves = (
        ("reducers", "o-", _OURS, [comparison.ours.seconds for comparison in compared]),
        ("gloo", "o-", _GLOO, [comparison.gloo.seconds for comparison in compared]),
        (
            "bound of reducers",
            "--",
            _OURS,
            [comparison.theory.reducers if comparison.theory else 0 for comparison in compared],
        ),
        (
            "bound of a ring",
            "--",
            _GLOO,
            [comparison.theory.ring if comparison.theory else 0 for comparison in compared],
        ),
    )
    for label, style, colour, seconds in curves:
        rates = [
            comparison.task.nbytes * 8e-6 / duration
            for comparison, duration in zip(compared, seconds, strict=True)
            if duration
        ]
        axes.semilogx(sizes[: len(rates)], rates, style, ms=4, lw=1.2, color=colour, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"tensor, MiB ({compared[0].case.title})")
    axes.set_ylabel("tensor ÷ time of its all-reduce, Mbit/s")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes], fontsize=7)
    axes.minorticks_off()
    axes.grid(color=_FAINT, linewidth=0.5)
    axes.legend(loc="lower right", framealpha=1, edgecolor=_FAINT, fontsize=7)
