"""`trainshed experiments`: lists the experiments of a project, describes and compares their runs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint, takes_place
from trainshed.cli.groups import ListGroup
from trainshed.cli.output_format import print_data, takes_form, terminal_width
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import counted, local_moment, parse_moment
from trainshed.cli.text.printable import one_line
from trainshed.cli.text.tables import Column, cut, pairs, spark, titled
from trainshed.cli.tuning_views import shown
from trainshed.wire.trainshed_v1.experiments import (
    Curve,
    Experiment,
    ExperimentList,
    ExperimentRun,
    ExperimentRuns,
    Value,
)
from trainshed.wire.trainshed_v1.record import plain, read

_EXPERIMENTS = "/trainshed/v1/experiments"
_DESCRIBED = 20
"""Runs that `describe` shows by default, and the most that an error lists."""
_COMPARED = 1_000
"""Maximum runs that `compare` reads if none is named."""
_LONGEST = 40
"""Maximum characters of a value or a title."""
_COLOURS: Final = {"RUNNING": "cyan", "COMPLETE": "green", "FAILED": "red", "CANCELLED": "magenta"}
_LOWER: Final = frozenset(
    {"loss", "error", "err", "mae", "mse", "rmse", "mape", "perplexity", "wer", "cer"}
)
_HIGHER: Final = frozenset(
    {"accuracy", "acc", "auc", "f1", "precision", "recall", "r2", "bleu", "iou", "reward"}
)
"""Words in a metric's name that tell that higher values are better; those of `_LOWER`, lower ones."""

_in_a_place = takes_place("experiments")


@click.group(cls=ListGroup)
def command() -> None:
    """List experiments, describe their runs, and compare them."""


@command.command("list")
@_in_a_place
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, *, project: str | None, region: str | None, form: str) -> None:
    """List the experiments, newest first."""
    place = _Place.of(endpoint, project, region, raw=form == "json")
    answers = list(place.pages(_EXPERIMENTS, limit=None))
    if form == "json":
        print_data([each for answer in answers for each in answer["experiments"]])
        return
    experiments = [each for answer in answers for each in read(answer, ExperimentList).experiments]
    if not experiments:
        click.echo(f"No experiments in {place}. How to log one: docs/experiments.md", err=True)
        return
    for line in experiment_table(experiments, terminal_width()):
        click.echo(line)


@command.command(short_help="Show an experiment and its runs: parameters, metrics, curves, jobs.")
@click.argument("experiment")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_DESCRIBED,
    show_default=True,
    metavar="N",
    help="Show the newest N runs.",
)
@_in_a_place
@takes_form
@takes_endpoint
def describe(
    endpoint: Endpoint,
    *,
    experiment: str,
    limit: int,
    project: str | None,
    region: str | None,
    form: str,
) -> None:
    """Show an experiment and its runs, newest first: state, parameters, metrics, curves and jobs."""
    place = _Place.of(endpoint, project, region, raw=form == "json")
    answer = place.runs(experiment, limit, curves=True)
    if form == "json":
        print_data(answer)
        return
    for line in description(read(answer, ExperimentRuns)):
        click.echo(line)


@command.command(short_help="Compare runs: a table of their parameters and metrics.")
@click.argument("experiment")
@click.argument("run", nargs=-1)
@click.option("--by", metavar="METRIC", help="Order by METRIC, the best run first.")
@click.option(
    "--descending/--ascending",
    default=None,
    help="With --by: whether the largest or the smallest value is best. Default: as its name tells.",
)
@click.option("--all", "every", is_flag=True, help="Show parameters that do not differ, too.")
@_in_a_place
@takes_form
@takes_endpoint
def compare(
    endpoint: Endpoint,
    *,
    experiment: str,
    run: tuple[str, ...],
    by: str | None,
    descending: bool | None,
    every: bool,
    project: str | None,
    region: str | None,
    form: str,
) -> None:
    """Compare RUNs of an experiment, without RUN all of them: parameters that differ, metrics, the best of
    each metric marked by ★.

    Which values of a metric are better is told by --by, or by a word in its name, such as loss or accuracy.
    """
    if descending is not None and by is None:
        raise click.UsageError(
            "--descending and --ascending say how --by METRIC orders; give --by."
        )
    place = _Place.of(endpoint, project, region, raw=form == "json")
    answer = place.runs(experiment, None if run else _COMPARED, curves=False)
    runs = chosen(read(answer, ExperimentRuns).runs, run)
    comparison = Comparison.of(runs, by, descending)
    if form == "json":
        document = {
            "experiment": answer["experiment"],
            "runs": [plain(each) for each in comparison.runs],
            "differing": list(comparison.differing),
            "best": {metric: list(names) for metric, names in comparison.best.items()},
        }
        print_data(document)
        return
    if not comparison.runs:
        click.echo(f"{one_line(experiment)} has no runs yet.", err=True)
        return
    for line in comparison_table(comparison, every=every):
        click.echo(line)
    if answer["nextPageToken"]:
        click.echo(f"Only the newest {_COMPARED} runs are compared.", err=True)


