"""The state machine of pipeline jobs: order, conditions, loops, failures, retries, cancels and restarts."""

from typing import Any

import pytest

from tests.pipelines.unit.pipelines_of import (
    LIST,
    NUMBER,
    STRUCT,
    Program,
    Service,
    component,
    task,
    template,
)
from trainshed.core.job import JobError
from trainshed.core.lifecycle.transition import Ignore, Illegal, IllegalTransition, Next
from trainshed.core.units import Nanos
from trainshed_pipelines.runs.machine import TASKS, Step, TaskTrigger
from trainshed_pipelines.runs.records import TaskRun, TaskState, Values
from trainshed_pipelines.template.structures import Template

ADD = component({"a": NUMBER, "b": NUMBER}, {"sum": NUMBER})
STEP = component()
FAILURE = JobError(3, "exit status 1")


def add(path: str, task: TaskRun) -> Values:
    values = task.inputs.parameters
    return Values({"sum": values["a"] + values["b"]} if "a" in values else {})


def failing(*paths: str) -> Program:
    def program(path: str, task: TaskRun) -> Values | JobError:
        return FAILURE if path in paths else add(path, task)

    return program


@pytest.fixture(params=[False, True], ids=["one service", "killed before each step"])
def restarts(request: pytest.FixtureRequest) -> bool:
    return request.param


def chain() -> Template:
    return template(
        {
            "first": task("first", "add", a=1, b=2),
            "second": task("second", "add", a="first.sum", b=10),
            "third": task("third", "step", after=("second",)),
        },
        {"add": ADD, "step": STEP},
    )


def test_tasks_start_after_the_tasks_whose_outputs_they_read(restarts: bool) -> None:
    service = Service(chain(), add, restarts=restarts)
    root = service.run()
    assert root.state is TaskState.SUCCEEDED
    assert service.started == ["first", "second", "third"]
    assert service.task("second").outputs.parameters == {"sum": 13}


def test_inputs_can_refer_to_the_task() -> None:
    text = "{{$.pipeline_task_name}} {{$.pipeline_task_uuid}} of {{$.pipeline_job_name}}"
    echo = component({"text": {"parameterType": "STRING"}})
    constant = {"runtimeValue": {"constant": text}}
    parameters = {"parameters": {"text": constant}}
    service = Service(template({"a": task("a", "echo", inputs_=parameters)}, {"echo": echo}))
    service.run()
    assert service.task("a").inputs.parameters == {"text": "a 2 of run"}


def test_objects_are_passed_to_text_inputs_as_json() -> None:
    echo = component({"text": {"parameterType": "STRING"}})
    tasks = {"a": task("a", "echo", text="=point")}
    pipeline = template(tasks, {"echo": echo}, inputs={"point": STRUCT})
    service = Service(pipeline, inputs=Values({"point": {"x": 1}}))
    service.run()
    assert service.task("a").inputs.parameters == {"text": '{"x": 1}'}


def test_tasks_after_a_failed_task_are_not_triggered(restarts: bool) -> None:
    service = Service(chain(), failing("first"), restarts=restarts)
    root = service.run()
    assert root.state is TaskState.FAILED
    assert root.error == FAILURE
    assert service.states() == {"first": "FAILED", "second": "NOT_TRIGGERED", "third": "NOT_TRIGGERED"}
    error = service.task("second").error
    assert error is not None
    assert "the task 'first' failed" in error.message


def parallel(**fields: Any) -> Template:
    return template(
        {
            "broken": task("broken", "step"),
            "slow": task("slow", "step"),
            "later": task("later", "step", after=("slow",)),
            "cleanup": task(
                "cleanup",
                "step",
                after=("broken", "later"),
                triggerPolicy_={"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"},
            ),
        },
        {"step": STEP},
    )


@pytest.mark.parametrize(("fails_fast", "later"), [(False, "SUCCEEDED"), (True, "NOT_TRIGGERED")])
def test_failure_policy_decides_whether_independent_tasks_start_after_a_failure(
    *, fails_fast: bool, later: str, restarts: bool
) -> None:
    service = Service(parallel(), failing("broken"), fails_fast=fails_fast, restarts=restarts)
    assert service.run().state is TaskState.FAILED
    assert service.states() == {
        "broken": "FAILED",
        "slow": "SUCCEEDED",
        "later": later,
        "cleanup": "SUCCEEDED",
    }


def test_exit_task_receives_the_final_status_of_the_failed_tasks() -> None:
    final = {"parameterType": "TASK_FINAL_STATUS"}
    of = template(
        {
            "work": task("work", "step"),
            "exit": task(
                "exit",
                "report",
                after=("work",),
                status="?work",
                triggerPolicy_={"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"},
            ),
        },
        {"step": STEP, "report": component({"status": final})},
    )
    service = Service(of, failing("work"))
    assert service.run().state is TaskState.FAILED
    assert service.task("exit").inputs.parameters["status"] == {
        "state": "FAILED",
        "pipelineJobResourceName": "projects/p/locations/l/pipelineJobs/run",
        "pipelineTaskName": "work",
        "error": {"code": 3, "message": "exit status 1"},
    }


def flaky() -> Template:
    retry = {"maxRetryCount": 2, "backoffDuration": "3s"}
    return template({"flaky": task("flaky", "step", retryPolicy_=retry)}, {"step": STEP})


def test_pause_that_ended_during_another_event_remains_a_deadline() -> None:
    """The alarm of the pause may not have fired yet. Another step must not discard it."""
    service = Service(flaky(), failing("flaky"))
    service.step()
    service.step()
    end = service.task("flaky").not_before
    assert end == service.now + 3 * 10**9
    step = Step(service.tree, service.circumstances, Nanos(end + 1))
    assert step.settle() == []
    assert step.next_deadline() == end


