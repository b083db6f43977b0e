"""The pages of models, datasets and experiments, which read collections of the Vertex API."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

from msgspec import Struct

from trainshed.wire.status import CallRejected, StatusCode
from trainshed.wire.trainshed_v1.jobs import Trial
from trainshed_console.pages.searches import Axis, Line, Metric, Search, parallel
from trainshed_console.rendering import curve_data, id_of
from trainshed_console.views import Part, View, Visit

_PAGE_SIZE: Final = 100
"""Rows on one page of a list."""
_MAX_VERSIONS: Final = 20
"""Maximum versions on the page of a model."""


def vertex_path(visit: Visit, below: str) -> str:
    """Return the Vertex API path of a resource in the page's project and region. `below`: the rest of the
    path, URL-encoded."""
    project, region = visit.place
    return f"/v1/projects/{quote(project, safe='')}/locations/{quote(region, safe='')}/{below}"


async def vertex_page(
    visit: Visit, below: str, *, token: str = "", size: int = _PAGE_SIZE, **query: str
) -> Any:
    """Return one page of a collection of the Vertex API, as JSON. `query`: the filter or the order. Raises
    CallRejected."""
    query |= {"pageSize": str(size), **({"pageToken": token} if token else {})}
    path = vertex_path(visit, below)
    return await visit.backend.call(visit.principal, "GET", f"{path}?{urlencode(query)}")


async def vertex_table(
    visit: Visit,
    collection: str,
    columns: tuple[str, str, str, str],
    nothing: str,
    cells: Callable[[Any], tuple[str, str]],
    *,
    answer: Any = None,
) -> View:
    """Return the page that lists a collection of the Vertex API. Each row has the name of a resource, the two
    `cells`, and the creation time.

    `nothing`: the text of an empty list. `answer`: the API's response, if the caller has already read it.
    """
    if answer is None:
        answer = await vertex_page(visit, collection, token=visit.query("page"))
    rows = [
        (
            item.get("displayName", ""),
            id_of(item["name"]),
            visit.page_address(f"/{collection}/{quote(id_of(item['name']), safe='')}"),
            *cells(item),
            item.get("createTime", ""),
        )
        for item in answer.get(collection, ())
    ]
    values = {
        "columns": columns,
        "nothing": nothing,
        "rows": rows,
        "following": visit.next_page(answer.get("nextPageToken")),
    }
    return View(collection.capitalize(), "table.html", values, place=collection)


_MAX_CURVES: Final = 12
"""Maximum charts on the page of an experiment."""
_MAX_DRAWN_RUNS: Final = 20
"""Maximum runs in a chart."""
_MAX_POINTS: Final = 60
"""Maximum points of a curve."""
_STORE: Final = "metadataStores/default"
"""The metadata store of experiments."""
_EXPERIMENT: Final = "system.Experiment"
_LINK: Final = "tensorboard_link"
"""Metadata key of contexts that are not experiments: each represents the TensorBoard of a job's log
directory."""


class Run(Struct, frozen=True):
    """A run of an experiment."""

    #: The ID of the run, without the prefix of the experiment.
    name: str
    #: The last reported state, RUNNING, COMPLETE or FAILED; None = unknown.
    state: str | None
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    #: Full names of the jobs of the run.
    jobs: tuple[str, ...]


async def models(visit: Visit) -> View:
    """`/models`: the models of the project."""
    return await vertex_table(
        visit,
        "models",
        ("Model", "Version", "Artifacts", "Created"),
        "No models yet. A training pipeline or aiplatform.Model.upload registers a model.",
        lambda model: (model.get("versionId", ""), model.get("artifactUri", "")),
    )


class Version(Struct, frozen=True):
    """A version of a model."""

    #: The version in the public API, as JSON.
    model: Any
    #: Full names of the resources from which the version was created, by kind: dataset, pipeline and job.
    origin: Mapping[str, str]
    evaluations: Sequence[Any]


async def model(visit: Visit) -> View:
    """`/models/M`: the versions of a model with their origins and evaluations."""
    path = f"models/{visit.encode_variable('model')}"
    answer = await vertex_page(visit, f"{path}:listVersions", size=_MAX_VERSIONS, orderBy="create_time desc")
    versions: list[Version] = []
    for shown in answer["models"]:
        below = await vertex_page(visit, f"{path}@{shown['versionId']}/evaluations")
        origin = await _origin(visit, shown)
        versions.append(Version(shown, origin, below.get("modelEvaluations", ())))
    newest = versions[0].model
    title = newest.get("displayName", "")
    values = {"title": title, "newest": newest, "versions": versions, "more": "nextPageToken" in answer}
    return View(title, "model.html", values, place="models")


async def _origin(visit: Visit, model: Any) -> Mapping[str, str]:
    if not (pipeline := model.get("trainingPipeline")):
        match model.get("metadata"):
            case {"job": str(job)}:
                return {"job": job}
            case _:
                return {}
    try:
        resource = await visit.backend.call(visit.principal, "GET", f"/v1/{pipeline}")
    except CallRejected:  # The pipeline was deleted: only its name is known.
        return {"pipeline": pipeline}
    jobs = resource.get("trainingTaskMetadata", {})
    origin = {
        "pipeline": pipeline,
        "job": jobs.get("bestTrialBackingCustomJob") or jobs.get("backingCustomJob", ""),
    }
    if number := resource.get("inputDataConfig", {}).get("datasetId"):
        place = pipeline.partition("/trainingPipelines/")[0]
        origin["dataset"] = f"{place}/datasets/{number}"
    return origin


async def experiments(visit: Visit) -> View:
    """`/experiments`: the experiments of the project, newest first."""
    wanted = f'schema_title="{_EXPERIMENT}" AND NOT metadata.{_LINK}:*'
    answer: Any = {}  # Stays empty if no client has created an experiment and, with it, the metadata store.
    try:
        answer = await _contexts(visit, wanted)
    except CallRejected as refused:
        if refused.code is not StatusCode.NOT_FOUND:
            raise
    return await vertex_table(
        visit,
        "experiments",
        ("Experiment", "Changed", "Description", "Created"),
        'No experiments yet. aiplatform.init(experiment="first") creates one.',
        lambda experiment: (experiment.get("updateTime", "")[:10], experiment.get("description", "")),
        answer={**answer, "experiments": answer.get("contexts", ())},
    )


async def experiment(visit: Visit) -> View:
    """`/experiments/E[?run=A&run=B]`: a comparison of all or some runs, with their curves."""
    path = vertex_path(visit, f"{_STORE}/contexts/{visit.encode_variable('experiment')}")
    context = await visit.backend.call(visit.principal, "GET", path)
    if context.get("schemaTitle") != _EXPERIMENT or _LINK in context.get("metadata", {}):
        raise CallRejected(
            StatusCode.NOT_FOUND,
            f"{context['name']} is not an experiment. Select an experiment in the list of experiments.",
        )
    answer = await _contexts(
        visit, f'schema_title="system.ExperimentRun" AND parent_contexts:"{context["name"]}"'
    )
    every = [_run(run, id_of(context["name"])) for run in answer.get("contexts", ())]
    wanted = frozenset(visit.request.values.get("run", ()))
    shown = [run for run in every if not wanted or run.name in wanted]
    parameters = list(dict.fromkeys(n for run in shown for n in run.parameters))
    alike = {n for n in parameters if len({str(run.parameters.get(n)) for run in shown}) == 1}
    metrics = list(dict.fromkeys(n for run in shown for n in run.metrics))
    axes, lines = parallel_coordinates(shown, [n for n in parameters if n not in alike], metrics)
    return View(
        context.get("displayName") or id_of(context["name"]),
        "experiment.html",
        {
            "description": context.get("description", ""),
            "count": len(every),
            "runs": shown,
            "chosen": wanted,
            # Parameters that differ between runs come first.
            "parameters": sorted(parameters, key=lambda name: name in alike),
            "alike": alike if len(shown) > 1 else frozenset[str](),
            "metrics": metrics,
            "curves": await _charts(visit, id_of(context["name"]), shown[:_MAX_DRAWN_RUNS]),
            "following": "" if wanted else visit.next_page(answer.get("nextPageToken")),
        },
        parts={"parallel": Part("_trials_parallel.html", {"axes": axes, "lines": lines})},
        place="experiments",
    )


async def _contexts(visit: Visit, wanted: str) -> Any:
    query = {"filter": wanted, "orderBy": "create_time desc"}
    token = visit.query("page")
    return await vertex_page(visit, f"{_STORE}/contexts", token=token, size=_PAGE_SIZE, **query)


def _run(context: Mapping[str, Any], experiment: str) -> Run:
    metadata: Mapping[str, Any] = context.get("metadata", {})
    state = metadata.get("_state")
    # Use the value only if it is a list, because clients may write any value.
    listed: Any = metadata.get("_custom_jobs")
    jobs = cast("list[Any]", listed) if isinstance(listed, list) else []
    return Run(
        name=id_of(context["name"]).removeprefix(f"{experiment}-"),
        state=state if isinstance(state, str) else None,
        parameters=_values(metadata.get("_params")),
        metrics=_values(metadata.get("_metrics")),
        jobs=tuple(
            str(cast("dict[str, Any]", job).get("custom_job_resource_name", ""))
            for job in jobs
            if isinstance(job, dict)
        ),
    )


def _values(metadata: object) -> dict[str, Any]:
    """Return the logged values of a run by name. Lists and objects become JSON texts, because clients may
    write any value."""
    if not isinstance(metadata, dict):
        return {}
    return {
        name: json.dumps(value) if isinstance(value, list | dict) else value
        for name, value in cast(dict[str, Any], metadata).items()
    }


def parallel_coordinates(
    runs: Sequence[Run], parameters: Sequence[str], metrics: Sequence[str]
) -> tuple[list[Axis], list[Line]]:
    """Return parallel coordinates of the runs: the parameters, and the first metric as the objective. Return
    empty lists if fewer than two runs have this metric, or without parameters."""
    trials: list[Trial] = []
    for number, run in enumerate(runs, 1):
        value = run.metrics.get(metrics[0]) if metrics else None
        if isinstance(value, int | float):
            chosen = {name: run.parameters.get(name) for name in parameters}
            trials.append(Trial(number=number, parameters=chosen, value=float(value)))
    names = {number: run.name for number, run in enumerate(runs, 1)}
    if not trials:
        return [], []
    return parallel(trials, Search(trials, (Metric(metrics[0]),), frozenset(), names=names))


async def _charts(visit: Visit, experiment: str, runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return (name, JSON of the chart) for each of the first time series of the runs."""
    if not runs:
        return []
    # For each run with curves, the SDK stores an artifact with this name. The artifact's metadata contains
    # the name of the TensorBoard run with the curves.
    names = {f"{experiment}-{run.name}-tb-run": run.name for run in runs}
    wanted = " OR ".join(f'name="{name}"' for name in names)
    path = f"{_STORE}/artifacts"
    answer = await vertex_page(visit, path, filter=wanted)
    lines: dict[str, dict[str, dict[float, float]]] = {}
    for artifact in answer.get("artifacts", ()):
        board = artifact.get("metadata", {}).get("resourceName", "")
        for name, values in (await _curves(visit, board)).items():
            lines.setdefault(name, {})[names[id_of(artifact["name"])]] = values
    return [(name, curve_data(by_run, "Step")) for name, by_run in list(lines.items())[:_MAX_CURVES]]


