"""Lets a principal call a method, or says what is missing and who can give it. Pure.

Every transport asks here, by the full name of the method. Whoever has a permission in some projects only is
asked again once the projects are known that the request names.
"""

from collections.abc import Iterable
from typing import Final

from trainshed.access.permissions import OF_THE_SERVICE, PERMISSIONS, ROLES
from trainshed.access.policy import member_of
from trainshed.access.principals import Principal
from trainshed.core.errors import PermissionDenied
from trainshed.core.names import project_number

_FOR_EVERYBODY: Final = frozenset(
    {
        "trainshed.v1.Service.GetStatus",
        "trainshed.v1.Service.WhoAmI",
        "trainshed.v1.Tokens.CreateOwn",
        "trainshed.v1.Tokens.List",
        "trainshed.v1.Tokens.Revoke",
    }
)
"""Whoever is known may ask, without any role; of tokens, about those of their own."""
_OF_NO_PROJECT: Final = frozenset(
    {
        "google.cloud.resourcemanager.v3.Projects.ListProjects",
        "google.cloud.resourcemanager.v3.Projects.SearchProjects",
    }
)
"""Methods that name no project, and show only what the caller may see."""


def authorize(principal: Principal, method: str, projects: Iterable[str] | None = None) -> None:
    """Let `principal` call `method` (full name), or raise PermissionDenied, which says what is missing.

    `projects` holds the id or number of every project that the request names. None means that the request was
    not read yet: who has the permission in some projects only must then be checked again once it was.
    """
    permission = PERMISSIONS.get(method)
    if permission is None:
        raise PermissionDenied(
            f"{principal.email} may not call {method}: no permission is defined for it"
        )
    rights = principal.rights
    if permission in rights.everywhere or method in _FOR_EVERYBODY:
        return
    if permission.startswith(OF_THE_SERVICE):
        raise PermissionDenied(
            f"{principal.email} may not call {method}: it concerns the whole service, and needs the "
            f"permission {permission} there. {_advice(principal, permission, '')}"
        )
    if not rights.anywhere(permission):
        raise PermissionDenied(
            f"{principal.email} may not call {method}: it needs the permission {permission}, which "
            f"{principal.email} has in no project. {_advice(principal, permission, 'PROJECT')}"
        )
    if projects is None or method in _OF_NO_PROJECT:
        return
    unique = dict.fromkeys(projects)
    foreign = [project for project in unique if permission not in _within(principal, project)]
    if foreign or not unique:
        mine = ", ".join(rights.where(permission))
        where = foreign[0] if foreign and foreign[0] not in ("", "-") else "PROJECT"
        what = f"names {', '.join(filter(None, foreign)) or 'no project'}"
        advice = (
            f"name what lies in {mine}"
            if principal.program is not None
            else f"name what lies there. {_advice(principal, permission, where)}"
        )
        raise PermissionDenied(
            f"{principal.email} has the permission {permission} in the project {mine} only, and the request "
            f"{what}: {advice}"
        )


def needed(method: str, project: str) -> str:
    """Return which role a method needs, and who gives it. `project`: "-" = any."""
    permission = PERMISSIONS[method]
    if permission.startswith(OF_THE_SERVICE):
        return f"{_least(permission)} in all projects, which an owner of the service gives"
    where = "a project" if project == "-" else project
    return f"{_least(permission)} in {where}, which its owners give"


def _least(permission: str) -> str:
    """Return the role with the permission that has the fewest others: owners hold all there are."""
    roles = [role for role, held in ROLES.items() if permission in held]
    return min(roles, key=lambda role: len(ROLES[role]))


def _within(principal: Principal, project: str) -> frozenset[str]:
    """Return what is held in a project by its id or number."""
    held = principal.rights.projects
    if project.isdecimal() and project not in held:
        project = next((name for name in held if str(project_number(name)) == project), project)
    return held.get(project, frozenset())


def _advice(principal: Principal, permission: str, project: str) -> str:
    """Return who can give the permission, and how. `project`: "" = it concerns the whole service."""
    if principal.program is not None:
        return "Have a person do that."
    least = _least(permission)
    if not project:
        return (
            "An owner of the service can give it: trainshed iam "
            f"{member_of(principal.email)} {least} --project -"
        )
    return (
        f"An owner can give it: gcloud projects add-iam-policy-binding {project} "
        f"--member={member_of(principal.email)} --role={least}"
    )
