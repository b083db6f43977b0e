"""A compiled pipeline with a loop, a condition, an exit task and an importer, and changes to it."""

import copy
from functools import reduce
from typing import Any

import yaml

from trainshed.core.errors import InvalidRequest
from trainshed_pipelines.template.reading import read_template

TEXT = """
pipelineInfo: {name: train-all, displayName: Train, description: Trains models.}
schemaVersion: 2.1.0
sdkVersion: kfp-2.11.0
defaultPipelineRoot: gs://bucket/root
deploymentSpec:
  executors:
    exec-train:
      container:
        image: python:3.11
        command: [sh, -c, train]
        args: [--lr, "{{$.inputs.parameters['lr']}}"]
        env: [{name: MODE, value: fast}, {name: EMPTY}]
        resources: {resourceCpuLimit: 500m, cpuLimit: 0.5, memoryLimit: 4.0,
          accelerator: {type: NVIDIA_L4, count: '2'}}
    exec-report: {container: {image: report}}
    exec-import:
      importer: {artifactUri: {runtimeParameter: uri}, typeSchema: MODEL, reimport: true,
        metadata: {version: 2.0}, properties: {source: {runtimeParameter: uri}}}
components:
  comp-train:
    executorLabel: exec-train
    inputDefinitions:
      parameters:
        lr: {parameterType: NUMBER_DOUBLE}
        epochs: {parameterType: NUMBER_INTEGER, defaultValue: 3.0}
        mode: {parameterType: STRING, literals: [fast, slow], isOptional: true}
      artifacts:
        base: {artifactType: MODEL, isOptional: true}
    outputDefinitions:
      parameters: {loss: {parameterType: NUMBER_DOUBLE}}
      artifacts: {model: {artifactType: MODEL, metadata: {framework: jax}}}
  comp-report:
    executorLabel: exec-report
    inputDefinitions:
      parameters:
        losses: {parameterType: LIST, isOptional: true}
        status: {parameterType: TASK_FINAL_STATUS, isOptional: true}
      artifacts:
        models: {artifactType: MODEL, isArtifactList: true, isOptional: true}
  comp-import:
    executorLabel: exec-import
    inputDefinitions: {parameters: {uri: {parameterType: STRING}}}
    outputDefinitions: {artifacts: {artifact: {artifactType: MODEL}}}
  comp-loop:
    inputDefinitions:
      parameters:
        item: {parameterType: STRUCT}
        pipelinechannel--source: {parameterType: STRING}
      artifacts: {base: {artifactType: MODEL}}
    outputDefinitions:
      parameters: {loss: {parameterType: LIST}}
      artifacts: {model: {artifactType: MODEL, isArtifactList: true}}
    dag:
      tasks:
        train:
          taskInfo: {name: Train}
          componentRef: {name: comp-train}
          cachingOptions: {enableCache: true, cacheKey: k}
          retryPolicy: {maxRetryCount: 3.0, backoffDuration: 30s, backoffMaxDuration: 600s}
          inputs:
            parameters:
              lr: {componentInputParameter: item,
                parameterExpressionSelector: 'parseJson(string_value)["lr"]'}
              mode: {runtimeValue: {constant: fast}}
            artifacts: {base: {componentInputArtifact: base}}
      outputs:
        parameters: {loss: {valueFromParameter: {producerSubtask: train, outputParameterKey: loss}}}
        artifacts: {model: {artifactSelectors: [{producerSubtask: train, outputArtifactKey: model}]}}
root:
  inputDefinitions: {parameters: {source: {parameterType: STRING}}}
  dag:
    tasks:
      import:
        componentRef: {name: comp-import}
        inputs: {parameters: {uri: {componentInputParameter: source}}}
      loop:
        componentRef: {name: comp-loop}
        dependentTasks: [import]
        iteratorPolicy: {parallelismLimit: 2.0}
        parameterIterator: {items: {raw: '[{"lr": 0.5, "n": 1.0}]'}, itemInput: item}
        triggerPolicy: {condition: "inputs.parameter_values['pipelinechannel--source'] != ''"}
        inputs:
          parameters: {pipelinechannel--source: {componentInputParameter: source}}
          artifacts: {base: {taskOutputArtifact: {producerTask: import, outputArtifactKey: artifact}}}
      report:
        componentRef: {name: comp-report}
        triggerPolicy: {strategy: ALL_UPSTREAM_TASKS_COMPLETED}
        inputs:
          parameters:
            losses: {taskOutputParameter: {producerTask: loop, outputParameterKey: loss}}
            status: {taskFinalStatus: {producerTask: loop}}
          artifacts: {models: {taskOutputArtifact: {producerTask: loop, outputArtifactKey: model}}}
""".replace("MODEL", "{schemaTitle: system.Model, schemaVersion: 0.0.1}")
SPEC: dict[str, Any] = yaml.safe_load(TEXT)
DEEP: Any = reduce(lambda value, _: [value], range(5_000), 1)
"""A list with 5,000 levels."""


def changed(*changes: tuple[str, Any], spec: dict[str, Any] = SPEC) -> dict[str, Any]:
    """Return a copy of a template with other values at paths such as `root/dag`. The value ... deletes."""
    result = copy.deepcopy(spec)
    for path, value in changes:
        *parents, last = path.split("/")
        place = result
        for name in parents:
            place = place.setdefault(name, {})
        if value is ...:
            del place[last]
        else:
            place[last] = value
    return result


def faults(spec: Any) -> dict[str, str]:
    """Return the descriptions of a template's errors by their paths."""
    try:
        read_template(spec, "t")
    except InvalidRequest as error:
        return {violation.field: violation.description for violation in error.violations}
    return {}
