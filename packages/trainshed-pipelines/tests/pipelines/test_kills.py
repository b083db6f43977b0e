"""A pipeline job through the real controller, store and scheduler over virtual time. The service is killed
just before or just after each of its commits (spec/invariants#durability).
"""

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from tests.inline_store import InlineStore, run_inline
from tests.pipelines.unit.pipelines_of import LIST, NUMBER, component, task, template
from tests.sim.engine.programs import Life, Script
from tests.sim.scenario import HOUR, MINUTE, Cancel
from tests.sim.simulation import Crash, Simulation, simulate
from tests.sim.tuning_jobs import PROJECT, REGION, trial_spec
from tests.sim.tuning_scenarios import one_family_scenario
from tests.soaks import SOAKS
from tests.unit.jobs import CREATED, SECOND
from trainshed.core.errors import FailedPrecondition
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import Api, Collection, JobName, JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.works import Work
from trainshed.store.port import Commit, NewWork
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite import connections
from trainshed.store.steps import Reconciler
from trainshed_pipelines.runs import machine
from trainshed_pipelines.runs.reconciler import PipelineJobReconciler, Run, Started
from trainshed_pipelines.runs.records import TaskRun, Values
from trainshed_pipelines.runs.table import Runs
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template.structures import Template

LIMIT = 2
"""Maximum number of iterations of the loop that run at the same time."""
ITERATIONS = [f"each[{i}]/{name}#0" for i in range(4) for name in ("fit", "score")]
ATTEMPTS = (*ITERATIONS, "prepare#0", "high/use#0", "flaky#0", "flaky#1", "collect#0")
JOBS = Counter(["report#0", *(f"body/{attempt}" for attempt in ATTEMPTS)])
"""The expected number of jobs by path and attempt of the task. The first attempt of `flaky` fails."""
NAME = JobName(Api.VERTEX, PROJECT, REGION, "run", Collection.PIPELINE_JOBS)
RUN = PipelineJob(JobUid(6000), NAME, "run", "{}", CREATED, CREATED, template="t", root="gs://b")
SCENARIO = one_family_scenario(RUN)


