"""The figures as Markdown: what is promised, what the C part is worth, the numerics, the faults."""

from collections.abc import Mapping, Sequence

from bench.reduction.faults import Finding
from bench.reduction.figures import Comparison


def promised(found: Sequence[Comparison]) -> str:
    lines = [
        "| workers + reducers, links | operation | gloo | reducers | ratio | limit | target | of the "
        "links' bound, gloo / ours | left a worker ÷ tensor, gloo / ours | with all headers |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        limit = f"{one.theory.limit:.2f}" if one.theory else "–"
        bound = f"{one.ring_part:.1%} / {one.part_of_bound:.1%}" if one.theory else "–"
        lines.append(
            f"| {one.case.title} | {one.task.title} | {_seconds(one.gloo.seconds)} | "
            f"{_seconds(one.ours.seconds)} | **{one.ratio:.3f}×** | {limit} | {_target(one)} | {bound} | "
            f"{one.gloo.sent:.3f} / {one.ours.sent:.3f}{_verdict(one.frugal)} | "
            f"{one.gloo.sent_on_wire:.3f} / {one.ours.sent_on_wire:.3f} |"
        )
    return "\n".join(lines)


def against(found: Sequence[Comparison], said: Mapping[str, Sequence[str]]) -> str:
    """What is against the reducers, and what becomes of it. `said`: the lines of the log, by case."""
    lines = [
        "| workers + reducers, links | against the reducers | operation | gloo | auto | ratio | target | "
        "what the log says at last |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        last = [*said.get(one.case.name, ()), "–"][-2 if said.get(one.case.name) else -1]
        lines.append(
            f"| {one.case.title} | {one.case.about} | {one.task.title} | {_seconds(one.gloo.seconds)} | "
            f"{_seconds(one.ours.seconds)} | **{one.ratio:.3f}×** | {_target(one)} | {last} |"
        )
    return "\n".join(lines)


def costs(found: Sequence[Comparison]) -> str:
    lines = [
        "| workers + reducers, links | operation | ratio | processor s per worker and GB, gloo / reducers | "
        "of all reducers per GB of the tensor | processors busy, gloo / reducers |",
        "|---|---|---|---|---|---|",
    ]
    for one in found:
        scale = 1e9 / one.task.nbytes
        both = (one.gloo, one.ours)
        workers = " / ".join(f"{each.worker_seconds * scale:.2f}" for each in both)
        busy = " / ".join(f"{each.busy:.0%}" for each in both)
        reducers = one.ours.reducer_seconds * scale
        lines.append(
            f"| {one.case.title} | {one.task.title} | {one.ratio:.3f} | {workers} | {reducers:.2f} | "
            f"{busy} |"
        )
    return "\n".join(lines)


def numerics(found: Sequence[Comparison]) -> str:
    """One row for each type, of the operations that gave it first, and one for training."""
    lines = [
        "| | RMS error, gloo | RMS error, reducers | sum in the order of ranks, bit by bit: gloo / "
        "reducers |",
        "|---|---|---|---|",
    ]
    seen: set[str] = set()
    for one in found:
        if one.task.dtype and one.task.dtype not in seen:
            seen.add(one.task.dtype)
            lines.append(
                f"| {one.task.dtype} | {one.gloo.rms:.2e} | {one.ours.rms:.2e} "
                f"| {_yes(one.gloo.ordered)} / {_yes(one.ours.ordered)} |"
            )
    trained = next((one for one in found if one.ours.losses), None)
    if trained is not None:
        apart = abs(trained.gloo.losses[-1] - trained.ours.losses[-1])
        lines.append(
            f"| loss of the last step | {trained.gloo.losses[-1]:.6g} | {trained.ours.losses[-1]:.6g} | "
            f"apart by {apart:.1e} |"
        )
    return "\n".join(lines)


def faults(found: Sequence[Finding]) -> str:
    rows = (f"| {one.what} | {one.value} |{_verdict(one.held)} |" for one in found)
    return "\n".join(["| what | what came of it | promised |", "|---|---|---|", *rows])


def _target(one: Comparison) -> str:
    if not one.task.target:
        return "–"
    return f"≥ {one.task.target:.2f}{_verdict(one.fast)}"


def _verdict(held: bool | None) -> str:
    return "" if held is None else " held" if held else " MISSED"


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{value * 1000:.1f} ms"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
