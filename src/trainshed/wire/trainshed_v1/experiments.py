"""Records of experiments, their runs and the curves of those."""

from collections.abc import Mapping

from trainshed.wire.trainshed_v1.record import Record

Value = str | float | bool | None


class Experiment(Record, frozen=True):
    """An experiment without its runs."""

    #: The id.
    name: str = ""
    display_name: str = ""
    description: str = ""
    #: How many runs it has.
    runs: int = 0
    created: str = ""
    #: The last change of the experiment or of one of its runs.
    changed: str = ""


class ExperimentList(Record, frozen=True):
    """A page of the experiments of a project in a region."""

    project: str = ""
    location: str = ""
    #: Newest first.
    experiments: tuple[Experiment, ...] = ()
    #: "" = this was the last page.
    next_page_token: str = ""


class Curve(Record, frozen=True):
    """A time series of numbers, in the order of its steps."""

    name: str = ""
    #: Steps of at most 60 points, spread evenly, including the first and the last.
    steps: tuple[int, ...] = ()
    #: The value at each of the steps; null = no finite number.
    values: tuple[float | None, ...] = ()


class ExperimentRun(Record, frozen=True):
    """A run of an experiment."""

    #: The id, without the experiment's in front.
    name: str = ""
    #: The full name of its context.
    resource_name: str = ""
    #: What its writer last reported: RUNNING, COMPLETE, FAILED; "" = nothing.
    state: str = ""
    created: str = ""
    #: The last change.
    changed: str = ""
    #: By name, the longest texts cut off at 1,000 characters; a list or an object is given as JSON text.
    parameters: Mapping[str, Value] = {}
    #: Likewise; null = no finite number.
    metrics: Mapping[str, Value] = {}
    #: Ordered by name. Empty if curves were not asked for.
    curves: tuple[Curve, ...] = ()
    #: Full names of the custom jobs that belong to it, in the order in which they were submitted.
    jobs: tuple[str, ...] = ()


class ExperimentRuns(Record, frozen=True):
    """An experiment and a page of its runs."""

    project: str = ""
    location: str = ""
    experiment: Experiment = Experiment()
    #: Newest first.
    runs: tuple[ExperimentRun, ...] = ()
    #: "" = this was the last page.
    next_page_token: str = ""