def experiment_table(experiments: Sequence[Experiment], max_width: int | None) -> list[str]:
    """Return the lines of a table of experiments."""
    columns = (
        Column("EXPERIMENT"),
        Column("RUNS", right=True),
        Column("CHANGED"),
        Column("DESCRIPTION", flexible=True),
    )
    rows = [
        (
            experiment.name,
            str(experiment.runs),
            local_moment(parse_moment(experiment.changed)),
            experiment.description,
        )
        for experiment in experiments
    ]
    return titled(columns, rows, max_width)


def description(answer: ExperimentRuns) -> Iterator[str]:
    """Yield the lines that describe an experiment and its runs."""
    experiment = answer.experiment
    facts = [
        ("Experiment", f"{experiment.name}  ({answer.project}, {answer.location})"),
        ("Description", experiment.description),
        ("Created", local_moment(parse_moment(experiment.created))),
        ("Changed", local_moment(parse_moment(experiment.changed))),
        ("Runs", str(experiment.runs)),
    ]
    yield from pairs([(label, one_line(text)) for label, text in facts if text])
    for run in answer.runs:
        yield ""
        yield from _run_lines(run)
    if len(answer.runs) < experiment.runs:
        yield ""
        yield faint(
            f"{experiment.runs - len(answer.runs)} older ones are not shown; show more with --limit N."
        )


def _run_lines(run: ExperimentRun) -> Iterator[str]:
    state = one_line(run.state)
    yield "  ".join(
        (
            click.style(one_line(run.name), bold=True),
            click.style(state, fg=_COLOURS.get(state)),
            faint(local_moment(parse_moment(run.created))),
        )
    )
    facts = [
        ("parameters", _assignments(run.parameters)),
        ("metrics", _assignments(run.metrics)),
        *((cut(one_line(curve.name), _LONGEST), _curve_text(curve)) for curve in run.curves),
        *(("job", one_line(job)) for job in run.jobs),
    ]
    for line in pairs([(label, text) for label, text in facts if text]):
        yield f"  {line}"


def _assignments(values: Mapping[str, Value]) -> str:
    return ", ".join(f"{one_line(name)}={_text(value)}" for name, value in values.items())


def _curve_text(curve: Curve) -> str:
    if not curve.steps:
        return "–"
    return f"{spark(curve.values)}  {_text(curve.values[-1])} at step {curve.steps[-1]}"


def _text(value: Value) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return str(value).lower()
        case int() | float():
            return shown(value)
        case str():
            return cut(one_line(value), _LONGEST)


