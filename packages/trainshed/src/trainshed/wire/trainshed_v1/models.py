"""Records of models: their versions, and what made them."""

from typing import Any

from msgspec import field

from trainshed.wire.trainshed_v1.record import Record


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
    #: Arguments of the job's first program.
    arguments: tuple[str, ...] = ()
    #: Number of the trial that the job ran; 0 = none.
    trial: int = 0
    #: Parameters of that trial, by name.
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    #: Last measurement of that trial, by name.
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class ModelVersion(Record, frozen=True):
    """A version of a model, with its origin."""

    version: int = 0
    aliases: tuple[str, ...] = ()
    display_name: str = ""
    description: str = ""
    #: "" = it has no artifacts.
    artifact_uri: str = ""
    created: str = ""
    origin: ModelOrigin = ModelOrigin()


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
