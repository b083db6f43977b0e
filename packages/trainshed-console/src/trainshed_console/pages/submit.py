"""The pages that submit a custom job with a form, or any job as JSON. While the user types, the API's
validator checks the job."""

import json
import shlex
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct, field

from trainshed.core.catalog.images import image_for_name, short_names
from trainshed.core.copies import Run, Sweep, api_of, copy_of, custom_job, is_pipeline, tuning_job
from trainshed.core.names import Api
from trainshed.core.snippets import SnippetForm, snippet
from trainshed.httpd.messages import Response
from trainshed.wire.json import encode_text
from trainshed.wire.status import CallRejected
from trainshed.wire.trainshed_v1.capacity import Explanation
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed_console.pages.job import create_job, describe, explain_job
from trainshed_console.views import View, Visit, redirect

_FORM: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


class Draft(Struct):
    """An unfinished job: its JSON, or None if the JSON is malformed, and its faults."""

    body: dict[str, Any] | None
    #: Error texts by field of the form. The key "" contains errors of the whole form.
    faults: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def fault(self, name: str, text: str) -> None:
        self.faults.setdefault(name, []).append(text)


async def page(visit: Visit) -> View:
    """`/submit`: a form with an example."""
    return await _form(visit, default_form(visit))


async def check(visit: Visit) -> View:
    """`POST /submit/check`: the faults of the form, or the plan of the job (where and when it would run) and
    commands for other clients."""
    return await _form(visit, visit.form, "_submit_result.html")


async def create(visit: Visit) -> Response | View:
    """`POST /submit`: create the job, or show the faults next to their fields."""
    draft = draft_of(visit.form)
    return await _create(visit, None if draft.faults else draft.body, _form)


async def _create(
    visit: Visit, body: dict[str, Any] | None, form: Callable[..., Awaitable[View]]
) -> Response | View:
    if body is None:
        return await form(visit, visit.form, status=400)
    try:
        return redirect(await create_job(visit, body, *visit.place))
    except CallRejected as refused:
        return await form(visit, visit.form, status=refused.code.http, refused=refused)


async def _form(
    visit: Visit,
    form: Mapping[str, str],
    template: str = "submit.html",
    *,
    status: int = 200,
    refused: CallRejected | None = None,
) -> View:
    """Return the page with the form. `refused`: the error of the create method, which checks more than the
    preflight."""
    values = {
        "form": {**default_form(visit), **form},
        "frameworks": short_names(),
        "machines": _FORM["machines"],
        "accelerators": (await visit.get(Status, "status")).accelerators,
    }
    return await _render(visit, draft_of(form), template, values, status=status, refused=refused)


async def json_page(visit: Visit) -> View:
    """`/submit/json[?from=JOB]`: a copy of a job, or the job of the form, as JSON."""
    project, region = visit.place
    if visit.query("from"):
        job = await describe(visit, visit.query("from"))
        api, place = Api(job.api), job.name.split("/")
        body = copy_of(api, job.resource or {}, visit.now, job.uid)
        project, region = place[1], place[3] if api is Api.VERTEX else region
    else:
        body = draft_of(visit.form or default_form(visit)).body
    text = json.dumps(body, indent=2, ensure_ascii=False)
    return await _json_form(visit, {"job": text, "project": project, "region": region})


async def check_json(visit: Visit) -> View:
    """`POST /submit/json/check`: the faults of the job, or its plan (where and when it would run) and
    commands for other clients."""
    return await _json_form(visit, visit.form, "_submit_plan.html")


async def create_of_json(visit: Visit) -> Response | View:
    """`POST /submit/json`: create the job or show its faults. If the request is a form, show its job as JSON
    instead."""
    if "job" not in visit.form:
        faults = draft_of(visit.form).faults
        return await (_form(visit, visit.form, status=400) if faults else json_page(visit))
    return await _create(visit, _read(visit.form.get("job", "")).body, _json_form)


async def _json_form(
    visit: Visit,
    form: Mapping[str, str],
    template: str = "submit_json.html",
    *,
    status: int = 200,
    refused: CallRejected | None = None,
) -> View:
    project, region = visit.place
    values = {"form": {"job": "", "project": project, "region": region, **form}}
    draft = _read(form.get("job", ""))
    return await _render(visit, draft, template, values, status=status, refused=refused)


async def _render(
    visit: Visit,
    draft: Draft,
    template: str,
    values: Mapping[str, Any],
    *,
    status: int,
    refused: CallRejected | None,
) -> View:
    """Return the page with the faults of the job, or with its plan and commands for other clients."""
    own, form = visit.place, values["form"]
    project, region = form["project"] or own[0], form["region"] or own[1]
    plan: Explanation | None = None
    if draft.body is not None and not draft.faults:
        try:
            plan = await explain_job(visit, draft.body, project, region)
        except CallRejected as refusal:
            refused = refusal
    if refused is not None:
        _add_violations(draft, refused, has_fields="machines" in values)
        plan = None
    snippets: list[tuple[str, str]] = []  # (name, text) of each command for other clients.
    if draft.body and plan and not is_pipeline(draft.body) and _is_canonical(draft.body):
        api = api_of(draft.body)
        forms = (("gcloud", SnippetForm.GCLOUD), ("Python", SnippetForm.PYTHON), ("JSON", SnippetForm.JSON))
        snippets = [(n, snippet(form, api, project, region, draft.body)) for n, form in forms]
    shown = {**values, "faults": draft.faults, "plan": plan, "others": snippets}
    return View("New job", template, shown, place="submit", status=status)


