"""Resource Manager's projects and their IAM policies: API v3, and the methods of v1 that gcloud calls.

Every project in which a caller has rights exists. A project that was created explicitly also has a display
name and labels.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from google.protobuf.message import Message
from msgspec.structs import replace

from trainshed.access.book import AccessBook, Project
from trainshed.access.permissions import ADMIN_BUCKETS, PERMISSIONS, authorize
from trainshed.access.policy import Grant, bindings_of, member_fault, role_fault
from trainshed.access.principals import Principal
from trainshed.api.calls.call import Call, Handlers, JsonCall, JsonMethods
from trainshed.api.calls.errors import not_served
from trainshed.api.calls.masks import read_update_mask
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.services import Services
from trainshed.api.resources.jobs import notify_jobs
from trainshed.core.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Violation,
)
from trainshed.core.names import project_number
from trainshed.core.requests import Faults, Section
from trainshed.core.specs.syntax import check_texts, read_labels
from trainshed.core.units import whole_second
from trainshed.wire import pool
from trainshed.wire.routes import KnownMethod

_V3: Final = "google.cloud.resourcemanager.v3.Projects"
_GET: Final = f"{_V3}.GetProject"
LIST_PROJECTS: Final = f"{_V3}.ListProjects"
_CREATE: Final = f"{_V3}.CreateProject"
_UPDATE: Final = f"{_V3}.UpdateProject"
_DELETE: Final = f"{_V3}.DeleteProject"
_UNDELETE: Final = f"{_V3}.UndeleteProject"
_SET: Final = f"{_V3}.SetIamPolicy"
CREATION_PREFIX: Final = "cp."
"""Prefix of the IDs of operations that create projects."""
_UPDATABLE_FIELDS: Final = ("display_name", "labels")
_MAX_MEMBERS: Final = 1_500
"""Maximum number of members in a project's policy. The public service has the same limit."""


async def get_project(call: Call, request: Any) -> Message:
    return _view(call.services.access.book, ProjectName.parse(request.name, field="name").project_id)


async def list_projects(call: Call, request: Any) -> Message:
    """List the projects that the caller may see. All of them are on one page. Raises InvalidRequest for a
    search."""
    if getattr(request, "query", ""):
        text = "Searching projects is not supported. Omit the query, and select from the full list."
        raise InvalidRequest((Violation("query", text),))
    views = [
        _view(call.services.access.book, name) for name in visible_projects(call.principal, call.services)
    ]
    verb = call.method.rpartition(".")[2]
    return pool.message(f"google.cloud.resourcemanager.v3.{verb}Response", projects=views)


async def create_project(call: Call, request: Any) -> Message:
    """Create a project and return a finished operation."""
    project = request.project
    created = await create(call.services, project.project_id, project.display_name, dict(project.labels))
    return _finished_operation(CREATION_PREFIX, _view(call.services.access.book, created))


async def update_project(call: Call, request: Any) -> Message:
    """Change a project's display name and labels, and return a finished operation."""
    name = ProjectName.parse(request.project.name, field="project.name").project_id
    paths = read_update_mask(request.update_mask.paths, _UPDATABLE_FIELDS, request.project)
    texts = {"display_name": request.project.display_name, "labels": dict(request.project.labels)}
    await _update(call.services, name, {path: texts[path] for path in paths})
    return _finished_operation("up.", _view(call.services.access.book, name))


async def _update(services: Services, name: str, texts: Mapping[str, Any]) -> None:
    _check(texts.get("display_name", ""), texts.get("labels", {}))

    def change(book: AccessBook) -> AccessBook:
        known = book.projects.get(name) or Project(name, services.now())
        return book.with_project(replace(known, **texts))

    await services.access.change(change, name, f"projects/{name}")


async def delete_project(call: Call, request: Any) -> Message:
    """Delete a project with its roles and service accounts, and return a finished operation. Raises NotFound
    and FailedPrecondition."""
    name = ProjectName.parse(request.name, field="name").project_id
    view = _view(call.services.access.book, name)
    await _delete(call.services, name)
    return _finished_operation("dp.", view)


