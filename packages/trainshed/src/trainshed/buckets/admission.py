"""Access control of the data plane: permissions of a caller on a bucket. Pure.

- Users have the permissions of their roles (`reach`).
- A program of a job has all permissions on the buckets of its own project.
- Both may read and write objects of shared buckets. Users need a role with write access in any project.
- For other buckets, the bucket's IAM policy decides.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final, cast

from msgspec import Struct, field

from trainshed.access.permissions import ADMIN_BUCKETS, USE_OBJECTS, VIEW_OBJECTS
from trainshed.access.policy import normalize_member, project_of_account
from trainshed.access.principals import member_of
from trainshed.buckets.callers import PERMISSIONS, Caller, Reach
from trainshed.buckets.errors import Forbidden, Unauthenticated
from trainshed.buckets.names import Endpoint, Target
from trainshed.buckets.setup import BucketRules
from trainshed.core.names import DEFAULT_BUCKET, default_bucket, project_number

_GET, _LIST = "storage.objects.get", "storage.objects.list"
_CREATE, _UPDATE = "storage.objects.create", "storage.objects.update"
_DELETE = "storage.objects.delete"
_VIEW_BUCKET = frozenset({"storage.buckets.get"})
GRANTS: Mapping[str, frozenset[str]] = {
    "roles/storage.objectViewer": VIEW_OBJECTS,
    "roles/storage.objectUser": USE_OBJECTS,
    "roles/storage.objectAdmin": USE_OBJECTS,
    "roles/storage.admin": ADMIN_BUCKETS,
    "roles/storage.legacyObjectReader": frozenset({_GET}),
    "roles/storage.legacyBucketReader": _VIEW_BUCKET | {_LIST},
}
"""The permissions that each role grants in a bucket's IAM policy. Other roles grant no permissions. For
example, `objectCreator` would allow creating objects but not replacing them. The service cannot distinguish
these two cases before the content arrives."""
PUBLIC = frozenset({"allUsers", "allAuthenticatedUsers"})
"""The members of an IAM policy that represent the public."""
_SHARED = USE_OBJECTS | _VIEW_BUCKET
_MOUNTED = USE_OBJECTS
"""The permissions required to mount a bucket in a program. Accesses through the mount are not checked."""


class BucketAccess(Struct, frozen=True):
    """The properties of a bucket that determine who may access it."""

    name: str
    #: The project of the bucket.
    project: str
    #: Whether programs of all projects may use the bucket.
    is_shared: bool = False
    #: The bindings of the bucket's IAM policy.
    bindings: Sequence[Mapping[str, Any]] = field(default_factory=tuple[Mapping[str, Any], ...])


def is_allowed(caller: Caller, permission: str, access: BucketAccess) -> bool:
    """Whether the caller has a permission on a bucket."""
    if caller.email is None:
        return _is_granted({"allUsers"}, permission, access)
    if caller.program is not None:
        return _is_open_to_program(caller.program.project, caller.email, permission, access)
    reach = caller.reaches(access.project)
    if access.is_shared:
        reach = max(reach, min(Reach.USE, max(caller.reach.values(), default=reach)))
    members = PUBLIC | {member_of(caller.email)}
    return permission in PERMISSIONS[reach] or _is_granted(members, permission, access)


def _is_open_to_program(project: str, email: str | None, permission: str, access: BucketAccess) -> bool:
    """Whether a program of a project has a permission on a bucket. `email`: the program's service account;
    None = any account of the project."""
    if project == access.project or (access.is_shared and permission in _SHARED):
        return True
    members = PUBLIC | {f"projectEditor:{project}", f"projectOwner:{project}"}
    if email is not None:
        members |= {normalize_member(f"serviceAccount:{email}")}
    return _is_granted(members, permission, access)


def held_permissions(caller: Caller, permissions: Sequence[str], access: BucketAccess) -> list[str]:
    """Return the requested permissions that the caller has on a bucket, without duplicates."""
    return [
        permission
        for permission in dict.fromkeys(permissions)
        if permission in ADMIN_BUCKETS and is_allowed(caller, permission, access)
    ]


def admit(caller: Caller, permission: str, access: BucketAccess | None) -> None:
    """Raise unless the caller has the permission. `access`: None if the bucket does not exist, which only
    callers with an identity may learn. Raises Unauthenticated, Forbidden."""
    if access is not None and is_allowed(caller, permission, access):
        return
    if caller.email is None:
        raise anonymous_error(permission)
    if access is None:
        return
    if caller.program is None:
        raise Forbidden(
            f"{caller.email} does not have {permission} access to the Google Cloud Storage bucket "
            f"{access.name}. An owner can grant a role on the bucket's project "
            "(gcloud projects add-iam-policy-binding), or in the bucket's IAM policy."
        )
    raise Forbidden(
        f"{caller.email} does not have {permission} access to the Google Cloud Storage bucket "
        f"{access.name}. The bucket belongs to another project than the job (project {caller.project}). "
        "A program can access only buckets of its own project and shared buckets. Grant the job's service "
        "account a role in the bucket's IAM policy, or share the bucket."
    )


def admit_project(caller: Caller, permission: str, project: str) -> None:
    """Raise unless the caller may list or create buckets of a project. Raises Unauthenticated, Forbidden."""
    if caller.email is None:
        raise anonymous_error(permission)
    if caller.program is None and permission not in PERMISSIONS[caller.reaches(project)]:
        raise Forbidden(
            f"{caller.email} does not have {permission} access to the project {project}. An owner can grant "
            f"a role with this permission: gcloud projects add-iam-policy-binding {project} "
            f"--member={member_of(caller.email)} --role=roles/storage.admin"
        )
    if caller.program is not None and project != caller.project:
        raise Forbidden(
            f"{caller.email} does not have {permission} access to the project {project}. "
            f"Its job belongs to the project {caller.project}; use that project."
        )


_SDK_STAGING: Final = "-vertex-staging-"
"""Separator after the project in the names of the Vertex SDK's staging buckets."""