def _add_violations(draft: Draft, refused: CallRejected, *, has_fields: bool) -> None:
    """Add each violation in an error as a fault of its form field."""
    if not refused.violations:
        draft.fault("", str(refused))
    for violation in refused.violations:
        path = "".join(f"_{c.lower()}" if c.isupper() else c for c in violation.field)
        name = next((name for part, name in _FORM["fields"] if has_fields and part in path), "")
        text = violation.description
        draft.fault(name, text if name else f"{violation.field}: {text}".lstrip(": "))


def _read(text: str) -> Draft:
    """Parse the JSON text of a job."""
    draft = Draft(None)
    try:
        value = json.loads(text)
        encode_text(value)  # Raises ValueError for half of a surrogate pair.
    except json.JSONDecodeError as wrong:
        draft.fault("", f"Line {wrong.lineno}, column {wrong.colno} is not valid JSON: {wrong.msg}.")
        return draft
    except (ValueError, RecursionError) as wrong:
        draft.fault("", f"The text is not valid JSON: {wrong}.")
        return draft
    if isinstance(value, dict):
        return Draft(cast(dict[str, Any], value))
    draft.fault("", "A job is a JSON object. It starts with { and ends with }.")
    return draft


def draft_of(form: Mapping[str, str]) -> Draft:
    """Return the custom job or tuning job that a form describes, with the form's faults."""
    draft = Draft({})

    def text(name: str) -> str:
        return form.get(name, "").replace("\r\n", "\n").strip()

    image = text("image")
    if (framework := text("framework")) in short_names():
        image = image_for_name(framework, gpu=bool(text("accelerator"))) or ""
    machine: dict[str, Any] = {"machineType": text("machine")}
    if text("accelerator"):
        machine["acceleratorType"] = text("accelerator")
        machine["acceleratorCount"] = _count(draft, "accelerators", text("accelerators"))
    is_package, timeout = text("kind") == "package", text("timeout")
    run = Run(
        name=text("name"),
        image=image,
        machine=machine,
        command=() if is_package else _command(draft, form),
        packages=text("packages").split() if is_package else None,
        module=text("module"),
        args=_words(draft, "args", text("args")),
        env=_pairs(draft, "env", text("env")),
        replicas=_count(draft, "replicas", text("replicas")),
        labels=_pairs(draft, "labels", text("labels")),
        output=text("output"),
        timeout=timeout and f"{timeout.removesuffix('s')}s",
    )
    draft.body = body = custom_job(run)
    if text("runs") == "sweep":
        trials, parallel = (_count(draft, name, text(name)) for name in ("trials", "parallel"))
        is_maximized = text("goal") == "maximize"
        sweep = Sweep(text("tune").split(), text("metric"), is_maximized, trials, parallel)
        try:
            draft.body = tuning_job(body, sweep)
        except ValueError as wrong:
            draft.fault("tune", str(wrong))
    return draft


def _command(draft: Draft, form: Mapping[str, str]) -> list[str]:
    """Return the command for a script, for a file in a bucket, or from the command field."""
    match form.get("kind"):
        case "command":
            return _words(draft, "program", form.get("command", ""))
        case "file":
            bucket, slashes, name = form.get("file", "").strip().partition("gs://")
            if bucket or not slashes:
                draft.fault("program", "Enter a file in a bucket, such as gs://BUCKET/task.py.")
            return ["python3", "-u", f"/gcs/{name}"]
        case _:
            if not form.get("script", "").strip():
                draft.fault("program", "Enter a program.")
            return ["python3", "-u", "-c", form.get("script", "").replace("\r\n", "\n")]


def _count(draft: Draft, name: str, text: str) -> int:
    """Parse a number that is at least 1. Return 1 for "". For other texts, add a fault and return 1."""
    if text in ("", "1"):
        return 1
    if not (text.isascii() and text.isdecimal()) or len(text) > 9 or int(text) < 1:
        draft.fault(name, f"{text!r} is not a whole number of at least 1.")
        return 1
    return int(text)


def _words(draft: Draft, name: str, text: str) -> list[str]:
    """Split a text into words as a shell does. If that fails, add a fault and return []."""
    try:
        return shlex.split(text)
    except ValueError as wrong:
        draft.fault(name, f"The text cannot be split into words: {wrong}.")
        return []


def _pairs(draft: Draft, name: str, text: str) -> dict[str, str]:
    """Parse lines `NAME=VALUE`. Add a fault for each line of another form."""
    names: dict[str, str] = {}
    for line in filter(None, (part.strip() for part in text.splitlines())):
        key, equals, value = line.partition("=")
        if equals:
            names[key.strip()] = value.strip()
        else:
            draft.fault(name, f"{line!r} has no =. Write one NAME=VALUE per line.")
    return names


def _is_canonical(value: Any) -> bool:
    """Return whether all names in a job's JSON have the form that the service uses (`jobSpec`, not
    `job_spec`). Snippets support no other form."""
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        return all(
            name == "labels" or ("_" not in name and _is_canonical(inner)) for name, inner in fields.items()
        )
    return not isinstance(value, list) or all(map(_is_canonical, cast(list[Any], value)))


def default_form(visit: Visit) -> dict[str, str]:
    place = {"project": visit.place[0], "region": visit.facts.region}
    return {**_FORM["defaults"], "machine": _FORM["machines"][0], **place}