def chosen(runs: Sequence[ExperimentRun], names: Sequence[str]) -> tuple[ExperimentRun, ...]:
    """Return the runs of these names, in the order of the names; all runs if there are no names. Raises
    click.ClickException with the names that no run has."""
    if not names:
        return tuple(runs)
    by_name = {run.name: run for run in runs}
    missing = [name for name in names if name not in by_name]
    if missing:
        some = ", ".join(one_line(run.name) for run in runs[:_DESCRIBED])
        more = f" and {len(runs) - _DESCRIBED} more" if len(runs) > _DESCRIBED else ""
        there = f"It has {some}{more}." if runs else "It has none yet."
        raise click.ClickException(
            f"The experiment has no run {', '.join(map(repr, missing))}. {there}"
        )
    return tuple(by_name[name] for name in dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs that are compared, with what differs and which are best."""

    runs: tuple[ExperimentRun, ...]
    #: Names of all parameters and metrics that any run has, in the order of the runs.
    parameters: tuple[str, ...]
    metrics: tuple[str, ...]
    #: Names of the parameters that are not the same in all runs.
    differing: tuple[str, ...]
    #: Names of the runs with the best value, by metric; only of metrics whose better values are known.
    best: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(
        runs: Sequence[ExperimentRun], by: str | None = None, descending: bool | None = None
    ) -> "Comparison":
        """Compare runs. `by`: the metric by which they are ordered, the best first; None = as given.
        `descending`: whether its largest value is the best; None = as its name tells, else the smallest is.
        Raises click.ClickException for a metric that no run has."""
        parameters = tuple(dict.fromkeys(name for run in runs for name in run.parameters))
        metrics = tuple(dict.fromkeys(name for run in runs for name in run.metrics))
        better = {name: choose for name in metrics if (choose := better_of(name)) is not None}
        if by is not None:
            if by not in metrics:
                there = f"Those that they have: {', '.join(map(one_line, metrics)) or 'none'}."
                raise click.ClickException(f"No run has the metric {by!r}. {there}")
            if descending is not None or by not in better:
                better[by] = max if descending else min
            runs = _ordered(runs, by, better[by])
        return Comparison(
            tuple(runs),
            parameters,
            metrics,
            tuple(name for name in parameters if _differs(runs, name)),
            {name: names for name in better if (names := _best(runs, name, better[name]))},
        )


Better = Callable[[Sequence[float]], float]


def better_of(metric: str) -> Better | None:
    """Return `min` or `max` if a word in the metric's name tells which values are better; else None."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", metric).lower()
    words = set(re.split(r"[^a-z0-9]+", spaced))
    is_lower, is_higher = bool(words & _LOWER), bool(words & _HIGHER)
    if is_lower == is_higher:
        return None
    return min if is_lower else max


def _number(run: ExperimentRun, metric: str) -> float | None:
    value = run.metrics.get(metric)
    return value if isinstance(value, float) else None


def _ordered(
    runs: Sequence[ExperimentRun], metric: str, better: Better
) -> tuple[ExperimentRun, ...]:
    """Return the runs with the best first; those without a number last."""
    sign = 1 if better is min else -1

    def rank(run: ExperimentRun) -> tuple[bool, float]:
        number = _number(run, metric)
        return (number is None, 0 if number is None else sign * number)

    return tuple(sorted(runs, key=rank))


def _best(runs: Sequence[ExperimentRun], metric: str, better: Better) -> tuple[str, ...]:
    """Return the names of the best runs; () if fewer than two have the metric."""
    numbers = {run.name: number for run in runs if (number := _number(run, metric)) is not None}
    if len(numbers) < 2:
        return ()
    best = better(tuple(numbers.values()))
    return tuple(name for name, number in numbers.items() if number == best)


def _differs(runs: Sequence[ExperimentRun], name: str) -> bool:
    values = [(name in run.parameters, run.parameters.get(name)) for run in runs]
    return any((type(value), value) != (type(values[0]), values[0]) for value in values[1:])


def comparison_table(comparison: Comparison, *, every: bool) -> list[str]:
    """Return the lines of a table with a row for each run. `every`: parameters that do not differ have
    columns, too."""
    runs = comparison.runs
    # With a single run no parameter differs.
    all_parameters = every or len(runs) == 1
    parameters = comparison.parameters if all_parameters else comparison.differing
    columns = [
        Column("RUN"),
        Column("STATE"),
        *(Column(_title("param", name), right=_is_numeric(runs, name)) for name in parameters),
        *(Column(_title("metric", name), right=True) for name in comparison.metrics),
    ]
    rows = [
        [
            one_line(run.name),
            one_line(run.state),
            *(_cell(run.parameters, name) for name in parameters),
            *(_metric_cell(run, name, comparison.best) for name in comparison.metrics),
        ]
        for run in runs
    ]
    lines = titled(columns, rows)
    if same := len(comparison.parameters) - len(parameters):
        lines.append(
            faint(f"{counted(same, 'parameter')} with the same value in all runs: show with --all.")
        )
    return lines


def _title(kind: str, name: str) -> str:
    """Return the name that a column has in the SDK's data frame, cut."""
    return cut(f"{kind}.{one_line(name)}", _LONGEST)


def _cell(values: Mapping[str, Value], name: str) -> str:
    return _text(values[name]) if name in values else "–"


def _metric_cell(run: ExperimentRun, name: str, best: Mapping[str, tuple[str, ...]]) -> str:
    text = _cell(run.metrics, name)
    return f"★ {text}" if run.name in best.get(name, ()) else text


def _is_numeric(runs: Sequence[ExperimentRun], name: str) -> bool:
    return not any(isinstance(run.parameters.get(name), str) for run in runs)


@dataclass(frozen=True, slots=True)
class _Place:
    """The project and region whose experiments are read."""

    client: Client
    #: `project` and `region`, as the service takes them.
    query: Mapping[str, str]

    @staticmethod
    def of(endpoint: Endpoint, project: str | None, region: str | None, *, raw: bool) -> "_Place":
        query = place_of(endpoint, project, region)
        return _Place(endpoint.client(raw=raw), query)

    def __str__(self) -> str:
        return ", ".join(self.query.values())

    def pages(self, path: str, limit: int | None, **query: str | None) -> Iterator[dict[str, Any]]:
        """Yield the pages of a list. `limit`: maximum entries of a page, None = the service's default."""
        token: str | None = None
        while True:
            answer: dict[str, Any] = self.client.get(
                path,
                **self.query,
                **query,
                limit=limit,
                pageToken=token,
            )
            yield answer
            token = answer["nextPageToken"]
            if not token:
                return

    def runs(self, experiment: str, most: int | None, *, curves: bool) -> dict[str, Any]:
        """Return an experiment with its `most` newest runs, None = all. Raises Refused, Unreachable."""
        path = f"{_EXPERIMENTS}/{quote(experiment, safe='')}"
        page_size = most if most is not None and most < 100 else None
        whole: dict[str, Any] | None = None
        for answer in self.pages(path, page_size, curves="true" if curves else None):
            if whole is None:
                whole = answer
            else:
                whole["runs"] += answer["runs"]
                whole["nextPageToken"] = answer["nextPageToken"]
            if most is not None and len(whole["runs"]) >= most:
                whole["runs"] = whole["runs"][:most]
                break
        assert whole is not None
        return whole