def admit_name(caller: Caller, bucket: str, rules: BucketRules) -> None:
    """Raise Forbidden if the name is reserved for the staging bucket of another project. All projects share
    one namespace for buckets. The creator of such a bucket would receive the other project's code."""
    if caller.program is not None:
        own = [caller.program.project]
    elif caller.reaches("") < Reach.WORK:
        own = [project for project, reach in caller.reach.items() if reach >= Reach.WORK]
    else:
        return
    project, mark, _ = bucket.partition(_SDK_STAGING)
    if mark:
        is_others = project not in own
    else:
        defaults = [default_bucket(rules.project, name) for name in own]
        is_others = bucket.startswith(f"{DEFAULT_BUCKET}-") and bucket not in defaults
    if is_others:
        raise Forbidden(
            f"{caller.email} may not create the bucket {bucket}: this name is reserved for the code of the "
            "project whose ID the name contains. Choose another name, or ask a user of that project to "
            "create the bucket."
        )


def admit_policy(caller: Caller, bindings: Sequence[Mapping[str, Any]]) -> None:
    """Raise Forbidden if a program of a job would make a bucket public."""
    public = {member for binding in bindings for member in _members(binding)} & PUBLIC
    if caller.program is not None and public:
        raise Forbidden(
            f"{caller.email} may not open a bucket to {' or '.join(sorted(public))}: a job cannot make a "
            "bucket public. Grant the role to service accounts, or have a user set this policy."
        )


def is_visible(project: str, access: BucketAccess) -> bool:
    """Whether programs of a project see a bucket as `/gcs/NAME`, with any service account."""
    return all(_is_open_to_program(project, None, permission, access) for permission in _MOUNTED)