async def _delete(services: Services, name: str) -> None:
    """Delete a project. Owners of the service can still read its contents."""
    if name == services.settings.project:
        raise FailedPrecondition(f"{name} is the service's own project, which cannot be deleted.")

    def remove(book: AccessBook) -> AccessBook:
        known = book.projects.get(name)
        if (known is None or known.deleted) and not book.policy.of_project(name):
            raise NotFound(f"The project {name} does not exist. Check the project ID.")
        detail["removed"] = _grant_texts(book.policy.of_project(name))
        return book.without_project(name, services.now())

    detail: dict[str, object] = {}
    accounts = services.access.book.accounts.values()
    own = [account.email for account in accounts if account.project == name]
    await services.access.change(remove, name, f"projects/{name}", detail)
    await notify_jobs(services, own, "deleted")


def _finished_operation(prefix: str, view: Any) -> Message:
    """Return a finished operation of a project."""
    number = project_number(view.project_id)
    operation: Any = pool.message(
        "google.longrunning.Operation", name=f"operations/{prefix}{number}", done=True
    )
    operation.response.Pack(view)
    return operation


async def get_policy(call: Call, request: Any) -> Message:
    name = ProjectName.parse(request.resource, field="resource").project_id
    return policy_view(call.services.access.book.policy.of_project(name))


async def set_policy(call: Call, request: Any) -> Message:
    """Replace the bindings of a project's policy. Raises InvalidRequest, and Aborted for an outdated etag."""
    name = ProjectName.parse(request.resource, field="resource").project_id
    grants = _grants(name, request.policy)
    former: frozenset[Grant] = frozenset()

    def change(book: AccessBook) -> AccessBook:
        nonlocal former
        former = book.policy.of_project(name)
        if request.policy.etag and bytes(request.policy.etag) != _etag(former):
            raise Aborted(
                f"The policy of {name} has changed since you read it. Read it again, apply your change, "
                "and send it with the new etag."
            )
        detail["added"] = _grant_texts(grants - former)
        detail["removed"] = _grant_texts(former - grants)
        return book.with_grants(name, grants)

    detail: dict[str, object] = {}
    await call.services.access.change(change, name, f"projects/{name}", detail)
    return policy_view(grants)


async def test_permissions(call: Call, request: Any) -> Message:
    """Return those of the requested permissions that the caller has.

    Roles are granted in projects, so the result is the same for all resources of a project. Only the form of
    the resource name is checked, because the public method does not reveal whether a resource exists.
    """
    faults = Faults()
    with faults.collect():
        # A resource name is `projects/P`, followed by pairs of collection and ID.
        parts = request.resource.split("/")
        ProjectName.parse("/".join(parts[:2]), field="resource")
        if len(parts) % 2 or not all(parts):
            text = f"{request.resource!r} is not a name of the form projects/PROJECT/COLLECTION/ID/..."
            faults.add("resource", text)
    for index, permission in enumerate(request.permissions):
        # The public method rejects wildcards.
        if "*" in permission or permission.count(".") < 2:
            text = f"{permission!r} is not the name of one permission, such as aiplatform.customJobs.get."
            faults.add(f"permissions[{index}]", text)
    faults.refuse()
    principal = call.principal
    mine = principal.rights.within(request.resource.split("/")[1])
    if principal.program is not None and request.resource.count("/") == 1 and mine:
        # Add the rights of programs in buckets. Programs have them in their own project without a role there
        # (`buckets.admission`).
        mine |= ADMIN_BUCKETS
    permissions = dict.fromkeys(request.permissions)
    return pool.message(
        "google.iam.v1.TestIamPermissionsResponse",
        permissions=[permission for permission in permissions if permission in mine],
    )


HANDLERS: Final[Handlers] = {
    "google.iam.v1.IAMPolicy.TestIamPermissions": test_permissions,
    "google.cloud.ml.v1.JobService.TestIamPermissions": test_permissions,
    f"{_V3}.TestIamPermissions": test_permissions,
    _GET: get_project,
    LIST_PROJECTS: list_projects,
    f"{_V3}.SearchProjects": list_projects,
    _CREATE: create_project,
    _UPDATE: update_project,
    _DELETE: delete_project,
    f"{_V3}.GetIamPolicy": get_policy,
    _SET: set_policy,
}


async def get_project_v1(call: JsonCall) -> dict[str, Any]:
    """Return a project in the format of the Resource Manager API v1. Raises PermissionDenied and
    InvalidRequest."""
    return _view_of_v1(call.services.access.book, _authorized_project(call, _GET))


async def list_projects_v1(call: JsonCall) -> dict[str, Any]:
    """Return the projects that the caller may see, in the format of the Resource Manager API v1. Raises
    PermissionDenied."""
    authorize(call.principal, LIST_PROJECTS)
    book = call.services.access.book
    names = visible_projects(call.principal, call.services)
    return {"projects": [_view_of_v1(book, name) for name in names]}


