"""The page that submits a custom job by a form. The API's own validator checks it as it is typed, and the
page shows the same job for other clients."""

from collections.abc import Mapping
from typing import Final

from trainshed.console.pages.drafts import Draft, draft_of, form_of
from trainshed.console.pages.job import create_job, describe, explain_job, place_of
from trainshed.console.visits import View, Visit
from trainshed.core.copies import copy_of
from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.httpd.messages import Response
from trainshed.wire.status import Refused, StatusCode
from trainshed.wire.trainshed_v1.capacity import Explanation
from trainshed.wire.trainshed_v1.jobs import JobDescription

_IMAGES: Final = "us-docker.pkg.dev/vertex-ai/training/"
IMAGES: Final = (
    f"{_IMAGES}scikit-learn-cpu.1-6:latest",
    f"{_IMAGES}pytorch-cpu.2-4.py310:latest",
    f"{_IMAGES}tf-cpu.2-17.py310:latest",
    f"{_IMAGES}xgboost-cpu.2-1:latest",
)
MACHINES: Final = (
    "n1-standard-4",
    "n1-standard-8",
    "n1-standard-16",
    "n1-highmem-8",
    "e2-standard-4",
)
_SCRIPT: Final = """import time

for epoch in range(1, 11):
    print(f"Epoch {epoch}/10 loss {1 / epoch:.3f}", flush=True)
    time.sleep(1)
"""
_OF_FIELDS: Final = (
    ("display_name", "name"),
    ("package_uris", "packages"),
    ("python_module", "module"),
    ("labels", "labels"),
    ("machine_type", "machine"),
    ("accelerator_count", "accelerators"),
    ("accelerator_type", "accelerator"),
    ("machine_spec", "machine"),
    ("replica_count", "replicas"),
    ("image_uri", "image"),
    ("env", "env"),
    ("command", "program"),
    ("args", "args"),
    ("output", "output"),
    ("timeout", "timeout"),
    ("location", "region"),
    ("project", "project"),
)
"""(part of a field's path in the API, the form's field for it): the first part that occurs decides."""


async def page(visit: Visit) -> View:
    """`/submit[?from=JOB]`: a form with an example, or filled in from an existing job. Raises Refused."""
    form = default_form(visit)
    if visit.query("from"):
        form |= _as_it_was(visit, await describe(visit, visit.query("from")))
    return await _shown(visit, form)


def _as_it_was(visit: Visit, job: JobDescription) -> dict[str, str]:
    """Return the form of an existing job. Raises Refused if the form cannot express a job of its kind."""
    form = form_of(copy_of(Api(job.api), job.resource or {}, visit.now, job.uid))
    if not form:
        raise Refused(
            StatusCode.FAILED_PRECONDITION,
            f"The form is for custom jobs of Vertex AI, and {job.job_id} is none. Clone on its page opens "
            f"its JSON to be edited (/submit/json?from={job.uid}).",
        )
    place = job.name.split("/")
    return {**form, "project": place[1], "region": place[3]}


async def check(visit: Visit) -> View:
    """`POST /submit/check`: what is wrong with the form; else what would run where. In both cases the
    commands by which other clients submit the job."""
    return await _shown(visit, visit.form, "_submit_result.html")


async def create(visit: Visit) -> Response | View:
    """`POST /submit`: create the job, or show beside the fields what is wrong."""
    draft = draft_of(visit.form)
    if draft.faults:
        return await _shown(visit, visit.form, status=400)
    try:
        return await create_job(visit, draft.body, *place_of(visit, visit.form))
    except Refused as refused:
        return await _shown(visit, visit.form, status=400, refused=refused)


async def _shown(
    visit: Visit,
    form: Mapping[str, str],
    template: str = "submit.html",
    *,
    status: int = 200,
    refused: Refused | None = None,
) -> View:
    """Return the page with the form, and its faults or the plan of the job. `refused`: the refusal of the
    create method, which checks more than the explanation does."""
    draft = draft_of(form)
    project, region = place_of(visit, form)
    plan: Explanation | None = None
    if not draft.faults:
        try:
            plan = await explain_job(visit, draft.body, project, region)
        except Refused as told:
            refused = told
    if refused is not None:
        _note(draft, refused)
        plan = None
    others = [
        (name, snippet(kind, Api.VERTEX, project, region, draft.body))
        for name, kind in (
            ("gcloud", SnippetForm.GCLOUD),
            ("Python", SnippetForm.PYTHON),
            ("JSON", SnippetForm.JSON),
        )
    ]
    return View(
        "New job",
        template,
        {
            "form": {**default_form(visit), **form},
            "faults": draft.faults,
            "plan": plan,
            "others": others,
            "images": IMAGES,
            "machines": MACHINES,
        },
        place="submit",
        status=status,
    )


def _note(draft: Draft, refused: Refused) -> None:
    """Add each violation of a refusal as a fault of the form's field that it is about."""
    if not refused.violations:
        draft.fault("", str(refused))
    for violation in refused.violations:
        name = next((mine for part, mine in _OF_FIELDS if part in _snake(violation.field)), "")
        text = violation.description
        draft.fault(name, text if name else f"{violation.field}: {text}".lstrip(": "))


def _snake(path: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in path)


def default_form(visit: Visit) -> dict[str, str]:
    """Return the form's fields before anything is typed."""
    return {
        "name": "first",
        "kind": "script",
        "script": _SCRIPT,
        "command": "",
        "packages": "",
        "module": "",
        "args": "",
        "image": IMAGES[0],
        "machine": MACHINES[0],
        "replicas": "1",
        "accelerator": "",
        "accelerators": "1",
        "env": "",
        "labels": "",
        "output": "",
        "timeout": "",
        "project": visit.principal.project or visit.facts.project,
        "region": visit.facts.region,
        "base": "",
        "rest": "",
    }