def is_readable(project: str, access: BucketAccess, account: str | None = None) -> bool:
    """Whether programs of a project may read objects of a bucket as this service account. `account`: None =
    check whether at least one of the project's accounts may read them."""
    if account is not None:
        return _is_open_to_program(project, account, _GET, access)
    own = (project, str(project_number(project)))
    accounts = {
        member.removeprefix("serviceAccount:")
        for binding in access.bindings
        for member in _members(binding)
        if member.startswith("serviceAccount:") and project_of_account(member.partition(":")[2]) in own
    }
    return any(_is_open_to_program(project, email, _GET, access) for email in (None, *accounts))


def required_permissions(method: str, target: Target) -> Iterator[tuple[str, str]]:
    """Yield (bucket, permission) for a request, except for listing and creating buckets."""
    bucket = target.bucket
    match target.endpoint:
        case Endpoint.UPLOAD:
            yield bucket, _CREATE
        case Endpoint.DOWNLOAD:
            yield bucket, _GET
        case Endpoint.XML:
            yield from _of_xml(method, target)
        case Endpoint.METADATA if target.object:
            yield from _of_object(method, target)
        case Endpoint.METADATA if target.is_objects:
            yield bucket, _LIST
        case Endpoint.METADATA if bucket:
            yield from _of_bucket(method, target)
        case _:
            return


def _of_xml(method: str, target: Target) -> Iterator[tuple[str, str]]:
    if target.to_bucket:
        yield target.bucket, _GET
        yield target.to_bucket, _CREATE
    elif not target.object:
        yield target.bucket, _LIST
    else:
        methods = {"PUT": _CREATE, "POST": _CREATE, "DELETE": _DELETE}
        yield target.bucket, methods.get(method, _GET)


def _of_object(method: str, target: Target) -> Iterator[tuple[str, str]]:
    match target.action:
        case None:
            methods = {"PATCH": _UPDATE, "PUT": _UPDATE, "DELETE": _DELETE}
            yield target.bucket, methods.get(method, _GET)
        case "compose":
            yield from ((target.bucket, permission) for permission in (_GET, _CREATE))
        case "moveTo":
            yield from ((target.bucket, permission) for permission in (_GET, _CREATE, _DELETE))
        case "copyTo" | "rewriteTo":
            yield target.bucket, _GET
            yield target.to_bucket, _CREATE
        case _:
            yield target.bucket, _GET


def _of_bucket(method: str, target: Target) -> Iterator[tuple[str, str]]:
    match target.action:
        case None:
            methods = {"PATCH": "update", "PUT": "update", "DELETE": "delete"}
            yield target.bucket, f"storage.buckets.{methods.get(method, 'get')}"
        case "iam":
            yield (target.bucket, f"storage.buckets.{'setIam' if method == 'PUT' else 'getIam'}Policy")
        case "iam/testPermissions":
            return  # No permission is required to test one's own permissions.
        case "storageLayout" | "managedFolders":
            yield target.bucket, _LIST
        case _:
            yield target.bucket, "storage.buckets.get"


def _is_granted(members: Set[str], permission: str, access: BucketAccess) -> bool:
    """Whether the bucket's policy grants a permission to one of these members."""
    return any(
        permission in GRANTS.get(str(binding.get("role")), ())
        and not binding.get("condition")
        and not members.isdisjoint(_members(binding))
        for binding in access.bindings
    )


def _members(binding: Mapping[str, Any]) -> list[str]:
    members = binding.get("members")
    if not isinstance(members, list):
        return []
    return [normalize_member(str(member)) for member in cast("list[Any]", members)]


def is_public(binding: Mapping[str, Any]) -> bool:
    """Whether a binding of a policy grants a role to the public."""
    return not PUBLIC.isdisjoint(_members(binding))


def without_members(binding: Mapping[str, Any], members: Set[str]) -> dict[str, Any]:
    kept = [member for member in _members(binding) if member not in members]
    return {**binding, "members": kept}


def anonymous_error(permission: str) -> Unauthenticated:
    """Return the error for a caller without credentials."""
    return Unauthenticated(
        f"Anonymous caller does not have {permission} access. Send `Authorization: Bearer TOKEN`, or use the "
        "address that `trainshed env` prints as STORAGE_EMULATOR_HOST: it contains a key for clients that "
        "send no token."
    )
