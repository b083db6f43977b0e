"""The permission matrix: every method × every role × own and foreign project × own and foreign job, over
both transports. Calls that the permission table allows succeed, and all others are rejected."""

import re
from collections.abc import AsyncGenerator, Iterator
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.api_service import ApiService
from tests.contract.api.fake_advisor import service_over
from tests.contract.api.grpc_service import GrpcApiService
from tests.people import add_user
from tests.unit.specs_requests import custom_job, ml_job
from tests.unit.test_access_permissions import is_allowed
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.access import authentication_limits
from trainshed.access.job_tokens import JobClaims
from trainshed.access.permissions import PERMISSIONS, ROLES
from trainshed.access.policy import Grant, Policy
from trainshed.access.principals import Principal
from trainshed.access.tokens import program
from trainshed.api import metrics, projects, service_accounts
from trainshed.api.trainshed_v1.transport import METHODS, PREFIX
from trainshed.core.names import project_number
from trainshed.wire import pool, routes

ANA = "ana@corp.example"
OWN, FOREIGN = "vision", "speech"
PROGRAM = "(a program)"
MISSING = "4711"
BEARER = 'Bearer realm="trainshed"'
PLACE = "/locations/us-central1"
SHADOWED = "google.cloud.resourcemanager.v3.Projects.TestIamPermissions"
"""Another method has the same address."""
TAIL = "google.logging.v2.LoggingServiceV2.TailLogEntries"
"""Available only over gRPC."""
JOBS = {
    f"{PLACE}/customJobs": custom_job(),
    f"{PLACE}/hyperparameterTuningJobs": tuning_job(),
    f"{PLACE}/trainingPipelines": pipeline(trainingTaskInputs=inputs()),
    "/jobs": ml_job(),
}


