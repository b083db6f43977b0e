"""Every method × every role × own and foreign project × own and foreign job, by the routes and with the
authentication of both transports: what the one table allows is not refused, and all else is."""

import re
from collections.abc import AsyncGenerator, Iterator
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.contract.api.grpc_house import GrpcHouse
from tests.contract.api.house import House
from tests.contract.api.studying import house_over
from tests.people import known
from tests.unit.specs_requests import custom_job, ml_job
from tests.unit.test_access_permissions import allowed
from tests.unit.test_specs_pipeline import inputs, pipeline
from tests.unit.test_specs_tuning import tuning_job
from trainshed.access import strangers
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
"""Another method answers at its address."""
TAIL = "google.logging.v2.LoggingServiceV2.TailLogEntries"
"""Over gRPC only."""
JOBS = {
    f"{PLACE}/customJobs": custom_job(),
    f"{PLACE}/hyperparameterTuningJobs": tuning_job(),
    f"{PLACE}/trainingPipelines": pipeline(trainingTaskInputs=inputs()),
    "/jobs": ml_job(),
}


@pytest.fixture(params=["REST", "gRPC"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[House]:
    async with house_over(request.param, tmp_path) as opened:
        yield opened


def served(house: House) -> Iterator[tuple[str, str, str]]:
    """(method, verb, path) of all that is served; over gRPC once for each method."""
    by_grpc = isinstance(house, GrpcHouse)
    paths: dict[object, tuple[str, str, str]] = {}
    for route in (route for api in pool.APIS for route in routes.routes(api)):
        method = route.rpc.full_name
        path = "/".join(("", *route.template.segments)).replace("**", "*")
        path += f":{route.template.custom}" if route.template.custom else ""
        # Some address datasets without their project, which nobody in one project may.
        if method in house.registry.methods and not path.startswith("/v1/datasets"):
            paths.setdefault(method if by_grpc else (route.verb, path), (method, route.verb, path))
    if not by_grpc:
        by_hand = {**projects.METHODS, **service_accounts.METHODS}
        ours = {(verb, PREFIX + path): (made.name,) for (verb, path), made in METHODS.items()}
        for (verb, path), (method, *_) in {**by_hand, **ours}.items():
            paths[verb, path] = method, verb, re.sub(r"\{[a-z]+\}", "*", path)
        paths[metrics.METHOD] = metrics.METHOD, "GET", "/metrics"
    if by_grpc:
        paths[TAIL] = TAIL, "POST", "/v2/entries:tail"
    every = house.registry.methods if by_grpc else PERMISSIONS.keys() - {SHADOWED, TAIL}
    assert {method for method, _, _ in paths.values()} == every
    yield from paths.values()


def grants(roles: tuple[str, ...]) -> tuple[Grant, ...]:
    """Of these roles in one's own project."""
    return tuple(Grant(OWN, role, f"user:{ANA}") for role in roles if role != PROGRAM)


def request(verb: str, path: str, project: str, job: str) -> tuple[str, str, Any]:
    """A call of a method about what lies in a project."""
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
    house: House, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    monkeypatch.setattr(strangers, "_DELAY", 0.0)
    for _, verb, path in served(house):
        answer = await house.call(*request(verb, path, OWN, MISSING), token=token)
        assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED"), path
        # A scheme alone is not enough: httplib2, below the API client library, fails to read that.
        assert isinstance(house, GrpcHouse) or answer.headers["www-authenticate"] == BEARER


async def test_the_table_alone_decides(house: House) -> None:
    """For people, and for the program of a job. Of jobs, a refusal is the same for one's own, as a role of
    former days left it, for those of others and for none."""
    token = known(house.tokens, ANA)
    jobs: dict[tuple[str, str], list[str]] = {}
    for project, (path, body) in product((OWN, FOREIGN), JOBS.items()):
        for by, id_ in ((token, f"mine_{project}"), ("", f"theirs_{project}")):
            job = body | {"jobId": id_} if path == "/jobs" else body
            made = await house.result("POST", f"/v1/projects/{project}{path}", job, token=by)
            ids = jobs.setdefault((project, path.rpartition("/")[2]), [])
            ids.append(made.get("name", id_).rpartition("/")[2])
    claims = JobClaims(int(jobs[OWN, "customJobs"][0]), 1, "workerpool0-0", OWN, "t@x.example")
    of_program, _ = house.jobs.mint(claims)
    house.services.closing.set()  # Streams end at once.

    def is_let(method: str, project: str, roles: tuple[str, ...]) -> bool:
        rights = Policy(grants(roles)).rights(ANA)
        who = program(claims) if roles == (PROGRAM,) else Principal(ANA, rights)
        return allowed(who, method, [project])

    todo: list[tuple[bool, tuple[str, ...], str, str, str, str]] = []
    for project, (method, verb, path) in product((OWN, FOREIGN), list(served(house))):
        alone = [(role,) for role in ROLES if is_let(method, project, (role,))]
        # If one of the others let somebody in, so would all of them together.
        others = tuple(role for role in ROLES if (role,) not in alone)
        # Whether a program may cancel a job depends on who made that.
        programs = [] if path.endswith(":cancel") else [(PROGRAM,)]
        for roles in (*alone, others, *programs):
            todo.append((is_let(method, project, roles), roles, project, method, verb, path))
    wrong: list[object] = []
    # What is let changes jobs, and comes last.
    for expected, roles, project, method, verb, path in sorted(todo, key=itemgetter(0)):
        # An owner has deleted the project.
        book = replace(house.tokens.book, projects={})
        book = book.with_grants("", ()).with_grants(FOREIGN, ())
        house.tokens.replace(book.with_grants(OWN, grants(roles)))
        [kind] = re.findall(r"(\w*[jJ]obs|\w+Pipelines)/\*", path) or [""]
        answers: set[tuple[bool, str]] = set()
        for job in (*jobs.get((project, kind), ()), MISSING):
            by = of_program if roles == (PROGRAM,) else token
            answer = await house.call(*request(verb, path, project, job), token=by)
            refused = answer.body.decode() if answer.status == 403 else ""
            # By an id alone, what is nowhere is refused as what lies in another project.
            if not expected or job != MISSING or f"{PREFIX}jobs/" not in path:
                answers.add((answer.status != 403, refused.replace(job, MISSING)))
        if len(answers) > 1 or {is_let for is_let, _ in answers} - {expected}:
            wrong.append((roles, project, method, verb, path, answers))
    assert wrong == []