async def create_project_v1(call: JsonCall) -> dict[str, Any]:
    """Create the project in a v1 request, and return a finished operation. Raises PermissionDenied,
    InvalidRequest and AlreadyExists."""
    authorize(call.principal, _CREATE, ())
    name = str(call.body.get("projectId") or "")
    await create(call.services, name, str(call.body.get("name") or ""), _labels(call))
    return _creation(call.services.access.book, name)


def _labels(call: JsonCall) -> dict[str, str]:
    try:
        return msgspec.convert(call.body.get("labels") or {}, dict[str, str])
    except msgspec.ValidationError as error:
        raise InvalidRequest((Violation("labels", f"Labels must be strings: {error}."),)) from None


async def update_project_v1(call: JsonCall) -> dict[str, Any]:
    """Replace a project's display name and labels. Raises PermissionDenied and InvalidRequest."""
    name = _authorized_project(call, _UPDATE)
    texts = {"display_name": str(call.body.get("name") or ""), "labels": _labels(call)}
    await _update(call.services, name, texts)
    return _view_of_v1(call.services.access.book, name)


async def delete_project_v1(call: JsonCall) -> dict[str, Any]:
    """Delete a project, as `delete_project` does. Raises PermissionDenied, NotFound and
    FailedPrecondition."""
    await _delete(call.services, _authorized_project(call, _DELETE))
    return {}


async def undelete_project_v1(call: JsonCall) -> dict[str, Any]:
    """Restore a deleted project. Its former roles are not restored. Raises PermissionDenied and NotFound."""
    name = _authorized_project(call, _UNDELETE)

    def restore(book: AccessBook) -> AccessBook:
        known = book.projects.get(name)
        if known is None or known.deleted is None:
            raise NotFound(f"No deleted project {name} exists. Check the project ID.")
        return book.with_project(replace(known, deleted=None))

    await call.services.access.change(restore, name, f"projects/{name}")
    return {}


def _authorized_project(call: JsonCall, method: str) -> str:
    """Return the ID of the project in a request. The caller must have the method's permission there. Raises
    PermissionDenied and InvalidRequest."""
    project = call.names["project"]
    authorize(call.principal, method, (project,))
    return ProjectName.parse(f"projects/{project}", field="project_id").project_id


async def get_creation_v1(call: JsonCall) -> dict[str, Any]:
    """Return the operation that created a project, in the format of the Resource Manager API v1. Raises
    PermissionDenied, NotFound, and NotServed for other operations."""
    operation = call.names["operation"]
    if not operation.startswith(CREATION_PREFIX):
        path = "/v1/operations/{operation}"
        raise not_served(KnownMethod("google.longrunning.Operations.GetOperation", path), ())
    number = operation.removeprefix(CREATION_PREFIX)
    authorize(call.principal, _GET, (number,))
    for name in call.services.access.book.projects:
        if number == str(project_number(name)):
            return _creation(call.services.access.book, name)
    raise NotFound(f"The operation {operation[:200]!r} does not exist. Check its name.")


async def enable_service(call: JsonCall) -> dict[str, Any]:
    """Return success without an effect. gcloud enables an API in each new project, but all APIs are always
    available here."""
    await get_project_v1(call)
    return {"name": "operations/noop.DONE_OPERATION", "done": True}


METHODS: Final[JsonMethods] = {
    ("GET", "/v1/projects/{project}"): (_GET, get_project_v1),
    ("GET", "/v1/projects"): (LIST_PROJECTS, list_projects_v1),
    ("POST", "/v1/projects"): (_CREATE, create_project_v1),
    ("PUT", "/v1/projects/{project}"): (_UPDATE, update_project_v1),
    ("DELETE", "/v1/projects/{project}"): (_DELETE, delete_project_v1),
    ("POST", "/v1/projects/{project}:undelete"): (_UNDELETE, undelete_project_v1),
    ("GET", "/v1/operations/{operation}"): (_GET, get_creation_v1),
    ("POST", "/v1/projects/{project}/services/{service}:enable"): (_GET, enable_service),
}
"""The methods of the Resource Manager API v1 that gcloud calls."""


def _creation(book: AccessBook, name: str) -> dict[str, Any]:
    return {
        "name": f"operations/{CREATION_PREFIX}{project_number(name)}",
        "done": True,
        "response": {
            "@type": "type.googleapis.com/google.cloudresourcemanager.v1.Project",
            **_view_of_v1(book, name),
        },
    }


