"""`trainshed studies`: lists and describes studies of the study API (Vizier) and their trials, through the
public Vertex API.

A trial becomes a `TrialView`, as one of a tuning job, so that both are shown alike. If there are several
metrics, the first is the objective's column, and the others stand among the notes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, place_of, takes_endpoint, takes_place
from trainshed.cli.groups import ListGroup
from trainshed.cli.output_format import print_data, takes_form, terminal_width
from trainshed.cli.text.colours import faint, study_colour
from trainshed.cli.text.moments import local_moment, parse_moment
from trainshed.cli.text.tables import Column, joined, pairs, table
from trainshed.cli.trial_table import terminal_text, trial_table
from trainshed.cli.tuning_views import TrialView, assignment, shown
from trainshed.core.study.records import StudyState, TrialState
from trainshed.core.study.spec import Algorithm, Goal, Value
from trainshed.core.units import Nanos

_PAGE = 1000

_in_a_place = takes_place("studies")


@dataclass(frozen=True, slots=True)
class StudyView:
    """A study. `metrics`: (id, goal) of each."""

    id: str
    name: str
    display_name: str
    state: StudyState
    inactive_reason: str
    created: Nanos
    algorithm: str
    metrics: tuple[tuple[str, Goal], ...]

    @staticmethod
    def parse(public: Mapping[str, Any]) -> "StudyView":
        """Read a Study in public JSON."""
        spec: Mapping[str, Any] = public["studySpec"]
        algorithm = spec.get("algorithm", "")
        return StudyView(
            id=public["name"].rpartition("/")[2],
            name=public["name"],
            display_name=public["displayName"],
            state=StudyState(public["state"]),
            inactive_reason=public.get("inactiveReason", ""),
            created=parse_moment(public["createTime"]),
            algorithm=(
                algorithm if algorithm in list(Algorithm) else Algorithm.DEFAULT.value
            ).lower(),
            metrics=tuple((metric["metricId"], Goal(metric["goal"])) for metric in spec["metrics"]),
        )

    @property
    def aims(self) -> str:
        """Its metrics with their goals, as text: `maximize accuracy, minimize size`."""
        return ", ".join(f"{goal.value.lower()} {metric}" for metric, goal in self.metrics)


@dataclass(frozen=True, slots=True)
class StudyRows:
    """What is shown of a study's trials. `counts`: their numbers, as text; `best`: a line for each optimal
    trial."""

    trials: tuple[TrialView, ...]
    counts: str
    best: tuple[str, ...]


@click.group(cls=ListGroup)
def command() -> None:
    """List and describe studies of the study API (Vizier). The trials of a tuning job: trainshed jobs
    describe."""


@command.command("list")
@_in_a_place
@takes_form
@takes_endpoint
def list_(endpoint: Endpoint, *, project: str | None, region: str | None, form: str) -> None:
    """List the studies, newest first."""
    client, parent = _place(endpoint, project, region, raw=form == "json")
    studies = list(_pages(client, f"{parent}/studies", "studies"))
    if form == "json":
        print_data(studies)
        return
    if not studies:
        click.echo(f"No studies in {parent.removeprefix('/v1/')}.", err=True)
        return
    for line in study_table([StudyView.parse(study) for study in studies], terminal_width()):
        click.echo(line)


@command.command(short_help="Show a study and its trials, best first.")
@click.argument("study")
@_in_a_place
@takes_form
@takes_endpoint
@click.pass_obj
def describe(
    session: Session,
    endpoint: Endpoint,
    *,
    study: str,
    project: str | None,
    region: str | None,
    form: str,
) -> None:
    """Show a study, the best of its trials and all the others. STUDY is its full name, its id, or its display
    name.

    Of a study with several metrics the best are those than which no other is better in all: the Pareto front.
    """
    client, parent = _place(endpoint, project, region, raw=form == "json")
    public = _find(client, parent, study)
    path = f"/v1/{public['name']}/trials"
    trials = list(_pages(client, path, "trials"))
    optimal: list[dict[str, Any]] = client.post(f"{path}:listOptimalTrials", {}).get(
        "optimalTrials", []
    )
    if form == "json":
        print_data(public | {"trials": trials, "optimalTrials": optimal})
        return
    view = StudyView.parse(public)
    for line in description(view, trials, optimal, session.now(), terminal_width()):
        click.echo(line)


def study_table(studies: Sequence[StudyView], width: int | None) -> list[str]:
    """Return the lines of a table of studies. `width`: maximum width of a line, None = unlimited."""
    columns = (
        Column("STUDY"),
        Column("NAME", flexible=True),
        Column("STATE"),
        Column("METRICS"),
        Column("ALGORITHM"),
        Column("CREATED"),
    )
    rows = [
        (
            study.id,
            study.display_name,
            study.state.value,
            study.aims,
            study.algorithm,
            local_moment(study.created),
        )
        for study in studies
    ]
    header, *cells = table(columns, rows, width)
    lines = [faint(joined(header))]
    for study, row in zip(studies, cells, strict=True):
        row[2] = click.style(row[2], fg=study_colour(study.state))
        lines.append(joined(row))
    return lines


def description(
    study: StudyView,
    trials: Sequence[Mapping[str, Any]],
    optimal: Sequence[Mapping[str, Any]],
    now: Nanos,
    width: int | None,
) -> Iterator[str]:
    """Yield the lines that describe a study. `trials`, `optimal`: in public JSON. `width`: maximum width of a
    line, None = unlimited."""
    best = [int(trial["id"]) for trial in optimal]
    rows = study_table_rows(study, trials, best)
    facts = [
        ("Study", study.name),
        ("Name", study.display_name),
        ("State", click.style(study.state.value, fg=study_colour(study.state), bold=True)),
        ("Because", study.inactive_reason),
        ("Created", local_moment(study.created)),
        ("Metrics", study.aims),
        ("Algorithm", study.algorithm),
        ("Trials", rows.counts),
        ("Best", "\n".join(rows.best)),
    ]
    yield from pairs([(label, value) for label, value in facts if value])
    if rows.trials:
        yield ""
        for line in trial_table(study.metrics[0][0], rows.trials, best, now, width):
            yield terminal_text(line)


def _find(client: Client, parent: str, study: str) -> dict[str, Any]:
    if "/" in study:
        return client.get(f"/v1/{quote(study)}")
    if study.isdecimal():
        return client.get(f"{parent}/studies/{study}")
    return client.post(f"{parent}/studies:lookup", {"displayName": study})


def _pages(client: Client, path: str, field: str) -> Iterator[dict[str, Any]]:
    token: str | None = None
    while True:
        page = client.get(path, pageSize=_PAGE, pageToken=token)
        yield from page.get(field, ())
        token = page.get("nextPageToken")
        if not token:
            return


def _place(
    endpoint: Endpoint, project: str | None, region: str | None, *, raw: bool
) -> tuple[Client, str]:
    place = place_of(endpoint, project, region)
    project, region = place["project"], place["region"]
    if not project or not region:
        raise click.UsageError("Whose studies, and where? Give --project and --region.")
    return endpoint.client(raw=raw), f"/v1/projects/{quote(project)}/locations/{quote(region)}"


def study_table_rows(
    study: StudyView, trials: Sequence[Mapping[str, Any]], optimal: Sequence[int]
) -> StudyRows:
    """Return what is shown of a study's trials. `trials`: in public JSON. `optimal`: numbers of the optimal
    ones."""
    views = tuple(_trial(study, trial) for trial in trials)
    over = [view for view in views if view.state.is_over]
    infeasible = sum(view.state is TrialState.INFEASIBLE for view in over)
    active = sum(view.state in (TrialState.ACTIVE, TrialState.STOPPING) for view in views)
    parts = [f"{len(views)}", f"{len(over)} done"]
    parts += [f"{active} active"] if active else []
    parts += [f"{infeasible} without a result"] if infeasible else []
    finals = {int(trial["id"]): _final(trial) for trial in trials}
    lines = tuple(
        f"trial {view.number}: {_measured(finals[view.number])}  {assignment(view.parameters)}"
        for view in views
        if view.number in optimal
    )
    return StudyRows(views, ", ".join(parts), lines)


def _trial(study: StudyView, public: Mapping[str, Any]) -> TrialView:
    metric = study.metrics[0][0]
    final = _final(public)
    curve: list[tuple[int, float]] = [
        (int(measurement.get("stepCount", 0)), value)
        for measurement in public.get("measurements", ())
        if (value := _metrics(measurement).get(metric)) is not None
    ]
    step, reached = curve[-1] if curve else (0, None)
    value = final.get(metric)
    if value is not None:
        step, reached = int(public["finalMeasurement"].get("stepCount", 0)), value
    state = TrialState(public["state"])
    rest = {name: result for name, result in final.items() if name != metric}
    return TrialView(
        number=int(public["id"]),
        state=state,
        parameters=tuple(
            (each["parameterId"], _value(each)) for each in public.get("parameters", ())
        ),
        value=value,
        reached=reached,
        step=step,
        # For a trial that nobody evaluates yet, the public field is the time at which it was created.
        started=0 if state is TrialState.REQUESTED else parse_moment(public.get("startTime", "")),
        ended=parse_moment(public.get("endTime", "")),
        reason=public.get("infeasibleReason", ""),
        more=_measured(rest),
        curve=tuple(each for _, each in curve),
    )


def _value(parameter: Mapping[str, Any]) -> Value:
    value: Value = parameter.get("value", 0)
    return value


def _final(trial: Mapping[str, Any]) -> dict[str, float]:
    return _metrics(trial.get("finalMeasurement", {}))


def _metrics(measurement: Mapping[str, Any]) -> dict[str, float]:
    return {
        metric["metricId"]: metric.get("value", 0.0) for metric in measurement.get("metrics", ())
    }


def _measured(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in values.items())
