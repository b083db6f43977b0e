"""HTTP for our own API: calls the handlers of `/trainshed/v1/...`, and responds in JSON or NDJSON.

A path is a collection (`nodes`) or one of its members (`nodes/node-1`). It may have a verb
(`nodes/node-1:drain`, `quotas:set`) or a sub-resource (`jobs/7/timeline`). Bodies are JSON objects.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.permissions import PERMISSIONS, authorize
from trainshed.access.principals import Principal
from trainshed.api.calls.audit import audit_call
from trainshed.api.calls.http import (
    MAX_BODY,
    METHOD,
    NDJSON,
    SMALL_BODY,
    json_response,
    public_error_response,
    read_json_object,
    unknown_method,
)
from trainshed.api.calls.project_names import id_of, project_in
from trainshed.api.calls.services import Authenticate, Services
from trainshed.api.calls.streams import wait_for_expiry
from trainshed.api.resources.jobs import find_work
from trainshed.api.trainshed_v1 import (
    access,
    capacity,
    describing,
    drills,
    explain,
    jobs,
    links,
    logs,
    measures,
    replicas,
)
from trainshed.api.trainshed_v1.call import JsonCall, JsonHandler, StreamHandler
from trainshed.core.errors import FailedPrecondition, NotFound, PermissionDenied
from trainshed.httpd.messages import Request, Response, StreamedResponse
from trainshed.httpd.routing import Router, Template
from trainshed.store.audit import set_subject
from trainshed.wire.json import encode_text
from trainshed.wire.trainshed_v1 import access as access_records
from trainshed.wire.trainshed_v1.access import SecretValue
from trainshed.wire.trainshed_v1.capacity import DrainRequest, ExplainRequest, QuotaLimit
from trainshed.wire.trainshed_v1.jobs import JobsOf, ReplicaChoice, ViewRequest
from trainshed.wire.trainshed_v1.record import Nothing, Record, to_builtins
from trainshed.wire.trainshed_v1.timeline import DrillOrder

PREFIX: Final = "/trainshed/v1/"
_JOBS_PREFIX: Final = "trainshed.v1.Jobs."
_PROJECT_METHODS: Final = frozenset(
    {
        "trainshed.v1.Jobs.List",
        "trainshed.v1.Jobs.CancelAll",
        "trainshed.v1.Jobs.Explain",
        "trainshed.v1.Quotas.List",
        "trainshed.v1.Quotas.Set",
        "trainshed.v1.Usage.List",
        "trainshed.v1.Secrets.List",
        "trainshed.v1.Secrets.Set",
        "trainshed.v1.Secrets.Delete",
        "trainshed.v1.Access.Policy",
        "trainshed.v1.Access.Change",
        "trainshed.v1.Audit.List",
    }
)
"""Methods that are limited to one project. Their query or body contains the project."""
_ALL_PROJECTS: Final = ("-",)
_GLOBAL_CHANGES: Final = frozenset({"trainshed.v1.Access.Change", "trainshed.v1.Quotas.Set"})
_MAX_SECRET_BODY: Final = 4 << 20
"""Maximum size in bytes of the body with a secret. It exceeds the maximum size of a secret. Therefore the
error for a secret that is too large contains that size."""
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class Method(Struct, frozen=True):
    """A method of the API: its full name, its body and its handler."""

    name: str
    answer: JsonHandler | None = None
    stream: StreamHandler | None = None
    #: Maximum size of a body in bytes.
    max_size: int = SMALL_BODY
    #: The record type of the body.
    body: type[Record] = Nothing


METHODS: Final[dict[tuple[str, str], Method]] = {
    ("GET", "status"): Method("trainshed.v1.Service.GetStatus", jobs.status),
    ("GET", "whoami"): Method("trainshed.v1.Service.WhoAmI", access.who_am_i),
    ("GET", "tokens"): Method("trainshed.v1.Tokens.List", access.list_tokens),
    ("POST", "tokens"): Method(
        "trainshed.v1.Tokens.Create", access.create_token, body=access_records.NewToken
    ),
    ("POST", "tokens:own"): Method("trainshed.v1.Tokens.CreateOwn", access.create_own_token),
    ("DELETE", "tokens/{token}"): Method("trainshed.v1.Tokens.Revoke", access.revoke_token),
    ("GET", "access"): Method("trainshed.v1.Access.Policy", access.list_grants),
    ("POST", "access:change"): Method(
        "trainshed.v1.Access.Change", access.change_grant, body=access_records.GrantChange
    ),
    ("GET", "audit"): Method("trainshed.v1.Audit.List", access.audit),
    ("GET", "nodes"): Method("trainshed.v1.Nodes.List", capacity.list_nodes),
    ("POST", "nodes/{node}:drain"): Method("trainshed.v1.Nodes.Drain", capacity.drain, body=DrainRequest),
    ("POST", "nodes/{node}:undrain"): Method("trainshed.v1.Nodes.Undrain", capacity.undrain),
    ("GET", "quotas"): Method("trainshed.v1.Quotas.List", capacity.list_quotas),
    ("POST", "quotas:set"): Method("trainshed.v1.Quotas.Set", capacity.set_quota, body=QuotaLimit),
    ("GET", "usage"): Method("trainshed.v1.Usage.List", capacity.usage),
    ("GET", "secrets"): Method("trainshed.v1.Secrets.List", access.list_secrets),
    ("POST", "secrets"): Method(
        "trainshed.v1.Secrets.Set", access.set_secret, max_size=_MAX_SECRET_BODY, body=SecretValue
    ),
    ("DELETE", "secrets/{name}"): Method("trainshed.v1.Secrets.Delete", access.delete_secret),
    ("GET", "jobs"): Method("trainshed.v1.Jobs.List", jobs.list_),
    ("POST", "jobs:explain"): Method(
        "trainshed.v1.Jobs.Explain", explain.explain, max_size=MAX_BODY, body=ExplainRequest
    ),
    ("POST", "jobs:cancel"): Method("trainshed.v1.Jobs.CancelAll", jobs.cancel_all, body=JobsOf),
    ("GET", "jobs/{job}"): Method("trainshed.v1.Jobs.Describe", jobs.describe),
    ("GET", "jobs/{job}/timeline"): Method("trainshed.v1.Jobs.Timeline", jobs.timeline),
    ("POST", "jobs/{job}:cancel"): Method("trainshed.v1.Jobs.Cancel", jobs.cancel),
    ("DELETE", "jobs/{job}"): Method("trainshed.v1.Jobs.Delete", jobs.delete),
    ("POST", "jobs/{job}:drill"): Method("trainshed.v1.Jobs.Drill", drills.drill, body=DrillOrder),
    ("GET", "jobs/{job}/resumeReport"): Method("trainshed.v1.Jobs.ResumeReport", drills.report),
    ("GET", "jobs/{job}/usage"): Method("trainshed.v1.Jobs.Usage", replicas.usage),
    ("GET", "jobs/{job}/launch"): Method("trainshed.v1.Jobs.Launch", replicas.launch),
    ("GET", "jobs/{job}/curves"): Method("trainshed.v1.Jobs.Curves", measures.curves),
    ("GET", "jobs/{job}/outlook"): Method("trainshed.v1.Jobs.Outlook", measures.outlook),
    ("GET", "jobs/{job}/logs"): Method("trainshed.v1.Jobs.Logs", stream=logs.logs),
    ("GET", "jobs/{job}/logPage"): Method("trainshed.v1.Jobs.LogPage", logs.page),
    ("POST", "jobs/{job}:shell"): Method("trainshed.v1.Jobs.Shell", links.open_shell, body=ReplicaChoice),
    ("POST", "jobs/{job}:tensorboard"): Method("trainshed.v1.Jobs.Tensorboard", links.view, body=ViewRequest),
    ("GET", "jobs/{job}/watch"): Method("trainshed.v1.Jobs.Watch", stream=describing.watch),
}
"""Methods by HTTP verb and path template below the prefix. A path variable is the encoded name of a member.
For a job, it can also be the job's ID or UID."""
_ROUTER: Final = Router(
    (verb, Template.parse(PREFIX + path), method) for (verb, path), method in METHODS.items()
)