async def _curves(visit: Visit, board: str) -> dict[str, dict[float, float]]:
    """Return the values by step of the first scalar series of a TensorBoard run. Return {} if the visitor may
    not read them: clients may write the name of any TensorBoard."""
    curves: dict[str, dict[float, float]] = {}
    try:
        path = f"/v1/{board}/timeSeries?{urlencode({'pageSize': _MAX_CURVES})}"
        answer = await visit.backend.call(visit.principal, "GET", path)
        for series in answer.get("tensorboardTimeSeries", ()):
            if series["valueType"] != "SCALAR":
                continue
            path = f"/v1/{series['name']}:read?{urlencode({'maxDataPoints': _MAX_POINTS})}"
            read = await visit.backend.call(visit.principal, "GET", path)
            curves[series["displayName"]] = {
                int(point.get("step", 0)): point["scalar"].get("value", 0)
                for point in read["timeSeriesData"].get("values", ())
                if isinstance(point["scalar"].get("value", 0), int | float)
            }
    except CallRejected:
        return {}
    return curves


_MAX_FILES: Final = 100
"""Maximum files in the list."""
_MAX_PIPELINES: Final = 200
"""Number of newest pipelines in which users of the dataset are searched."""


async def datasets(visit: Visit) -> View:
    """`/datasets`: the datasets of the project."""
    return await vertex_table(
        visit,
        "datasets",
        ("Dataset", "Kind", "Items", "Created"),
        "No datasets yet. aiplatform.TabularDataset.create creates one.",
        lambda dataset: (kind_of(dataset), dataset.get("dataItemCount", "")),
    )


