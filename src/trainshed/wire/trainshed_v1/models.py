"""Records of models: their versions, their origin, and their evaluations."""

from typing import Any

from msgspec import field

from trainshed.wire.trainshed_v1.record import Record


class ModelSummary(Record, frozen=True):
    """A model in a list."""

    #: In full: `projects/P/locations/L/models/M`.
    name: str = ""
    model_id: str = ""
    #: Of the default version, like the fields below.
    display_name: str = ""
    version: int = 0
    aliases: tuple[str, ...] = ()
    #: "" = it has no artifacts.
    artifact_uri: str = ""
    created: str = ""
    #: Name of the training pipeline or job that made it; "" = not known.
    made_by: str = ""


class ModelList(Record, frozen=True):
    """The models of a project in a region, the newest first."""

    project: str = ""
    region: str = ""
    models: tuple[ModelSummary, ...] = ()
    #: Whether there are more, which are older.
    more: bool = False


class ModelOrigin(Record, frozen=True):
    """What made a version: the job, its data, its parameters."""

    #: Name of the training pipeline; "" = it was uploaded.
    pipeline: str = ""
    #: Name of the job that wrote the artifacts (for a tuning task, that of its best trial) or whose program
    #: uploaded them; "" = not known.
    job: str = ""
    #: State of that job; "" = it was deleted.
    state: str = ""
    #: Name of the dataset that the pipeline was given; "" = none.
    dataset: str = ""
    #: "" = it was deleted.
    dataset_display_name: str = ""
    #: How the data were split, in words; "" = not said.
    split: str = ""
    #: Arguments of the job's first program.
    arguments: tuple[str, ...] = ()
    #: Number of the trial that the job ran; 0 = none.
    trial: int = 0
    #: Parameters of that trial, by name.
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Last measurement of that trial, by name.
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class ModelRun(Record, frozen=True):
    """A run of an experiment that the version, or the job that made it, belongs to."""

    #: Full name of its context.
    name: str = ""
    display_name: str = ""
    state: str = ""
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    metrics: dict[str, Any] = field(default_factory=dict[str, Any])


class ModelSource(Record, frozen=True):
    """An artifact that an execution read to make the version, by its recorded lineage."""

    name: str = ""
    display_name: str = ""
    #: Such as `system.Dataset`.
    schema_title: str = ""
    uri: str = ""


class ModelEvaluation(Record, frozen=True):
    """An evaluation of a version."""

    name: str = ""
    display_name: str = ""
    created: str = ""
    #: The numbers among its metrics, by name, at most 50.
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class ModelVersion(Record, frozen=True):
    """A version of a model, with its lineage."""

    version: int = 0
    aliases: tuple[str, ...] = ()
    display_name: str = ""
    description: str = ""
    #: "" = it has no artifacts.
    artifact_uri: str = ""
    created: str = ""
    origin: ModelOrigin = ModelOrigin()
    #: At most 20, like each of the lists below.
    runs: tuple[ModelRun, ...] = ()
    sources: tuple[ModelSource, ...] = ()
    #: Newest first.
    evaluations: tuple[ModelEvaluation, ...] = ()


class ModelDescription(Record, frozen=True):
    """A model with its versions."""

    name: str = ""
    model_id: str = ""
    description: str = ""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    #: Newest first, at most 20.
    versions: tuple[ModelVersion, ...] = ()
    #: Whether there are more, which are older.
    more: bool = False