class TrainshedSurface:
    """Handles requests below `/trainshed/v1/`."""

    def __init__(self, services: Services, authenticate: Authenticate) -> None:
        self._services = services
        self._authenticate = authenticate

    async def answer(self, request: Request) -> Response:
        """Handle a request over HTTP. Raises request errors."""
        matched = _ROUTER.match(request.method, request.raw_path)
        if matched is None:
            return public_error_response(unknown_method(request))
        request.api = "trainshed_v1"
        method, _ = matched
        if method.stream is None:
            request.scope[METHOD] = method.name
        principal = await self._authenticate(request.headers.get("authorization"))
        # If the method has no body, do not receive one, because a stream must receive the client's disconnect
        # event.
        has_body = request.method in _WITH_BODY
        body = await read_json_object(request, method.max_size) if has_body else {}
        call = _call(self._services, principal, matched, request.values, body)
        if method.stream is not None:
            expiry = partial(wait_for_expiry, self._services, principal)
            parts = await method.stream(await _authorize(call, method.name))
            return StreamedResponse(parts, self._services.closing, NDJSON, expiry)
        return json_response(encode_text(to_builtins(await _answer(method, call))))


async def answer(
    services: Services,
    principal: Principal,
    verb: str,
    path: str,
    *,
    query: Mapping[str, Sequence[str]],
    body: Mapping[str, Any],
) -> Record:
    """Return the response to a call of an authenticated caller. `path`: the encoded path below the prefix."""
    matched = _find_method(verb, path)
    return await _answer(matched[0], _call(services, principal, matched, query, body))


