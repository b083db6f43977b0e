"""TestIamPermissions of both APIs and of projects: which of the requested permissions the caller has.

Roles are given in projects (`api.projects`), so the answer is the same for every resource of one. Only the
form of a resource's name is checked, because the public method does not tell whether a resource exists.
"""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.access.roles import ADMIN_BUCKETS
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import ProjectName
from trainshed.core.errors import InvalidRequest, Violation
from trainshed.wire import pool


async def test(call: Call, request: Any) -> Message:
    wrong = [*_resource_faults(request.resource), *_permission_faults(request.permissions)]
    if wrong:
        raise InvalidRequest(tuple(wrong))
    principal = call.principal
    mine = principal.rights.within(request.resource.split("/")[1])
    if principal.program is not None and request.resource.count("/") == 1 and mine:
        # What programs may do with their project's buckets is no role (`buckets.admission`).
        mine |= ADMIN_BUCKETS
    permissions = dict.fromkeys(request.permissions)
    return pool.message(
        "google.iam.v1.TestIamPermissionsResponse",
        permissions=[permission for permission in permissions if permission in mine],
    )


HANDLERS: Final[Handlers] = {
    "google.iam.v1.IAMPolicy.TestIamPermissions": test,
    "google.cloud.ml.v1.JobService.TestIamPermissions": test,
    "google.cloud.resourcemanager.v3.Projects.TestIamPermissions": test,
}


def _resource_faults(name: str) -> list[Violation]:
    """Return the violation of a name that is not `projects/P`, followed by pairs of collection and id."""
    parts = name.split("/")
    try:
        ProjectName.parse("/".join(parts[:2]), field="resource")
    except InvalidRequest as refused:
        return list(refused.violations)
    if len(parts) % 2 or not all(parts):
        text = f"{name!r} is not a name of the form projects/PROJECT/COLLECTION/ID/..."
        return [Violation("resource", text)]
    return []


def _permission_faults(permissions: list[str]) -> list[Violation]:
    """Return the violations of names that are not one permission each: the public method takes no
    wildcards."""
    return [
        Violation(
            f"permissions[{index}]",
            f"{permission!r} is not the name of one permission, such as aiplatform.customJobs.get.",
        )
        for index, permission in enumerate(permissions)
        if "*" in permission or permission.count(".") < 2
    ]