async def create(services: Services, name: str, display_name: str, labels: Mapping[str, str]) -> str:
    """Create a project and return its ID. Raises InvalidRequest and AlreadyExists."""
    ProjectName.parse(f"projects/{name}", field="project_id")
    _check(display_name, labels)
    project = Project(name, services.now(), display_name, labels)

    def add(book: AccessBook) -> AccessBook:
        known = book.projects.get(name)
        if known is not None or name == services.settings.project:
            text = "was deleted and its contents are kept" if known and known.deleted else "already exists"
            raise AlreadyExists(f"The project {name} {text}. Use another ID.")
        return book.with_project(project)

    await services.access.change(add, name, f"projects/{name}")
    return name


def _check(display_name: str, labels: Mapping[str, str]) -> None:
    """Raise InvalidRequest for a display name or labels that are too long, because every process holds them
    in memory."""
    project = Section({"displayName": display_name, "labels": labels}, "", Faults())
    check_texts(project, "displayName")
    read_labels(project)
    project.faults.refuse()


def visible_projects(principal: Principal, services: Services) -> Sequence[str]:
    """Return the IDs of all known projects that the caller may see, sorted."""
    book = services.access.book
    permission = PERMISSIONS[LIST_PROJECTS]
    if permission in principal.rights.everywhere:
        created = (name for name, known in book.projects.items() if known.deleted is None)
        return sorted({services.settings.project, *created, *book.policy.projects()})
    return sorted(name for name, held in principal.rights.projects.items() if permission in held)


def policy_view(grants: Iterable[Grant]) -> Message:
    listed = frozenset(grants)
    return pool.message(
        "google.iam.v1.Policy",
        version=1,
        bindings=[{"role": role, "members": members} for role, members in bindings_of(listed).items()],
        etag=_etag(listed),
    )


def _grants(project: str, policy: Any) -> frozenset[Grant]:
    """Return the grants in a project's policy. Raises InvalidRequest with all errors."""
    faults = Faults()
    grants: set[Grant] = set()
    for index, binding in enumerate(policy.bindings):
        path = f"policy.bindings[{index}]"
        if fault := role_fault(binding.role):
            faults.add(f"{path}.role", fault)
        if binding.HasField("condition"):
            text = "Conditions are not supported. Grant the role without a condition, or do not grant it."
            faults.add(f"{path}.condition", text)
        for position, member in enumerate(binding.members):
            if fault := member_fault(member):
                faults.add(f"{path}.members[{position}]", fault)
            grants.add(Grant(project, binding.role, member))
    if policy.audit_configs:
        text = "Audit configuration is not supported: every change is recorded. Omit the field."
        faults.add("policy.audit_configs", text)
    if len(grants) > _MAX_MEMBERS:
        text = f"The policy has {len(grants)} members. At most {_MAX_MEMBERS} are allowed."
        faults.add("policy.bindings", text)
    faults.refuse()
    return frozenset(grants)


def _etag(grants: Iterable[Grant]) -> bytes:
    text = json.dumps(sorted(_grant_texts(grants)))
    return hashlib.sha256(text.encode()).digest()[:8]


def _grant_texts(grants: Iterable[Grant]) -> list[str]:
    return sorted(f"{grant.role} {grant.member}" for grant in grants)


def _view(book: AccessBook, name: str) -> Message:
    project = book.projects.get(name) or Project(name, 0)
    view: Any = pool.message(
        "google.cloud.resourcemanager.v3.Project",
        name=f"projects/{project_number(name)}",
        project_id=name,
        display_name=project.display_name or name,
        state="DELETE_REQUESTED" if project.deleted else "ACTIVE",
        labels=dict(project.labels),
    )
    # Without a creation time, use the Unix epoch. Such a project was never created explicitly.
    view.create_time.FromNanoseconds(project.created)
    view.update_time.FromNanoseconds(project.created)
    return view


def _view_of_v1(book: AccessBook, name: str) -> dict[str, Any]:
    project = book.projects.get(name) or Project(name, 0)
    return {
        "projectId": name,
        "projectNumber": str(project_number(name)),
        "name": project.display_name or name,
        "lifecycleState": "DELETE_REQUESTED" if project.deleted else "ACTIVE",
        "createTime": f"{whole_second(project.created // 10**9)}Z",
        **({"labels": dict(project.labels)} if project.labels else {}),
    }