async def stream_lines(
    services: Services, principal: Principal, path: str, query: Mapping[str, Sequence[str]]
) -> AsyncGenerator[bytes]:
    """Return the lines of a stream for an authenticated caller. `path`: the encoded path below the prefix."""
    matched = _find_method("GET", path)
    stream = matched[0].stream
    assert stream is not None, f"{path} is not a stream"
    call = _call(services, principal, matched, query, {})
    return await stream(await _authorize(call, matched[0].name))


def _call(
    services: Services,
    principal: Principal,
    matched: tuple[Method, dict[str, str]],
    query: Mapping[str, Sequence[str]],
    body: Mapping[str, Any],
) -> JsonCall:
    method, variables = matched
    target = next(iter(variables.values()), "")
    return JsonCall(principal, services, target, query, body, method.body)


def _find_method(verb: str, path: str) -> tuple[Method, dict[str, str]]:
    matched = _ROUTER.match(verb, PREFIX + path)
    if matched is None:
        raise NotFound(f"The method {verb} {PREFIX}{path} does not exist. Check the path.")
    return matched


async def _answer(method: Method, call: JsonCall) -> Record:
    async def answer() -> Record:
        allowed = await _authorize(call, method.name)
        set_subject(*_subject_of(allowed, method.name))
        return Nothing() if method.answer is None else await method.answer(allowed)

    project, resource = _subject_of(call, method.name)
    caller = call.services, call.principal
    return await audit_call(answer, *caller, method.name, project=project, resource=resource)


def _subject_of(call: JsonCall, method: str) -> tuple[str, str]:
    """Return the project and the resource name of a call; "" if the call does not contain them."""
    project = next(iter(_projects(call, method)), "")
    return project, call.target or str(call.body.get("name") or "")


async def _authorize(call: JsonCall, method: str) -> JsonCall:
    """Return the call if its principal has the permission in the call's project. Raises PermissionDenied.

    A call may contain no project, or all projects. If the principal has rights in only one project, such a
    call is limited to that project.
    """
    principal, permission = call.principal, PERMISSIONS[method]
    authorize(principal, method)
    if method in _PROJECT_METHODS:
        # Replace the number of a known project by its ID.
        project = call.body.get("project") if _in_body(call) else call.parameter("project")
        if str(project or "").isdecimal():
            call = _with_project(call, id_of(str(project), principal, call.services))
    if permission in principal.rights.everywhere:
        return call
    if method.startswith(_JOBS_PREFIX) and call.target and not project_in(call.target):
        return await _with_full_name(call, method)
    projects = _projects(call, method)
    # A request to cancel all jobs of a project must contain that project. A request to change all projects is
    # not limited to the caller's only project.
    requires_project = method == "trainshed.v1.Jobs.CancelAll" and not call.body.get("user")
    requires_project |= projects == _ALL_PROJECTS and method in _GLOBAL_CHANGES
    if projects in ((), _ALL_PROJECTS) and method in _PROJECT_METHODS and not requires_project:
        own = principal.rights.where(permission)
        if len(own) == 1:
            projects = (own[0],)
            call = _with_project(call, own[0])
    authorize(principal, method, projects)
    return call


async def _with_full_name(call: JsonCall, method: str) -> JsonCall:
    """Return the call with the full name of a job that the call specifies only by its ID. The response must
    not reveal whether the job exists in another project. Raises PermissionDenied."""
    principal, permission = call.principal, PERMISSIONS[method]
    own = principal.rights.where(permission)
    try:
        work, _ = await find_work(call.services.reader, call.target, own)
        authorize(principal, method, (work.name.project_id,))
        return replace(call, target=str(work.name))
    except (NotFound, PermissionDenied, FailedPrecondition):
        own_projects = ", ".join(own)
        raise PermissionDenied(
            f"{principal.email} has the permission {permission} only in the project {own_projects}, and "
            f"{call.target[:200]!r} is not a job of that project. Use a job of {own_projects}."
        ) from None


def _projects(call: JsonCall, method: str) -> tuple[str, ...]:
    """Return the projects of a call. They are found in the name of the job in the path, in the query or body,
    or for a list of jobs in the name of their tuning job or pipeline. For all other calls they are not known.
    """
    if method.startswith(_JOBS_PREFIX) and call.target:
        return (project_in(call.target),)
    if method not in _PROJECT_METHODS:
        return ()
    project = str(call.body.get("project") or "") if _in_body(call) else call.parameter("project")
    parent = call.parameter("parent") if method == "trainshed.v1.Jobs.List" else ""
    return tuple(filter(None, (project_in(parent), project)))


def _in_body(call: JsonCall) -> bool:
    """Whether the project is a field of the body; otherwise it is a parameter of the query."""
    return "project" in call.record.__struct_encode_fields__


def _with_project(call: JsonCall, project: str) -> JsonCall:
    """Return the call with another project."""
    if _in_body(call):
        return replace(call, body={**call.body, "project": project})
    return replace(call, query={**call.query, "project": (project,)})
