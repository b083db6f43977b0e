"""The pages of studies of the study API (Vizier): the list, and the page of one study with its trials."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from trainshed.httpd.messages import Response, sized_response
from trainshed.wire.trainshed_v1.jobs import Outlook, Trial
from trainshed.wire.trainshed_v1.record import encode
from trainshed_console.pages.collections import vertex_page, vertex_path, vertex_table
from trainshed_console.pages.searches import Metric, Search, parts
from trainshed_console.rendering import id_of, number_text
from trainshed_console.views import View, Visit, of_job

_PAGE_SIZE: Final = 1000
"""Number of trials that are read at a time."""
_MAX_PAGES: Final = 10
"""Maximum number of reads of trials."""
_MAX_CURVE_POINTS: Final = 60
"""Maximum points of a trial's curve, excluding the last one."""


async def studies(visit: Visit) -> View:
    """`/studies`: the studies of the project."""
    return await vertex_table(
        visit,
        "studies",
        ("Study", "State", "Searches", "Created"),
        "No studies yet. The page of a tuning job shows its trials.",
        lambda study: (study.get("state", ""), _objectives_text(study)),
    )


async def study(visit: Visit) -> View:
    """`/studies/S`: charts of the objective, its parameters and two metrics, and the table of trials."""
    below = f"studies/{visit.encode_variable('study')}"
    path = vertex_path(visit, below)
    listed = await visit.backend.call(visit.principal, "GET", path)
    trials = await _trials(visit, f"{below}/trials")
    answer = await visit.backend.call(visit.principal, "POST", f"{path}/trials:listOptimalTrials", b"{}")
    best = frozenset(int(trial["id"]) for trial in answer.get("optimalTrials", ()))
    spec = listed["studySpec"]
    search = search_of(spec, trials, best, visit.query("trial"), visit.query("sort"))
    ends = [trial["state"] for trial in trials]
    counts = {state: ends.count(state) for state in dict.fromkeys(ends)}
    return View(
        listed.get("displayName", ""),
        "study.html",
        {
            "study": listed,
            "id": id_of(listed["name"]),
            "aims": _objectives_text(listed),
            "counts": counts,
            "parameters": [(parameter["parameterId"], _range(parameter)) for parameter in spec["parameters"]],
            "algorithm": spec.get("algorithm", ""),
        },
        parts=parts(search),
        place="studies",
    )


async def outlook(visit: Visit) -> Response:
    """`/jobs/J/trials/outlook?parameter=P` and `/studies/S/outlook?parameter=P`: predictions of the study's
    model, as JSON for the script."""
    project, region = visit.place
    place = f"projects/{project}/locations/{region}"
    target = visit.variables.get("job") or f"{place}/studies/{visit.variables['study']}"
    chosen = visit.request.values.get("parameter", ())
    answer = await visit.get(Outlook, of_job(target, "/outlook"), parameter=chosen)
    return sized_response(encode(answer), b"application/json", more=[(b"cache-control", b"no-store")])


async def _trials(visit: Visit, below: str) -> list[Any]:
    collected: list[Any] = []
    token = ""
    for _ in range(_MAX_PAGES):
        answer = await vertex_page(visit, below, token=token, size=_PAGE_SIZE)
        collected += answer.get("trials", ())
        token = answer.get("nextPageToken", "")
        if not token:
            break
    return sorted(collected, key=lambda trial: int(trial["id"]))


def search_of(
    spec: Mapping[str, Any], trials: Iterable[Any], best: frozenset[int], chosen: str, order: str
) -> Search:
    """Return the search that the public JSON of a study describes.

    `best`: numbers of the optimal trials. `chosen`: number of the trial whose curve is shown, or "". `order`:
    see `Search`.
    """
    metrics = tuple(
        Metric(metric["metricId"], metric.get("goal") != "MINIMIZE") for metric in spec["metrics"]
    )
    views = [trial_of(trial, metrics[0].name) for trial in trials]
    return Search(
        views, metrics, best, next((trial for trial in views if str(trial.number) == chosen), None), order
    )


def trial_of(public: Mapping[str, Any], objective: str) -> Trial:
    """Convert a trial of the public API to a trial record of a tuning job."""
    final = _metric_values(public.get("finalMeasurement", {}))
    curve = [
        (int(measurement.get("stepCount", 0)), value)
        for measurement in public.get("measurements", ())
        if (value := _metric_values(measurement).get(objective)) is not None
    ]
    stride = max(1, -(-len(curve) // _MAX_CURVE_POINTS))
    return Trial(
        number=int(public["id"]),
        state=public.get("state", ""),
        parameters={
            parameter["parameterId"]: parameter.get("value") for parameter in public.get("parameters", ())
        },
        value=final.get(objective),
        metrics=final,
        start_time=public.get("startTime", ""),
        end_time=public.get("endTime", ""),
        reason=public.get("infeasibleReason", ""),
        job=public.get("customJob", ""),
        curve=(*curve[:-1:stride], *curve[-1:]),
    )


def _metric_values(measurement: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a measurement by metric. The public JSON omits values of 0."""
    return {metric["metricId"]: float(metric.get("value", 0)) for metric in measurement.get("metrics", ())}


def _objectives_text(public: Any) -> str:
    return ", ".join(
        f"{metric.get('goal', 'MAXIMIZE').lower()} {metric.get('metricId', '')}"
        for metric in public.get("studySpec", {}).get("metrics", ())
    )


def _range(parameter: Mapping[str, Any]) -> str:
    """Return the range of a parameter, or its values, as text."""
    for kind in ("doubleValueSpec", "integerValueSpec"):
        if kind in parameter:
            low, high = (number_text(float(parameter[kind].get(end, 0))) for end in ("minValue", "maxValue"))
            scale = parameter.get("scaleType", "").removeprefix("UNIT_").removesuffix("_SCALE")
            by = f", {scale.lower().replace('_', ' ')}" if scale not in ("", "LINEAR") else ""
            return f"{low} to {high}{by}"
    for kind in ("discreteValueSpec", "categoricalValueSpec"):
        if kind in parameter:
            return ", ".join(number_text(value) for value in parameter[kind].get("values", ()))
    return ""
