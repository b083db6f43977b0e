"""Authorization matrix of the console: each page, event stream and action, with each role, for jobs and
projects of the user and of other users. The permission table must decide every case."""

import json
import re
from collections.abc import AsyncGenerator
from itertools import product
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.console.browser import ADDRESS, Browser, ConsoleService
from tests.console.test_pages import CUSTOM_JOBS, JOB
from tests.console.test_submit import FORM
from tests.contract.api.test_matrix import ANA, MISSING
from tests.people import add_user
from trainshed.access.permissions import ROLES
from trainshed.access.policy import Grant
from trainshed.wire.status import CallRejected
from trainshed_console import application, live
from trainshed_console.pages import logs
from trainshed_console.routes import ACTIONS, PAGES, STREAMS
from trainshed_console.views import Page, Visit

OWN, FOREIGN = "p1", "p2"
DRAWN = ("roles/aiplatform.user", "roles/editor", "roles/owner")
NEEDS = {
    "trainshed.jobs.list": "GET / GET /jobs GET /overview GET /logs",
    "trainshed.jobs.get": "GET /jobs/{job} GET /jobs/{job}/usage GET /jobs/{job}/drills GET /jobs/{job}/spec "
    "GET /jobs/{job}/trials GET /jobs/{job}/outputs GET /jobs/{job}/trials/outlook POST /jobs/{job}/retry "
    "GET /compare GET /compare/table.csv",
    "trainshed.jobs.readLogs": "GET /jobs/{job}/logs GET /jobs/{job}/lines GET /jobs/{job}/lines/new "
    "GET /jobs/{job}/log.txt",
    "trainshed.jobs.cancel": "POST /jobs/{job}/cancel",
    "trainshed.jobs.drill": "POST /jobs/{job}/drills",
    "trainshed.jobs.shell": "GET /jobs/{job}/ports/{port}",
    "aiplatform.customJobs.create": "POST /submit POST /submit/json",
    "trainshed.quotas.get": "GET /queue",
    "trainshed.quotas.set": "POST /quotas",
    "aiplatform.contexts.list": "GET /experiments",
    "aiplatform.contexts.get": "GET /experiments/{experiment}",
    "aiplatform.models.list": "GET /models GET /models/{model}",
    "aiplatform.datasets.list": "GET /datasets",
    "aiplatform.datasets.get": "GET /datasets/{dataset}",
    "aiplatform.studies.list": "GET /studies",
    "aiplatform.studies.get": "GET /studies/{study} GET /studies/{study}/outlook",
    "aiplatform.schedules.list": "GET /schedules",
    "trainshed.audit.list": "GET /team/audit",
    "resourcemanager.projects.setIamPolicy": "POST /team/roles POST /team/roles/remove",
    # No project role grants access to service-wide resources or to missing projects.
    "": "GET /nodes POST /nodes/{node}/drain POST /nodes/{node}/undrain POST /team/tokens "
    "GET /jobs/{project}/named/{job}",
    # Pages without foreign data, pages with a check for each job, and pages that another process authorizes.
    "*": "GET /submit GET /submit/json POST /submit/check POST /submit/json/check GET /team GET /settings "
    "POST /team/tokens/{token}/delete POST /marked/{does} POST /schedules/{schedule}/{does} "
    "GET /buckets GET /buckets/{bucket} GET /buckets/{bucket}/download",
}
ROWS = {
    (verb, path): permission
    for permission, routes in NEEDS.items()
    for verb, path in re.findall(r"(\S+) (\S+)", routes)
}


def test_every_console_path_is_in_the_permission_matrix() -> None:
    assert ROWS.keys() == {*PAGES, *ACTIONS, *STREAMS}


async def test_permission_table_decides_every_console_request(
    service: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For some roles, the test also renders the pages, which takes most of its time."""
    render = application.render

    def render_if_drawn(template: str, values: dict[str, Any]) -> str:
        return render(template, values) if is_drawn else ""

    async def once(page: Page, visit: Visit) -> AsyncGenerator[bytes]:
        """Return the event stream of a page, which ends after its first update."""
        try:
            await page(visit)
        except CallRejected as refused:
            yield f"{refused.code.http} {refused}".encode()

    monkeypatch.setattr(application, "render", render_if_drawn)
    monkeypatch.setattr(live, "stream", once)
    monkeypatch.setattr(logs, "KEEPALIVE_INTERVAL", 0.0)
    token = add_user(service.tokens, ANA)
    ana = Browser(service)
    await ana.sign_in(token=token)
    jobs: dict[str, list[str]] = {}
    for project in (OWN, FOREIGN):
        for by in ("", "", token, token):
            path = CUSTOM_JOBS.replace("p1", project)
            name = (await service.result("POST", path, JOB, token=by))["name"]
            jobs.setdefault(project, [MISSING]).append(name.rpartition("/")[2])
    headers = [("accept", "text/html,application/json"), ("origin", ADDRESS), *ana.credentials]
    wrong: list[object] = []
    for role, project in ((role, project) for role in ROLES for project in (OWN, FOREIGN)):
        book = service.tokens.book.with_grants("", ()).with_grants(FOREIGN, ())
        service.tokens.replace(book.with_grants(OWN, {Grant(OWN, role, f"user:{ANA}")}))
        is_drawn = role in DRAWN
        form = urlencode({**FORM, "project": project, "job": json.dumps(JOB)}).encode()
        for (verb, path), permission in ROWS.items():
            expected = permission == "*" or (permission in ROLES[role] and project == OWN)
            answers: set[tuple[bool, str, str]] = set()
            has_job = "job}" in path or "compare" in path
            ids = jobs[project][:-1] if has_job else [MISSING]
            ways = ("", "/events") if (verb, path) in PAGES else ("",)
            for job, way in product(ids, ways):
                url = way + re.sub(r"{\w+}", MISSING, path.replace("{job}", job))
                url += f"?project={project}&job={job}&job={jobs[project][-1]}&search=x"
                sent = form if verb == "POST" else None
                answer = await service.call(verb, url, sent, token=None, headers=headers)
                assert answer.status < 500 or "buckets" in path, (path, answer.body)
                body = answer.body.decode()
                is_let = answer.status != 403 and not (way and body.startswith("403"))
                if not expected or job != MISSING or len(ids) == 1:
                    refused = "" if is_let else body.replace(job, MISSING)
                    answers.add((is_let, way, refused))
            if len(answers) > len(ways) or {is_let for is_let, *_ in answers} != {expected}:
                wrong.append((role, project, verb, path, answers))
    assert wrong == []
