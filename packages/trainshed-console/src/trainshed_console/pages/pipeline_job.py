"""The page of a pipeline job: the graph of its tasks, and the inputs and outputs of one of them."""

import asyncio
import json
from typing import Any, Final

from trainshed.core.names import JobUid
from trainshed.core.resource_summary import ResourceSummary
from trainshed.wire.trainshed_v1.timeline import Timeline
from trainshed_console.pages.job import FINAL, describe, head, notice, overview, story
from trainshed_console.pages.jobs import first_line
from trainshed_console.pages.pipeline_graph import Drawing
from trainshed_console.rendering import number_text
from trainshed_console.task_tree import Task, TaskTree, in_order
from trainshed_console.views import Part, View, Visit, of_job

_PAGE_SIZE: Final = 50
_MAX_FAILED: Final = 10
"""Maximum numbers of tasks in one page of a list, and of failed tasks in the notice."""
_MAX_CHARS: Final = 1000
"""Maximum characters of a value."""
_CHARTED: Final = ("confidenceMetrics", "confusionMatrix")


async def page(visit: Visit) -> View:
    """`/jobs/J[?task=T&open=A,B&fold=C]`: the page of a job of any kind. For a pipeline job: its tasks, and
    the inputs and outputs of one task. Boxes of the graph are open or folded as specified."""
    job = await describe(visit)
    if not job.pipeline_job:
        return await overview(visit, job)
    tree = TaskTree(await visit.resource(job.name))
    timeline = await visit.get(Timeline, of_job(job.uid, "/timeline"))
    opened, folded = ({*visit.query(name).split(",")} - {""} for name in ("open", "fold"))
    graph = await asyncio.to_thread(Drawing(tree, opened, folded).draw, tree.root)
    chosen = tree.find(visit.query("task")) or tree.root
    failed = [task for task in tree.walk(tree.root) if task.state == "FAILED" and task.job]

    def select(path: str) -> str:
        return visit.with_query(task=path, page="")

    def toggle(path: str, is_open: bool) -> str:
        """Return the address at which a box is folded or opened."""
        lists = {"open": opened - {path}, "fold": folded - {path}}
        lists["fold" if is_open else "open"].add(path)
        return visit.with_query(**{name: ",".join(sorted(paths)) for name, paths in lists.items()})

    is_live = job.state not in FINAL
    own = {"job": job, "uid": job.uid, "is_live": is_live, "failed": failed[:_MAX_FAILED]}
    own |= {"tree": tree, "select": select}
    wanted = ResourceSummary((), job.pipeline_job.root)
    drawn = {"graph": graph, "chosen": chosen.path, "toggle": toggle}
    parts = {
        "head": head(visit, job, "overview"),
        "notice": Part("_job_notice.html", own | notice(job, job, wanted)),
        "graph": Part("_pipeline_graph.html", own | drawn),
        "task": Part("_pipeline_task.html", own | _task(visit, tree, chosen, graph.hidden)),
        "story": Part("_job_story.html", own | story(timeline, visit)),
    }
    return View(
        job.display_name or job.job_id,
        "pipeline_job.html",
        parts=parts,
        subject=JobUid(int(job.uid)),
        lives=is_live,
        place="jobs",
    )


def _task(visit: Visit, tree: TaskTree, task: Task, hidden: int) -> dict[str, object]:
    """Return the values of the section about one task. `hidden`: number of tasks that the graph omits."""
    # The graph of the whole run already shows the tasks of the root.
    children = in_order(tree.children(task)) if hidden or task is not tree.root else []
    page = visit.query("page")
    number = int(page) if page.isdecimal() and len(page) < 5 else 0
    end = _PAGE_SIZE * (number + 1)
    return {
        "task": task,
        "is_root": task is tree.root,
        "error": first_line(task.detail.get("error", {}).get("message", "")),
        "sides": [
            (side, parameters_of(tree, task, side), artifacts_of(task, side)) for side in ("input", "output")
        ],
        "text_of": text_of,
        "preview": preview,
        "count": len(children),
        "listed": children[end - _PAGE_SIZE : end],
        "following": visit.with_query(page=str(number + 1)) if len(children) > end else "",
    }


def parameters_of(tree: TaskTree, task: Task, side: str) -> dict[str, Any]:
    """Return the values of a task's parameters by name. `side`: "input" or "output"."""
    metadata = task.detail.get("execution", {}).get("metadata", {})
    names = (name for name in metadata if name.startswith(f"{side}:"))
    values = {name.partition(":")[2]: metadata[name] for name in names}
    if task is not tree.root or side == "output":
        return values
    defined = task.component.get("inputDefinitions", {}).get("parameters", {})
    defaults = {name: value.get("defaultValue") for name, value in defined.items()}
    return {**defaults, **values, **tree.parameters}


def artifacts_of(task: Task, side: str) -> list[tuple[str, Any]]:
    """Return the keys and artifacts of a task's inputs or outputs. `side`: "input" or "output"."""
    lists = task.detail.get(f"{side}s", {})
    return [(key, artifact) for key in lists for artifact in lists[key].get("artifacts", ())]


def text_of(value: Any) -> str:
    """Return the value of a parameter or of metadata as text of limited length."""
    is_plain = isinstance(value, str | float | int) and not isinstance(value, bool)
    return (number_text(value) if is_plain else json.dumps(value))[:_MAX_CHARS]


def preview(metadata: Any) -> tuple[dict[str, str], list[tuple[str, list[Any]]], str]:
    """Return the preview of an artifact: texts by name, the rows of a confusion matrix, and the points of a
    ROC curve in an SVG of 100 by 100 units. Programs may write any metadata."""
    texts = {name: text_of(value) for name, value in metadata.items() if name not in _CHARTED}
    try:
        matrix: Any = metadata.get("confusionMatrix", {"annotationSpecs": [], "rows": []})
        names = [str(spec["displayName"]) for spec in matrix["annotationSpecs"]]
        rows = [list(row["row"]) for row in matrix["rows"]]
        curve = [
            f"{100 * point['falsePositiveRate']:.1f},{100 - 100 * point['recall']:.1f}"
            for point in metadata.get("confidenceMetrics", ())
        ]
        return texts, list(zip(names, rows, strict=True)), " ".join(curve)
    except (KeyError, TypeError, ValueError):
        return texts, [], ""