async def dataset(visit: Visit) -> View:
    """`/datasets/D`: the files of a dataset, and the pipelines that used it."""
    path = vertex_path(visit, f"datasets/{visit.encode_variable('dataset')}")
    answer = await visit.backend.call(visit.principal, "GET", path)
    dataset_id = id_of(answer["name"])
    uris = _uris(answer)
    pipelines = await vertex_page(visit, "trainingPipelines", size=_MAX_PIPELINES)
    return View(
        answer.get("displayName") or dataset_id,
        "dataset.html",
        {
            "dataset": answer,
            "id": dataset_id,
            "kind": kind_of(answer),
            "files": uris[:_MAX_FILES],
            "more": len(uris) - _MAX_FILES,
            "pipelines": [
                (pipeline, id_of(pipeline.get("modelToUpload", {}).get("name", "")))
                for pipeline in pipelines.get("trainingPipelines", ())
                if pipeline.get("inputDataConfig", {}).get("datasetId") == dataset_id
            ],
        },
        place="datasets",
    )


def kind_of(public: Any) -> str:
    """Return the kind of a dataset, such as "tabular" or "time series", from its public JSON."""
    name = str(public.get("metadataSchemaUri", "")).rpartition("/")[2]
    return name.partition("_1")[0].replace("_", " ")


def _uris(public: Mapping[str, Any]) -> list[str]:
    """Return the gs:// URIs of a dataset's files, from its public JSON."""
    source: Any = public.get("metadata")
    for name in ("inputConfig", "gcsSource", "uri"):
        source = cast(Mapping[str, Any], source).get(name) if isinstance(source, Mapping) else None
    if isinstance(source, str):
        return [source]
    return [str(uri) for uri in cast(Sequence[object], source or ())]