@pytest.fixture(params=["REST", "gRPC"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[ApiService]:
    async with service_over(request.param, tmp_path) as opened:
        yield opened


def served_methods(service: ApiService) -> Iterator[tuple[str, str, str]]:
    """Return (method, verb, path) of all served methods; over gRPC once per method."""
    by_grpc = isinstance(service, GrpcApiService)
    paths: dict[object, tuple[str, str, str]] = {}
    for route in (route for api in pool.APIS for route in routes.routes(api)):
        method = route.rpc.full_name
        path = "/".join(("", *route.template.segments)).replace("**", "*")
        path += f":{route.template.custom}" if route.template.custom else ""
        # Some paths address datasets without their project. No role in a single project permits those.
        if method in service.registry.methods and not path.startswith("/v1/datasets"):
            paths.setdefault(method if by_grpc else (route.verb, path), (method, route.verb, path))
    if not by_grpc:
        by_hand = {**projects.METHODS, **service_accounts.METHODS}
        ours = {(verb, PREFIX + path): (made.name,) for (verb, path), made in METHODS.items()}
        for (verb, path), (method, *_) in {**by_hand, **ours}.items():
            paths[verb, path] = method, verb, re.sub(r"\{[a-z]+\}", "*", path)
        paths[metrics.METHOD] = metrics.METHOD, "GET", "/metrics"
    if by_grpc:
        paths[TAIL] = TAIL, "POST", "/v2/entries:tail"
    every = service.registry.methods if by_grpc else PERMISSIONS.keys() - {SHADOWED, TAIL}
    assert {method for method, _, _ in paths.values()} == every
    yield from paths.values()


def grants(roles: tuple[str, ...]) -> tuple[Grant, ...]:
    """Return grants of these roles in the caller's own project."""
    return tuple(Grant(OWN, role, f"user:{ANA}") for role in roles if role != PROGRAM)


def request(verb: str, path: str, project: str, job: str) -> tuple[str, str, Any]:
    """Return a call of a method about a resource of a project."""
    body: Any = None if verb in ("GET", "DELETE") else {}
    if path.startswith(PREFIX):
        path = f"{path}?project={project}"
        body = body if body is None else {"project": project}
    elif path.startswith("/v2/entries"):
        body = {"resourceNames": [f"projects/{project}"], "logName": f"projects/{project}/logs/l"}
        body.pop("logName" if path.endswith(("list", "tail")) else "resourceNames")
    path = path.replace("/projects/*", f"/projects/{project}")
    path = path.replace("/v1/operations/*", f"/v1/operations/cp.{project_number(project)}")
    path = path.replace("/locations/*", PLACE)
    return verb, re.sub(r"([jJ]obs|Pipelines)/\*", rf"\1/{job}", path).replace("*", MISSING), body


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_every_method_needs_a_token(
    service: ApiService, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setattr(authentication_limits, "_DELAY_SECONDS", 0.0)
    for _, verb, path in served_methods(service):
        answer = await service.call(*request(verb, path, OWN, MISSING), token=token)
        assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED"), path
        # The header must contain more than a scheme: httplib2, below the API client library, cannot
        # parse that.
        assert isinstance(service, GrpcApiService) or answer.headers["www-authenticate"] == BEARER


async def test_permission_table_decides_every_api_call(service: ApiService) -> None:
    """The table applies to users and to the program of a job. A rejected call for a job has the same error
    for an own, a foreign and a missing job. Own jobs remain from a role that the user had earlier."""
    token = add_user(service.tokens, ANA)
    jobs: dict[tuple[str, str], list[str]] = {}
    for project, (path, body) in product((OWN, FOREIGN), JOBS.items()):
        for by, id_ in ((token, f"mine_{project}"), ("", f"theirs_{project}")):
            job = body | {"jobId": id_} if path == "/jobs" else body
            made = await service.result("POST", f"/v1/projects/{project}{path}", job, token=by)
            ids = jobs.setdefault((project, path.rpartition("/")[2]), [])
            ids.append(made.get("name", id_).rpartition("/")[2])
    claims = JobClaims(int(jobs[OWN, "customJobs"][0]), 1, "workerpool0-0", OWN, "t@x.example")
    of_program, _ = service.jobs.mint(claims)
    service.services.closing.set()  # Streams end immediately.

    def is_permitted(method: str, project: str, roles: tuple[str, ...]) -> bool:
        rights = Policy(grants(roles)).rights(ANA)
        who = program(claims) if roles == (PROGRAM,) else Principal(ANA, rights)
        return is_allowed(who, method, [project])

    todo: list[tuple[bool, tuple[str, ...], str, str, str, str]] = []
    for project, (method, verb, path) in product((OWN, FOREIGN), list(served_methods(service))):
        alone = [(role,) for role in ROLES if is_permitted(method, project, (role,))]
        # If one of the other roles permitted the call, all of them together would too.
        others = tuple(role for role in ROLES if (role,) not in alone)
        # The right of a program to cancel a job depends on the job's creator.
        programs = [] if path.endswith(":cancel") else [(PROGRAM,)]
        for roles in (*alone, others, *programs):
            todo.append((is_permitted(method, project, roles), roles, project, method, verb, path))
    wrong: list[object] = []
    # Permitted calls change jobs, so they run last.
    for expected, roles, project, method, verb, path in sorted(todo, key=itemgetter(0)):
        # A permitted earlier call has deleted the project.
        book = replace(service.tokens.book, projects={})
        book = book.with_grants("", ()).with_grants(FOREIGN, ())
        service.tokens.replace(book.with_grants(OWN, grants(roles)))
        [kind] = re.findall(r"(\w*[jJ]obs|\w+Pipelines)/\*", path) or [""]
        answers: set[tuple[bool, str]] = set()
        for job in (*jobs.get((project, kind), ()), MISSING):
            by = of_program if roles == (PROGRAM,) else token
            answer = await service.call(*request(verb, path, project, job), token=by)
            refused = answer.body.decode() if answer.status == 403 else ""
            # For an ID without a project, missing and foreign jobs have the same error.
            if not expected or job != MISSING or f"{PREFIX}jobs/" not in path:
                answers.add((answer.status != 403, refused.replace(job, MISSING)))
        if len(answers) > 1 or {is_permitted for is_permitted, _ in answers} - {expected}:
            wrong.append((roles, project, method, verb, path, answers))
    assert wrong == []