def pipeline() -> Template:
    """Return a pipeline with a loop of DAGs, conditions, a retry policy and an exit handler."""
    result = {"valueFromParameter": {"producerSubtask": "score", "outputParameterKey": "sum"}}
    steps = {"fit": task("fit", "add", a="=item"), "score": task("score", "add", a="fit.sum")}
    evaluate = {"tasks": steps, "outputs": {"parameters": {"sum": result}}}
    items = {"items": {"raw": "[10, 20, 30, 40]"}, "itemInput": "item"}
    loop = {"parameterIterator_": items, "iteratorPolicy_": {"parallelismLimit": LIMIT}}
    retry = {"maxRetryCount": 2, "backoffDuration": "3s"}
    is_high = {"condition": "inputs.parameter_values['a'] > 5"}
    is_low = {"condition": "!(inputs.parameter_values['a'] > 5)"}
    body = {
        "prepare": task("prepare", "add", a=7),
        "each": task("each", "evaluate", after=("prepare",), **loop),
        "high": task("high", "branch", a="prepare.sum", triggerPolicy_=is_high),
        "low": task("low", "branch", a="prepare.sum", triggerPolicy_=is_low),
        "flaky": task("flaky", "add", a=1, retryPolicy_=retry),
        "collect": task("collect", "add", all="each.sum", a="flaky.sum", after=("high",)),
    }
    always = {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    report = task("report", "report", after=("body",), status="?body", triggerPolicy_=always)
    values = {"a": NUMBER, "all": {**LIST, "isOptional": True}}
    return template(
        {"body": task("body", "body"), "report": report},
        {
            "add": component(values, {"sum": NUMBER}),
            "evaluate": component({"item": NUMBER}, {"sum": NUMBER}, evaluate),
            "branch": component({"a": NUMBER}, dag={"tasks": {"use": task("use", "add", a="=a")}}),
            "body": component(dag={"tasks": body}),
            "report": component({"status": {"parameterType": "TASK_FINAL_STATUS"}}),
        },
    )


TEMPLATE = pipeline()


class PipelineSimulation(Simulation):
    """A simulation of one pipeline job. A user tries to delete each job of a task that has finished. The
    service does not have the addition after the first of the scenario's `crash_times`.

    The simulation carries out tasks (`runs.reconciler.Tasks`): each attempt is a job with the path of the
    task in its display name, and the output of a task is the sum of its inputs.
    """

    kind_of = staticmethod(machine.kind_of)

    def __init__(self, *arguments: Any) -> None:
        #: The pipeline job as last committed and at each start of a service. The times of commits (ns).
        self.run_record, self.at_start, self.times = RUN, list[PipelineJob](), list[int]()
        #: The states, inputs and outputs of all tasks by path.
        self.result: dict[str, tuple[str, Values, Values]] = {}
        super().__init__(*arguments)
        self.runs = Runs(self.store.writer, self.store.snapshots)

    @property
    def jobs(self) -> Counter[str]:
        """The number of jobs by display name."""
        return Counter(job.display_name for job in self.books.families.jobs.values())

    async def start(self, run: PipelineJob, tree: Tree, task: TaskRun) -> Started:
        uid, now = JobUid(next(self._uids)), self.clock.wall
        name, parent = JobName(Api.VERTEX, PROJECT, REGION, str(uid)), Parent(run.uid, run.name)
        shown = f"{tree.path(task)}#{len(task.failed_jobs)}"
        job = Job(uid, name, shown, "{}", now, now, spec=trial_spec(), parent=parent)
        return Started(NewWork(job))

    async def outputs(self, run: PipelineJob, tree: Tree, task: TaskRun, work: Work) -> Values:
        keys, inputs = tree.component(task).output_parameters, task.inputs.parameters
        return Values(dict.fromkeys(keys, sum(inputs.get("all", ()), inputs.get("a", 0))))

    def _reconcilers(self) -> Mapping[type[Work], Reconciler]:
        async def load_run(_: PipelineJob) -> Run:
            return Run(TEMPLATE, Values(), fails_fast=False)

        self.at_start.append(self.run_record)
        if self.scenario.crash_times and self.tally["crashes"] == 1:
            return {}
        reader, now = self.store.reader, self._stores().now
        return {PipelineJob: PipelineJobReconciler(reader, self.runs, self, load_run, now=now)}

    def _script(self, life: Life) -> Script:
        """Return the script of a task's program: the same for every service."""
        attempt = self.books.families.jobs[life.job_uid].display_name
        runs = random.Random(attempt).randrange(5, 60) * MINUTE
        return Script(runs, code=int(attempt == "body/flaky#0"))

    def _after_commit(self, what: str) -> None:
        self.times.append(self.clock.now)
        super()._after_commit(what)

    def _handle_commit(self, commit: Commit) -> None:
        super()._handle_commit(commit)
        work = commit.job
        alive = [job for job in self.books.families.jobs.values() if not job.state.is_final]
        assert sum("each[" in job.display_name for job in alive) <= LIMIT
        if isinstance(work, PipelineJob):
            tree = Tree(TEMPLATE, run_inline(self.runs.tasks(RUN.uid)))
            self.result = {tree.path(t): (t.state.value, t.inputs, t.outputs) for t in tree}
            assert not (work.state.is_final and alive)
            self.run_record = work
        elif work.state.is_final:
            operation = Operation("o", OperationKind.DELETE, str(work.name), 0, 0)
            with pytest.raises(FailedPrecondition, match="pipelineJobs/run"):
                run_inline(self.store.intake.delete_job(work.name, operation))


def simulate_run(
    *kills: tuple[int, bool], of: type[PipelineSimulation] = PipelineSimulation, **changes: Any
) -> PipelineSimulation:
    """Return a pipeline job that ran without violations. `changes`: fields of the scenario."""
    made = simulate(dataclasses.replace(SCENARIO, **changes), *kills, simulation_class=of)
    assert isinstance(made, PipelineSimulation)
    return made


undisturbed = cache(simulate_run)


def assert_complete(made: PipelineSimulation) -> None:
    """Check that no task was lost or repeated, and that the result is that of a service without kills."""
    assert made.run_record.state is JobState.SUCCEEDED
    assert made.jobs == JOBS
    assert made.tally["programs"] == JOBS.total()
    assert made.result == undisturbed().result


def test_pipeline_survives_a_kill_at_every_commit() -> None:
    assert undisturbed().result["body/collect"][2].parameters == {"sum": 101}
    assert undisturbed().result["body/low"][0] == "NOT_TRIGGERED"
    for number in range(1, undisturbed().tally["commits"] + 1):
        for stored in (False, True) if SOAKS else (number % 2 == 1,):
            # Within an hour without a service, all programs end.
            made = simulate_run((number, stored), downs=(SECOND if number % 4 < 2 else HOUR,))
            assert made.tally["crashes"] == 1
            assert_complete(made)


def test_pipeline_survives_a_kill_at_every_third_commit() -> None:
    for first in range(3):
        kills = ((number, number % 2 == 0) for number in range(first, 300, 3))
        made = simulate_run(*kills, downs=(0, SECOND, HOUR))
        assert made.tally["crashes"] > 20
        assert_complete(made)


def test_cancel_at_any_time_starts_no_further_task_despite_kills() -> None:
    """spec/lifecycle#cancel: all jobs end. The service is killed at one of the commits from the cancel on."""
    states = Counter[JobState]()
    for at in sorted(set(undisturbed().times))[: -1 : 1 if SOAKS else 5]:
        requests = (*SCENARIO.requests, Cancel(at, RUN.uid))
        first = simulate_run(requests=requests).written.index("request_cancel") + 1
        for number in range(first, first + 5):
            made = simulate_run((number, number % 2 == 0), requests=requests)
            states[made.run_record.state] += 1
            outcome, jobs = made.run_record.outcome, made.books.families.jobs.values()
            assert made.jobs <= JOBS
            assert outcome is None or all(job.created <= outcome.at for job in jobs)
    assert states.total() - states[JobState.SUCCEEDED] == states[JobState.CANCELLED] > 10


@pytest.mark.parametrize("cancels", [False, True], ids=["continued", "cancelled"])
@pytest.mark.parametrize("part", range(1, 5))
def test_pipeline_waits_while_the_addition_is_missing(part: int, *, cancels: bool) -> None:
    at = undisturbed().times[len(undisturbed().times) * part // 5]
    requests = (*SCENARIO.requests, *([Cancel(at + 10 * SECOND, RUN.uid)] if cancels else ()))
    made = simulate_run(crash_times=(at, at + HOUR), downs=(SECOND,), requests=requests)
    assert made.at_start[1] == made.at_start[2]
    if cancels:
        assert made.run_record.state is JobState.CANCELLED
    else:
        assert_complete(made)


class Losing(PipelineSimulation):
    """A simulation in which the record of a new job is lost, and the service is killed."""

    lost = "body/each[1]/score#0"
    statement = ""

    def _handle_creation(self, *works: Work) -> None:
        super()._handle_creation(*works)
        for work in works:
            if work.display_name == self.lost:
                assert isinstance(self.store, InlineStore)
                self.store.read_now(lambda c, uid=work.uid: c.execute(self.statement, (uid,)))
                del self.books.jobs[work.uid], self.books.families.jobs[work.uid]
                raise Crash("after the creation of the job")


@pytest.mark.parametrize("change", ["DELETE FROM works", "UPDATE jobs SET record = X'00'"])
def test_task_whose_job_was_lost_fails_and_the_exit_task_runs(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Losing, "statement", f"{change} WHERE uid = ?")
    monkeypatch.setattr(connections, "log_once", str)  # It would log an error.
    made = simulate_run(of=Losing)
    assert made.run_record.state is JobState.FAILED
    assert "job of the task was deleted or is unreadable" in str(made.run_record.error)
    assert made.result["report"][0] == "SUCCEEDED"
    assert made.jobs == JOBS - Counter([Losing.lost, "body/collect#0"])
