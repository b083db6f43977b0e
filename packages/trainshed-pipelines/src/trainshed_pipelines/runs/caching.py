"""The fingerprint of a task, by which later runs find its outputs (facts/pipelines#caching). Pure."""

import hashlib
import json
from typing import Any

from msgspec import to_builtins

from trainshed_pipelines.runs.records import Artifact, Values
from trainshed_pipelines.template.structures import Component, Task


def fingerprint(definition: Task, component: Component, inputs: Values) -> str:
    """Return a digest of everything that determines the outputs of a task: its program with image, command,
    arguments and variables, its inputs, and the names and types of its outputs. A cache key of the task
    replaces the program and the inputs."""
    outputs = [component.output_parameters, component.output_artifacts]
    content: list[Any] = [outputs]
    if definition.cache_key:
        content += [component.name, definition.cache_key]
    else:
        artifacts = {key: list(map(_identity, values)) for key, values in inputs.artifacts.items()}
        content += [component.implementation, inputs.parameters, artifacts]
    text = json.dumps(to_builtins(content), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _identity(artifact: Artifact) -> tuple[str, str]:
    """Return what identifies an input artifact. Runs of the same task write to directories of their own, so
    the URI of an output also identifies the task that wrote it."""
    return artifact.type.schema_title, artifact.uri
