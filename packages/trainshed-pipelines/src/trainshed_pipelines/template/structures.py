"""The structures of a compiled pipeline after all checks: version 2 of KFP's intermediate representation.

`template.reading` creates these values from JSON and reports all errors. Names are those of KFP's
`pipeline_spec.proto`, in snake_case; `field(name=...)` is another name in the proto. Parameter values are
JSON values: `None`, `bool`, `int`, `float`, `str`, `list` and `dict`.
"""

import enum
from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

Json = Any
"""A JSON value."""


class ParameterType(enum.StrEnum):
    """The type of a parameter."""

    DOUBLE = "NUMBER_DOUBLE"
    INTEGER = "NUMBER_INTEGER"
    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    LIST = "LIST"
    STRUCT = "STRUCT"
    #: The final status of another task. Only exit tasks have such inputs.
    FINAL_STATUS = "TASK_FINAL_STATUS"


class InputParameter(Struct, frozen=True):
    """An input parameter of a component."""

    type: ParameterType
    #: The default value, or UNSET without a default.
    default: Json | UnsetType = UNSET
    is_optional: bool = False
    #: The permitted values, or () if all values of the type are permitted.
    literals: tuple[Json, ...] = ()


class ArtifactType(Struct, frozen=True):
    """The type of an artifact, such as `system.Model` with the schema version `0.0.1`."""

    schema_title: str = "system.Artifact"
    schema_version: str = "0.0.1"
    #: A YAML schema, in place of a title. "" = not set.
    instance_schema: str = ""


class InputArtifact(Struct, frozen=True):
    """An input artifact of a component."""

    type: ArtifactType = field(name="artifact_type", default=ArtifactType())
    is_list: bool = field(name="is_artifact_list", default=False)
    is_optional: bool = False


class OutputArtifact(Struct, frozen=True):
    """An output artifact of a component."""

    type: ArtifactType
    is_list: bool = False
    metadata: Mapping[str, Json] = {}


class TaskOutput(Struct, frozen=True):
    """A value from the output `key` of another task in the same DAG."""

    task: str
    key: str


class Constant(Struct, frozen=True):
    """A value that the compiler has stored in the template. Strings may contain placeholders."""

    value: Json


class ComponentInput(Struct, frozen=True):
    """A value from an input of the component that contains the DAG."""

    name: str


class FinalStatus(Struct, frozen=True):
    """The final status of another task in the same DAG, as JSON text."""

    task: str


ParameterSource = TaskOutput | Constant | ComponentInput | FinalStatus
ArtifactSource = TaskOutput | ComponentInput


class ParameterBinding(Struct, frozen=True):
    """The source of a task's input parameter."""

    source: ParameterSource
    #: A CEL expression that selects a part of the value, such as `parseJson(string_value)["a"]`. "" = the
    #: whole value.
    selector: str = ""


class Iterator(Struct, frozen=True):
    """A loop: the task runs once for each item."""

    #: The items: a JSON list in the template, or the name of an input of the task that contains them.
    items: tuple[Json, ...] | str
    #: Name of the component's input that receives the item.
    item_input: str
    #: Whether the items are artifacts. Otherwise they are parameter values.
    of_artifacts: bool = False
    #: Maximum number of iterations that run at the same time; 0 = no limit.
    parallelism_limit: int = 0


class RetryPolicy(Struct, frozen=True):
    """When a failed task is retried. Durations are in nanoseconds."""

    max_count: int = field(name="max_retry_count", default=0)
    backoff: int = field(name="backoff_duration", default=0)
    factor: float = field(name="backoff_factor", default=2.0)
    max_backoff: int = field(name="backoff_max_duration", default=3600 * 10**9)

    def delay(self, failures: int) -> int:
        """Return the pause (ns) after the given number of failures, which is at least 1."""
        # The exponent is limited, because a large one would overflow. The maximum applies long before.
        factor = self.factor ** min(failures - 1, 64) if self.factor > 1 else 1.0
        return round(min(self.backoff * factor, self.max_backoff))


class Task(Struct, frozen=True, kw_only=True):
    """A task of a DAG."""

    #: The key of the task in its DAG.
    name: str
    #: The key of the task's component in the template.
    component: str
    parameters: Mapping[str, ParameterBinding] = {}
    artifacts: Mapping[str, ArtifactSource] = {}
    dependent_tasks: tuple[str, ...] = ()
    enable_cache: bool = False
    #: A key that replaces the inputs and the program in the cache's fingerprint. "" = not set.
    cache_key: str = ""
    #: The condition (CEL) under which the task runs. "" = always.
    condition: str = ""
    #: Whether the task also runs after upstream tasks that failed or were not triggered (exit tasks).
    runs_always: bool = False
    iterator: Iterator | None = None
    retry: RetryPolicy = RetryPolicy()

    @property
    def upstream(self) -> tuple[str, ...]:
        """The tasks that must end before this task starts, without duplicates."""
        bound = (binding.source for binding in self.parameters.values())
        names = [s.task for s in bound if isinstance(s, TaskOutput | FinalStatus)]
        names += [s.task for s in self.artifacts.values() if isinstance(s, TaskOutput)]
        return tuple(dict.fromkeys((*names, *self.dependent_tasks)))


class Dag(Struct, frozen=True):
    """The tasks of a component, and the sources of its outputs."""

    tasks: Mapping[str, Task]
    #: For each output parameter, the outputs of tasks from which the first available value is used.
    output_parameters: Mapping[str, tuple[TaskOutput, ...]] = {}
    #: For each output artifact, the outputs of tasks that are merged into it.
    output_artifacts: Mapping[str, tuple[TaskOutput, ...]] = {}


class Resources(Struct, frozen=True):
    """Requested resources of a container, as texts that may contain placeholders: `2`, `500m`, `4G`, `16Gi`.
    "" = not set."""

    cpu_limit: str = ""
    memory_limit: str = ""
    cpu_request: str = ""
    memory_request: str = ""
    accelerator_type: str = ""
    accelerator_count: str = ""


class Container(Struct, frozen=True):
    """A program in a container image. All texts may contain placeholders."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    resources: Resources = Resources()


class Importer(Struct, frozen=True):
    """Imports an existing file or directory as an artifact."""

    #: The URI of the artifact: a text with placeholders, or an input parameter.
    uri: Constant | ComponentInput
    type: ArtifactType
    metadata: Mapping[str, Json] = {}
    #: Whether a new artifact is created even if an earlier run has imported the same URI.
    reimport: bool = False


class Component(Struct, frozen=True, kw_only=True):
    """A component: its inputs and outputs, and either a DAG or an executor."""

    #: The key of the component in the template; "root" for the pipeline itself.
    name: str
    input_parameters: Mapping[str, InputParameter] = {}
    input_artifacts: Mapping[str, InputArtifact] = {}
    output_parameters: Mapping[str, ParameterType] = {}
    output_artifacts: Mapping[str, OutputArtifact] = {}
    implementation: Dag | Container | Importer


class Template(Struct, frozen=True, kw_only=True):
    """A valid compiled pipeline."""

    #: Name of the pipeline (`pipelineInfo.name`).
    name: str
    display_name: str = ""
    #: The default pipeline root. "" = not set.
    default_root: str = ""
    root: Component
    #: The components by key, including "root".
    components: Mapping[str, Component]
