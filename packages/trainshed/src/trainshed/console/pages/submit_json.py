"""The page that submits a job of any kind as the JSON that its API's create method takes. The API's own
validator checks it as it is typed."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from trainshed.console.pages.drafts import draft_of
from trainshed.console.pages.job import create_job, describe, explain_job, place_of
from trainshed.console.pages.submit import default_form
from trainshed.console.visits import View, Visit
from trainshed.core.copies import api_of, copy_of, is_pipeline
from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.httpd.messages import Response
from trainshed.wire.status import Refused
from trainshed.wire.trainshed_v1.capacity import Explanation

KINDS: Final[Mapping[str, str]] = {
    "custom": "Custom job",
    "tuning": "Tuning job",
    "pipeline": "Training pipeline",
    "ml": "AI Platform job",
}
"""Kinds of job that the page has an example of, with their names."""
_TASK: Final = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
_TRIAL: Final = """import os, sys

rate = float(sys.argv[-1].rpartition("=")[2])
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "a") as file:
    file.write('{"accuracy": "%f", "global_step": "1"}\\n' % (1 - (rate - 0.3) ** 2))
"""


async def page(visit: Visit) -> View:
    """`/submit/json[?from=JOB][?kind=KIND]`: a copy of an existing job, or an example of a kind."""
    project, region = place_of(visit)
    if visit.query("from"):
        job = await describe(visit, visit.query("from"))
        api, place = Api(job.api), job.name.split("/")
        body = copy_of(api, job.resource or {}, visit.now, job.uid)
        project, region = place[1], place[3] if api is Api.VERTEX else region
    else:
        body = _example(visit, visit.query("kind"))
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return await _shown(visit, {"job": text, "project": project, "region": region})


async def check(visit: Visit) -> View:
    """`POST /submit/json/check`: what is wrong with the job; else what would run where, and the commands by
    which other clients submit it."""
    return await _shown(visit, visit.form, "_submit_json_result.html")


async def create(visit: Visit) -> Response | View:
    """`POST /submit/json`: create the job, or show what is wrong."""
    body, _ = _read(visit.form.get("job", ""))
    if body is None:
        return await _shown(visit, visit.form, status=400)
    try:
        return await create_job(visit, body, *place_of(visit, visit.form))
    except Refused as refused:
        return await _shown(visit, visit.form, status=400, refused=refused)


def _read(text: str) -> tuple[dict[str, Any] | None, str]:
    """Return (job, ""), or (None, what is wrong)."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as wrong:
        return None, f"Line {wrong.lineno}, column {wrong.colno} is no JSON: {wrong.msg}."
    except (ValueError, RecursionError) as wrong:
        return None, f"It cannot be read as JSON: {wrong}."
    if not isinstance(value, dict):
        return None, "A job is an object: it begins with { and ends with }."
    return cast(dict[str, Any], value), ""


async def _shown(
    visit: Visit,
    form: Mapping[str, str],
    template: str = "submit_json.html",
    *,
    status: int = 200,
    refused: Refused | None = None,
) -> View:
    """Return the page with the form, and its faults or the plan of the job. `refused`: the refusal of the
    create method, which checks more than the explanation does."""
    body, wrong = _read(form.get("job", ""))
    faults = {"": [wrong]} if wrong else {}
    project, region = place_of(visit, form)
    plan: Explanation | None = None
    if body is not None:
        try:
            plan = await explain_job(visit, body, project, region)
        except Refused as told:
            refused = told
    if refused is not None:
        texts = [f"{v.field}: {v.description}".lstrip(": ") for v in refused.violations]
        faults, plan = {"": texts or [str(refused)]}, None
    return View(
        "New job",
        template,
        {
            "form": {"job": form.get("job", ""), "project": project, "region": region},
            "faults": faults,
            "plan": plan,
            "others": _others(body, project, region) if body and plan else (),
            "kinds": KINDS,
        },
        place="submit",
        status=status,
    )


def _others(body: dict[str, Any], project: str, region: str) -> list[tuple[str, str]]:
    """Return (name, text) of the job for other clients; [] if it cannot be written for them."""
    if is_pipeline(body) or not _is_canonical(body):
        return []
    forms = (("gcloud", SnippetForm.GCLOUD), ("Python", SnippetForm.PYTHON))
    return [(name, snippet(form, api_of(body), project, region, body)) for name, form in forms]


def _is_canonical(value: Any) -> bool:
    """Whether all names of a job's JSON are those that the service writes (`jobSpec`, not `job_spec`), which
    are the only ones that snippets know."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return all(
            name == "labels" or ("_" not in name and _is_canonical(inner))
            for name, inner in fields.items()
        )
    return not isinstance(value, list) or all(map(_is_canonical, cast(list[Any], value)))


def _example(visit: Visit, kind: str) -> dict[str, Any]:
    """Return a job of this kind that would run here; a custom job if the kind is unknown."""
    form = default_form(visit)
    body = draft_of({**form, "script": _TRIAL} if kind == "tuning" else form).body
    name, spec = body["displayName"], body["jobSpec"]
    match kind:
        case "tuning":
            metrics = [{"metricId": "accuracy", "goal": "MAXIMIZE"}]
            bounds = {"minValue": 0.01, "maxValue": 1}
            parameters = [{"parameterId": "rate", "doubleValueSpec": bounds}]
            return {
                "displayName": name,
                "maxTrialCount": 4,
                "parallelTrialCount": 2,
                "studySpec": {"metrics": metrics, "parameters": parameters},
                "trialJobSpec": spec,
            }
        case "pipeline":
            return {
                "displayName": name,
                "trainingTaskDefinition": _TASK,
                "trainingTaskInputs": spec,
            }
        case "ml":
            container = spec["workerPoolSpecs"][0]["containerSpec"]
            master = {
                "imageUri": container["imageUri"],
                "containerCommand": container["command"],
            }
            training = {
                "scaleTier": "CUSTOM",
                "masterType": form["machine"],
                "masterConfig": master,
                "region": form["region"],
            }
            return {"jobId": f"first_{visit.now // 10**6}", "trainingInput": training}
        case _:
            return body