def test_retried_task_gets_a_new_job_after_its_pause(restarts: bool) -> None:
    attempts: list[int] = []

    def program(path: str, run: TaskRun) -> Values | JobError:
        attempts.append(int(run.job))
        return FAILURE if len(attempts) < 3 else Values()

    service = Service(flaky(), program, restarts=restarts)
    assert service.run().state is TaskState.SUCCEEDED
    run = service.task("flaky")
    assert (run.job, run.failed_jobs) == (3, (1, 2))
    # The pauses are 3 s and 6 s. Each step takes one second.
    assert service.now >= 9 * 10**9


def conditional() -> Template:
    branch = component({"x": NUMBER}, {"sum": NUMBER}, _returns_sum(task("inner", "add", a="=x", b=1)))
    return template(
        {
            "coin": task("coin", "add", a=1, b=0),
            "heads": task(
                "heads",
                "branch",
                x="coin.sum",
                triggerPolicy_={"condition": "inputs.parameter_values['x'] == 1"},
            ),
            "tails": task(
                "tails",
                "branch",
                x="coin.sum",
                triggerPolicy_={"condition": "!(inputs.parameter_values['x'] == 1)"},
            ),
        },
        {"add": ADD, "branch": branch},
    )


def _returns_sum(inner: Any) -> dict[str, Any]:
    selector = {"producerSubtask": "inner", "outputParameterKey": "sum"}
    return {"tasks": {"inner": inner}, "outputs": {"parameters": {"sum": {"valueFromParameter": selector}}}}


def test_only_tasks_with_a_true_condition_run(restarts: bool) -> None:
    service = Service(conditional(), add, restarts=restarts)
    assert service.run().state is TaskState.SUCCEEDED
    assert service.started == ["coin", "heads/inner"]
    assert service.states()["tails"] == "NOT_TRIGGERED"
    assert service.task("heads").outputs.parameters == {"sum": 2}


def loop(items: Any, limit: int = 0) -> Template:
    inner = component({"item": NUMBER}, {"sum": NUMBER}, _returns_sum(task("inner", "add", a="=item", b=1)))
    iterator = {"items": {"raw": items}, "itemInput": "item"}
    return template(
        {
            "each": task(
                "each", "loop", parameterIterator_=iterator, iteratorPolicy_={"parallelismLimit": limit}
            ),
            "collect": task("collect", "use", all="each.sum"),
        },
        {"add": ADD, "loop": inner, "use": component({"all": LIST})},
    )


@pytest.mark.parametrize(("limit", "most"), [(0, 5), (2, 2)])
def test_loop_runs_at_most_as_many_iterations_at_a_time_as_its_limit(
    limit: int, most: int, restarts: bool
) -> None:
    service = Service(loop("[1, 2, 3, 4, 5]", limit), add, restarts=restarts)
    assert service.run().state is TaskState.SUCCEEDED
    assert service.most == most
    assert service.task("collect").inputs.parameters == {"all": [2, 3, 4, 5, 6]}
    assert service.task("each[4]/inner").outputs.parameters == {"sum": 6}


def test_loop_over_an_empty_list_succeeds_at_once() -> None:
    service = Service(loop("[]"), add)
    assert service.run().state is TaskState.SUCCEEDED
    assert service.started == ["collect"]
    assert service.task("collect").inputs.parameters == {"all": []}


def test_failed_iteration_fails_the_loop_after_the_other_iterations(restarts: bool) -> None:
    service = Service(loop("[1, 2, 3]", 1), failing("each[0]/inner"), restarts=restarts)
    assert service.run().state is TaskState.FAILED
    assert service.states()["each[2]"] == "SUCCEEDED"
    assert service.states()["collect"] == "NOT_TRIGGERED"


def test_cancel_stops_running_tasks_and_starts_no_further_task(restarts: bool) -> None:
    service = Service(chain(), add, restarts=restarts)
    service.step()
    service.step(cancel=True)
    service.step()
    assert service.started == ["first"] or service.started == ["first", "second"]
    assert service.tree[0].state is TaskState.CANCELLED
    assert set(service.states().values()) <= {"SUCCEEDED", "CANCELLED"}


def test_missing_output_of_a_task_fails_the_task_that_needs_it() -> None:
    service = Service(chain())
    assert service.run().state is TaskState.FAILED
    error = service.task("second").error
    assert error is not None
    assert "'a'" in error.message


def test_constants_with_placeholders_receive_other_inputs_of_the_task() -> None:
    inputs: dict[str, Any] = {
        "pipelinechannel--n": "=n",
        "config": {"lr": "{{$.inputs.parameters['pipelinechannel--n']}}"},
    }
    of = template(
        {"use": task("use", "use", **inputs)}, {"use": component({"config": STRUCT})}, inputs={"n": NUMBER}
    )
    service = Service(of, inputs=Values({"n": 3}))
    assert service.run().state is TaskState.SUCCEEDED
    assert service.task("use").inputs.parameters["config"] == {"lr": 3}


@pytest.mark.parametrize("state", list(TaskState))
@pytest.mark.parametrize("trigger", list(TaskTrigger))
def test_transition_table_of_tasks_is_total_and_keeps_final_states(
    state: TaskState, trigger: TaskTrigger
) -> None:
    match TASKS.cells[state, trigger]:
        case Next(after):
            assert not state.is_final
            assert TASKS.fire(state, trigger) is after
        case Ignore(why):
            assert why
            assert TASKS.fire(state, trigger) is None
        case Illegal(why):
            assert why
            with pytest.raises(IllegalTransition, match="can never happen"):
                TASKS.fire(state, trigger)
