"""Lineage of pipeline jobs in the real metadata store (facts/pipelines#lineage)."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import ApiService
from trainshed.api.calls.call import Call, Handler
from trainshed.api.calls.registry import Registry
from trainshed.core.errors import Unavailable
from trainshed.core.names import Api, Collection, JobName, JobUid
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.units import Nanos
from trainshed_pipelines.runs import names, views
from trainshed_pipelines.runs.lineage import Lineage
from trainshed_pipelines.runs.records import ROOT, Artifact, TaskKind, TaskRun, Values
from trainshed_pipelines.runs.records import TaskState as S
from trainshed_pipelines.runs.tree import Tree
from trainshed_pipelines.template import structures as ir

STORE = "projects/p1/locations/us-central1/metadataStores/default"
NOW = Nanos(1_760_000_000 * 10**9)
NAME = JobName(Api.VERTEX, "p1", "us-central1", "iris-1", Collection.PIPELINE_JOBS)
RUN = PipelineJob(
    uid=JobUid(7),
    name=NAME,
    display_name="Iris",
    public_json="{}",
    created=NOW,
    updated=NOW,
    template="iris",
    root="gs://b/root",
)
LOOP = ir.Iterator("models", "model", of_artifacts=True)
TASKS = {"test": ir.Task(name="test", component="test", iterator=LOOP)}
COMPONENTS = {
    "root": ir.Component(name="root", implementation=ir.Dag(TASKS)),
    "test": ir.Component(name="test", implementation=ir.Container("python:3.11")),
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ApiService]:
    built = ApiService(tmp_path)
    yield built
    built.close()


@pytest.fixture
def lineage(service: ApiService) -> Lineage:
    return lineage_with(service)


def lineage_with(service: ApiService, **methods: Handler) -> Lineage:
    """Return the lineage of a service whose MetadataService has other methods."""
    replaced = {f"google.cloud.aiplatform.v1.MetadataService.{m}": methods[m] for m in methods}
    connected, handlers = Lineage(), {**service.registry.handlers, **replaced}
    connected.connect(service.services, replace(service.registry, handlers=handlers))
    return connected


def artifact(key: str, schema: str = "system.Metrics", **metadata: Any) -> Artifact:
    name = names.artifact_name(NAME, 1, key)
    return Artifact(name, ir.ArtifactType(schema), f"gs://b/{key}", metadata)


METRICS, MODEL = artifact("metrics", accuracy=0.8, mse=1.2), artifact("model", "system.Model")


def task(number: int, state: S = S.RUNNING, **fields: Any) -> TaskRun:
    kind, component = (TaskKind.DAG, "root") if number == ROOT else (TaskKind.JOB, "test")
    known: dict[str, Any] = {"kind": kind, "component": component, "name": "train", "started": NOW}
    return TaskRun(number=number, state=state, created=NOW, **(known | fields))


def tree_of(*tasks: TaskRun) -> Tree:
    """Return a tree whose tasks are all changed."""
    root = COMPONENTS["root"]
    tree = Tree(ir.Template(name="iris", root=root, components=COMPONENTS))
    for changed in tasks:
        tree.put(changed)
    return tree


async def observe(lineage: Lineage, tree: Tree, run: PipelineJob = RUN) -> None:
    await lineage.observe(run, tree, tree.take_changes())


async def create(service: ApiService, kind: str, node_id: str = "", **fields: Any) -> None:
    path = f"/v1/{STORE}/{kind}?{kind[:-1]}Id={node_id}"
    await service.result("POST", path, fields)


async def nodes(service: ApiService, kind: str, text: str = "") -> list[dict[str, Any]]:
    """Return the nodes that match a filter, in the order of their creation."""
    page = await service.result("GET", f"/v1/{STORE}/{kind}?{urlencode({'filter': text})}")
    return page.get(kind, [])


async def outputs_of(service: ApiService, number: int) -> set[str]:
    """Return the names of the artifacts to which the events of a task refer."""
    name = names.execution_name(NAME, number)
    graph = await service.result("GET", f"/v1/{name}:queryExecutionInputsAndOutputs")
    return {event["artifact"] for event in graph.get("events", []) if event["type"] == "OUTPUT"}


def test_long_ids_of_pipeline_jobs_have_different_names_in_the_store() -> None:
    runs = [replace(NAME, job_id="x" * 127 + end) for end in "ab"]
    artifacts = {names.artifact_name(run, 10_000, "k" * 200, 9) for run in runs}
    executions = {names.execution_name(run, 10_000) for run in runs}
    assert (len(artifacts), len(executions)) == (2, 2)
    assert all(len(name.rpartition("/")[2]) <= 128 for name in artifacts | executions)


async def test_run_context_is_a_child_of_its_pipeline_and_its_experiment(
    service: ApiService, lineage: Lineage
) -> None:
    assert await lineage.contexts(RUN) == ()
    run, pipeline = await lineage.begin(RUN)
    assert await lineage.begin(RUN) == (run, pipeline)
    assert (run.schema_title, run.display_name) == ("system.PipelineRun", "iris-1")
    assert (pipeline.schema_title, pipeline.name) == ("system.Pipeline", f"{STORE}/contexts/iris")
    await create(service, "contexts", "e1", schemaTitle="system.Experiment")
    children = {"childContexts": [run.name]}
    await service.result("POST", f"/v1/{STORE}/contexts/e1:addContextChildren", children)
    view: Any = views.pipeline_job(RUN, None, (), await lineage.contexts(RUN))
    parents = [f"{STORE}/contexts/e1", view.job_detail.pipeline_context.name]
    assert list(view.job_detail.pipeline_run_context.parent_contexts) == parents


async def test_nothing_is_recorded_without_metadata_service(service: ApiService) -> None:
    lineage, tree = Lineage(), tree_of(task(ROOT))
    lineage.connect(service.services, Registry({}, {}))
    await observe(lineage, tree)
    assert (await lineage.contexts(RUN), tree[ROOT].execution) == ((), "")


async def test_contexts_of_other_resources_are_not_changed(
    service: ApiService, lineage: Lineage, caplog: pytest.LogCaptureFixture
) -> None:
    await lineage.begin(replace(RUN, template="other", name=replace(NAME, job_id="iris-0")))
    await create(service, "contexts", "iris", schemaTitle="system.Experiment")
    tree = tree_of(task(ROOT))
    await observe(lineage, tree)
    (context,) = await lineage.contexts(RUN)
    assert (context.schema_title, bool(tree[ROOT].execution)) == ("system.PipelineRun", True)
    assert await nodes(service, "executions", 'in_context("iris")') == []
    tree = tree_of(task(ROOT))
    await observe(lineage, tree, replace(RUN, name=replace(NAME, job_id="iris")))
    assert not tree[ROOT].execution
    assert "has no lineage" in caplog.text


async def test_tasks_become_executions_with_events_and_artifacts(
    service: ApiService, lineage: Lineage
) -> None:
    inputs, step = Values({"lr": 0.1, "layers": [1, 2]}), replace(RUN, steps=1)
    outputs = Values({"loss": 0.5}, {"metrics": (METRICS,), "model": (MODEL,)})
    tree = tree_of(task(ROOT, inputs=inputs), task(1, S.WAITING, started=0))
    await observe(lineage, tree)
    assert [t.execution for t in tree] == [names.execution_name(NAME, ROOT), ""]
    tree.put(task(1, inputs=inputs))
    await observe(lineage, tree, step)
    (stored,) = await nodes(service, "executions", "schema_title=system.ContainerExecution")
    assert (stored["state"], stored["displayName"]) == ("RUNNING", "train")
    tree.put(replace(tree[1], state=S.SUCCEEDED, outputs=outputs))
    tree.put(replace(tree[ROOT], state=S.SUCCEEDED, outputs=replace(outputs, parameters={})))
    await observe(lineage, tree, step)
    root, train = await nodes(service, "executions", 'in_context("iris-1")')
    assert (root["schemaTitle"], root["state"]) == ("system.Run", "COMPLETE")
    assert root["metadata"] == {"input:lr": 0.1, "input:layers": [1, 2]}
    assert train["metadata"]["output:loss"] == 0.5
    assert await nodes(service, "executions", 'in_context("iris")') == [root]
    metrics, model = await nodes(service, "artifacts", 'in_context("iris-1")')
    assert (metrics["metadata"], metrics["state"]) == ({"accuracy": 0.8, "mse": 1.2}, "LIVE")
    assert (model["schemaTitle"], model["uri"]) == ("system.Model", "gs://b/model")
    written = {metrics["name"], model["name"]}
    assert await outputs_of(service, 1) == await outputs_of(service, ROOT) == written


async def test_metrics_of_tasks_are_outputs_of_the_run(service: ApiService, lineage: Lineage) -> None:
    outputs = Values(artifacts={"metrics": (METRICS,), "model": (MODEL,)})
    await observe(lineage, tree_of(task(ROOT), task(1, S.SUCCEEDED, outputs=outputs)))
    assert await outputs_of(service, ROOT) == {METRICS.name}


async def test_a_repeated_step_changes_nothing_and_a_cached_task_shares_its_artifacts(
    service: ApiService, lineage: Lineage
) -> None:
    """After a crash, the tasks are read from the store without their executions."""
    outputs = Values(artifacts={"metrics": (METRICS,)})
    stored: list[Any] = []
    for _ in range(2):
        tree = tree_of(task(ROOT), task(1, S.SUCCEEDED, outputs=outputs))
        await observe(lineage, tree)
        stored.append([await nodes(service, k) for k in ("contexts", "executions", "artifacts")])
        assert all(t.execution for t in tree)
    assert stored[0] == stored[1]
    run = replace(RUN, name=replace(NAME, job_id="iris-2"))
    await observe(lineage, tree_of(task(ROOT), task(1, S.SKIPPED, outputs=outputs)), run)
    assert await nodes(service, "artifacts", 'in_context("iris-2")') == stored[0][2]
    executions = await nodes(service, "executions", 'in_context("iris-2")')
    assert [execution["state"] for execution in executions] == ["RUNNING", "CACHED"]


async def test_tasks_that_never_started_have_no_executions(service: ApiService, lineage: Lineage) -> None:
    states = (S.RUNNING, S.FAILED, S.CANCELLED, S.NOT_TRIGGERED, S.PENDING)
    tasks = [task(number, state) for number, state in enumerate(states)]
    tree = tree_of(*tasks, task(5, S.FAILED, started=0), task(6, S.CANCELLED, started=0))
    await observe(lineage, tree)
    assert [t.number for t in tree if t.execution] == [0, 1, 2, 5]
    recorded = Counter(node["state"] for node in await nodes(service, "executions"))
    assert recorded == {"RUNNING": 1, "FAILED": 2, "CANCELLED": 1}


async def test_importer_reuses_an_artifact_with_its_uri_schema_and_metadata(
    service: ApiService, lineage: Lineage
) -> None:
    await lineage.begin(RUN)
    new = Artifact("new", ir.ArtifactType("system.Model"), 'gs://b/"m"', {"k": 1}, "model")
    outputs = Values(artifacts={"model": (new,)})
    assert await lineage.reuse(RUN, outputs) == outputs
    body: dict[str, Any] = {"uri": new.uri, "schemaTitle": "system.Model", "metadata": {"k": 1}}
    changes: list[dict[str, Any]] = [{"metadata": {"k": 1, "more": 2}}, {"metadata": {"k": 2}}]
    for change in (*changes, {"uri": "gs://b"}, {"schemaTitle": "system.Dataset"}):
        await create(service, "artifacts", "", **(body | change))
        service.clock += 10**9
    ((reused,),) = (await lineage.reuse(RUN, outputs)).artifacts.values()
    assert reused.name.startswith(STORE)
    assert reused.metadata == {"k": 1, "more": 2}


async def test_errors_of_single_records_do_not_stop_a_pipeline_job(
    service: ApiService, lineage: Lineage, caplog: pytest.LogCaptureFixture
) -> None:
    missing, invalid = (replace(MODEL, name=f"{STORE}/artifacts/{end}") for end in ("gone", "No"))
    large = replace(METRICS, metadata={"roc": list(range(100_000)), "accuracy": 0.8})
    inputs = Values(artifacts={"model": (missing,)})
    outputs = Values(artifacts={"metrics": (large,), "model": (invalid,)})
    await observe(lineage, tree_of(task(ROOT), task(1, S.SUCCEEDED, inputs=inputs, outputs=outputs)))
    (stored,) = await nodes(service, "artifacts")
    assert stored["metadata"] == {"accuracy": 0.8}
    assert await outputs_of(service, 1) == {stored["name"]}
    assert "AddExecutionEvents" in caplog.text


async def test_unavailable_store_stops_the_step(service: ApiService) -> None:
    async def fail(call: Call, request: Any) -> Any:
        raise Unavailable("The disk is full.")

    with pytest.raises(Unavailable):
        await observe(lineage_with(service, CreateExecution=fail), tree_of(task(ROOT)))


async def test_events_of_a_loop_over_artifacts_grow_linearly(service: ApiService) -> None:
    """Each iteration has all items of its loop among its inputs, and records only its own item."""
    count, events = 20, Counter[str]()

    async def count_events(call: Call, request: Any) -> Any:
        events[request.execution] += len(request.events)
        return request

    lineage = lineage_with(service, AddExecutionEvents=count_events)
    models = tuple([artifact(f"model-{number}", "system.Model") for number in range(count)])
    every = Values(artifacts={"models": models})
    loop = task(2, kind=TaskKind.LOOP, name="test", inputs=every)
    items = [Values(artifacts={"models": models, "model": (model,)}) for model in models]
    runs = [task(3 + n, name="test", parent=2, iteration=n, inputs=item) for n, item in enumerate(items)]
    await observe(lineage, tree_of(task(ROOT), task(1, S.SUCCEEDED, outputs=every), loop, *runs))
    assert sorted(events.values()) == [1] * count + [count, count]
