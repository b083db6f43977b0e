"""Tasks of a pipeline job as a tree and as a graph: folding, counts, and previews of artifacts."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from trainshed_console.pages.pipeline_graph import Drawing, Graph
from trainshed_console.pages.pipeline_job import preview
from trainshed_console.pages.schedules import words_of
from trainshed_console.task_tree import TaskTree

ITERATOR: Any = {"parameterIterator": {"itemInput": "item", "items": {"raw": "[1, 2]"}}}


def task(component: str, /, *, after: str = "", uses: str = "", **fields: Any) -> dict[str, Any]:
    """Return a task that waits for one task, and uses an output of another task."""
    source = {"taskOutputParameter": {"producerTask": uses, "outputParameterKey": "Output"}}
    return {
        "componentRef": {"name": component},
        **({"dependentTasks": [after]} if after else {}),
        **({"inputs": {"parameters": {"x": source}}} if uses else {}),
        **fields,
    }


def run(tasks: Mapping[str, Any], *details: tuple[str, str, str], **components: Any) -> TaskTree:
    """Return the tree of a pipeline job. `details`: the ID of the parent, the name and the state of each
    task; the ID of a task is its number, starting with 2."""
    root = {"taskId": "1", "taskName": "run", "state": "RUNNING"}
    started = [
        {"taskId": str(number), "parentTaskId": parent, "taskName": name, "state": state}
        for number, (parent, name, state) in enumerate(details, 2)
    ]
    spec = {
        "root": {"dag": {"tasks": tasks}},
        "components": {"program": {"executorLabel": "e"}, **components},
    }
    return TaskTree({"pipelineSpec": spec, "jobDetail": {"taskDetails": [root, *started]}})


def drawn(graph: Graph) -> list[str]:
    """Return the paths of all boxes, also of those in open boxes."""
    paths: list[str] = []
    for box in graph.boxes:
        paths += [box.task.path, *(drawn(box.content) if box.content else ())]
    return paths


def draw(tree: TaskTree, *opened: str, folded: tuple[str, ...] = ()) -> Graph:
    return Drawing(tree, opened, folded).draw(tree.root)


def test_edges_distinguish_data_from_order() -> None:
    tree = run({"a": task("program"), "b": task("program", after="a"), "c": task("program", uses="a")})
    graph = draw(tree)
    assert drawn(graph) == ["a", "b", "c"] or drawn(graph) == ["a", "c", "b"]
    assert sorted(is_data for _, is_data in graph.lines) == [False, True]
    assert all(path.startswith("M") and "C" in path for path, _ in graph.lines)


def test_small_dag_is_open_by_default_also_before_it_starts() -> None:
    inner = {"dag": {"tasks": {"x": task("program"), "y": task("program", uses="x")}}}
    tree = run({"if": task("inner")}, inner=inner)
    assert drawn(draw(tree)) == ["if", "if/x", "if/y"]
    assert drawn(draw(tree, folded=("if",))) == ["if"]
    skipped = run({"if": task("inner")}, ("1", "if", "NOT_TRIGGERED"), inner=inner)
    assert drawn(draw(skipped)) == ["if"]
    assert drawn(draw(skipped, "if")) == ["if", "if/x", "if/y"]


def test_loop_is_folded_and_lists_failed_iterations_first() -> None:
    states = ["SUCCEEDED"] * 14 + ["FAILED", "RUNNING"]
    details = [("2", f"loop-{number}", state) for number, state in enumerate(states)]
    tree = run({"loop": task("program", **ITERATOR)}, ("1", "loop", "RUNNING"), *details)
    assert drawn(draw(tree)) == ["loop"]
    loop = tree.find("loop")
    assert loop is not None and tree.count_text(loop) == "1 failed, 15 of 16"
    graph = draw(tree, "loop")
    assert drawn(graph)[:4] == ["loop", "loop/14", "loop/15", "loop/0"]
    assert graph.boxes[0].content is not None and graph.boxes[0].content.hidden == 4
    assert [(task.path, task.state) for task in tree.walk(tree.root)][1] == ("loop/0", "SUCCEEDED")


def test_similar_tasks_in_a_layer_are_folded_into_a_set() -> None:
    tasks = {"load": task("program")}
    tasks |= {f"fit-{number}": task("program", uses="load") for number in range(200)}
    tasks |= {"last": task("program", uses="fit-7", after="fit-8")}
    tree = run(tasks, ("1", "fit-3", "FAILED"))
    graph = draw(tree)
    assert [box.task.name for box in graph.boxes] == ["load", "fit × 200", "last"]
    assert [is_data for _, is_data in graph.lines] == [True, True]
    fits = tree.find("fit*1")
    assert fits is not None and fits.state == "FAILED"
    assert drawn(draw(tree, "fit*1"))[:3] == ["load", "fit*1", "fit-3"]
    member = tree.find("fit-3")
    assert member is not None and member.state == "FAILED"
    assert tree.find("fit-3/x") is None and tree.find("nothing") is None


def test_graph_of_a_thousand_tasks_has_a_limited_number_of_boxes() -> None:
    chain = {f"step{n}x": task("program", uses=f"step{n - 1}x") for n in range(1000)}
    inner = {"dag": {"tasks": {"x": task("program")}}}
    graph = draw(run({**chain, "late": task("inner", uses="step999x")}, inner=inner))
    assert (len(graph.boxes), graph.hidden) == (150, 851)
    assert drawn(graph)[:3] == ["step0x", "step1x", "step2x"]


def test_preview_of_classification_metrics_has_a_matrix_and_a_curve() -> None:
    names = [{"displayName": "cat"}, {"displayName": "dog"}]
    matrix = {"annotationSpecs": names, "rows": [{"row": [9, 1]}, {"row": [2, 8]}]}
    points = [{"falsePositiveRate": 0.1, "recall": 0.6}, {"falsePositiveRate": 1, "recall": 1}]
    metadata = {"rows": 5, "confusionMatrix": matrix, "confidenceMetrics": points}
    assert preview(metadata) == ({"rows": "5"}, [("cat", [9, 1]), ("dog", [2, 8])], "10.0,40.0 100.0,0.0")


@pytest.mark.parametrize("text", ["null", "7", '"x"', '["x"]', '{"annotationSpecs": [{}]}'])
def test_preview_omits_malformed_metrics(text: str) -> None:
    value = json.loads(text)
    for name in ("confusionMatrix", "confidenceMetrics"):
        assert preview({name: value, "ok": True}) == ({"ok": "true"}, [], "")


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("TZ=Europe/Berlin 0 2 * * *", "Every day at 02:00 (Europe/Berlin)"),
        ("30 6,18 * * *", "Every day at 06:30, 18:30 (UTC)"),
        ("CRON_TZ=Asia/Tokyo 5 4 * * 1-5", "Monday to Friday at 04:05 (Asia/Tokyo)"),
        ("0 9 * * 0,7", "Sunday, Sunday at 09:00 (UTC)"),
        ("0 0 1 * *", "Day 1 of each month at 00:00 (UTC)"),
        ("15 * * * *", "Every hour at minute 15 (UTC)"),
        ("*/15 * * * *", "Every 15 minutes (UTC)"),
        ("* * * * *", "Every minute (UTC)"),
        ("5 4 1-7 * MON", "5 4 1-7 * MON (UTC)"),
        ("nonsense", "nonsense"),
    ],
)
def test_cron_expression_is_shown_in_words(cron: str, words: str) -> None:
    assert words_of(cron) == words
