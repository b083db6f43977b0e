"""Builds compiled pipelines for tests, and runs them on the state machine without jobs."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from trainshed.core.job import JobError
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.units import Nanos
from trainshed_pipelines.runs.machine import Circumstances, JobReport, Step
from trainshed_pipelines.runs.records import ROOT, TaskKind, TaskRun, TaskState, Values
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template.placeholders import Context
from trainshed_pipelines.template.reading import read_template
from trainshed_pipelines.template.structures import Template

FACTS = Context(
    pipeline_job_name="run",
    pipeline_job_resource_name="projects/p/locations/l/pipelineJobs/run",
    pipeline_job_uuid="1",
    pipeline_task_name="",
    pipeline_task_uuid="",
    pipeline_root="gs://b/root",
    pipeline_job_create_time_utc="",
    pipeline_job_schedule_time_utc="",
    pipeline_google_cloud_location="l",
    pipeline_google_cloud_project_id="p",
    pipeline_service_account="a@p",
)
EXECUTORS = {"exec": {"container": {"image": "python:3.11", "command": ["true"]}}}
NUMBER = {"parameterType": "NUMBER_INTEGER"}
LIST = {"parameterType": "LIST"}
STRUCT = {"parameterType": "STRUCT"}


def component(
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    dag: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return a component with parameters. `dag`: its DAG; None = it runs a program."""
    body = {"executorLabel": "exec"} if dag is None else {"dag": dag}
    return {
        **({"inputDefinitions": {"parameters": inputs}} if inputs else {}),
        **({"outputDefinitions": {"parameters": outputs}} if outputs else {}),
        **body,
    }


def task(name: str, component_name: str, /, *, after: tuple[str, ...] = (), **more: Any) -> Any:
    """Return a task. Other arguments are its parameters (a value, `task.key` or `=input`), except those whose
    names end with `_`, which are fields of the task in the template."""
    parameters: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for key, value in more.items():
        if key.endswith("_"):
            fields[key.removesuffix("_")] = value
        elif isinstance(value, str) and value.startswith("="):
            parameters[key] = {"componentInputParameter": value[1:]}
        elif isinstance(value, str) and "." in value:
            producer, output = value.split(".")
            source = {"producerTask": producer, "outputParameterKey": output}
            parameters[key] = {"taskOutputParameter": source}
        elif isinstance(value, str) and value.startswith("?"):
            parameters[key] = {"taskFinalStatus": {"producerTask": value[1:]}}
        else:
            parameters[key] = {"runtimeValue": {"constant": value}}
    return {
        "taskInfo": {"name": name},
        "componentRef": {"name": component_name},
        **({"inputs": {"parameters": parameters}} if parameters else {}),
        **({"dependentTasks": list(after)} if after else {}),
        **fields,
    }


def template(tasks: Mapping[str, Any], components: Mapping[str, Any], **root: Any) -> Template:
    """Return a checked template. `inputs`: the parameters of the pipeline."""
    return read_template(
        {
            "schemaVersion": "2.1.0",
            "pipelineInfo": {"name": "test"},
            "deploymentSpec": {"executors": EXECUTORS},
            "components": components,
            "root": component(root.get("inputs"), dag={"tasks": tasks}),
        }
    )


Program = Callable[[str, TaskRun], Values | JobError]
"""The program of a task: returns its outputs or its error. The first argument is the path of the task."""


def succeed(path: str, task: TaskRun) -> Values:
    return Values()


class Service:
    """Runs the tasks of one pipeline job, each as a job that ends at the next step.

    `restarts`: read the tasks from the store before each step, as after `kill -9`.
    """

    def __init__(
        self,
        of: Template,
        program: Program = succeed,
        *,
        inputs: Values | None = None,
        fails_fast: bool = False,
        restarts: bool = False,
    ) -> None:
        self.template = of
        self.program = program
        self.inputs = inputs or Values()
        self.circumstances = Circumstances(FACTS, fails_fast=fails_fast)
        self.restarts = restarts
        self.tree = Tree(of)
        self.stored: dict[int, TaskRun] = {}
        #: The paths of tasks that have started, in this order.
        self.started: list[str] = []
        self.cancelled: list[JobUid] = []
        self.now = 0
        self.most = 0

    def step(self, *, cancel: bool = False) -> None:
        """Let all running jobs end, and apply the result."""
        self.now += 10**9
        if self.restarts:
            self.tree = Tree(self.template, self.stored.values())
        step = Step(self.tree, self.circumstances, Nanos(self.now))
        if not self.stored:
            step.begin(self.inputs)
        else:
            step.examine_all()
        for uid in tuple(self.tree.jobs()):
            task = self.tree.task_of_job(uid)
            assert task is not None
            step.report(task, self._job(task))
        if cancel or self.circumstances.is_cancelling:
            self.circumstances = replace(self.circumstances, is_cancelling=True)
            self.cancelled += step.cancel()
        while ready := step.settle():
            for task in ready:
                path = self.tree.path(task)
                self.started.append(path)
                assert task.kind is TaskKind.JOB
                step.submit(task.number, JobUid(len(self.started)))
        running = [t for t in self.tree if t.kind is TaskKind.JOB and t.state is TaskState.PENDING]
        self.most = max(self.most, len(running))
        self.stored |= {task.number: task for task in self.tree.take_changes()}

    def run(self) -> TaskRun:
        """Run the pipeline job to its end. Return its root task."""
        for _ in range(1000):
            self.step()
            if self.tree[ROOT].state.is_final:
                return self.tree[ROOT]
        raise AssertionError(f"the run does not end: {self.states()}")

    def states(self) -> dict[str, str]:
        """Return the states of all tasks by path."""
        return {self.tree.path(task): task.state.value for task in self.tree if task.number}

    def task(self, path: str) -> TaskRun:
        return next(task for task in self.tree if self.tree.path(task) == path)

    def _job(self, task: TaskRun) -> JobReport:
        result = self.program(self.tree.path(task), task)
        at = Nanos(self.now)
        if task.state is TaskState.CANCELLING:
            return JobReport(JobState.CANCELLED, at, at)
        if isinstance(result, JobError):
            return JobReport(JobState.FAILED, at, at, result)
        return JobReport(JobState.SUCCEEDED, at, at, outputs=result)
