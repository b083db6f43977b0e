"""The one permission table says which permission each API method needs; the roles that can be given, by their
public names, with the permissions that each one holds; and whether somebody may call a method, or what is
missing and who can give it. Pure.

Table and roles are data (permissions.toml). A method without a row cannot be called. A role holds a
permission if one of its patterns matches: `aiplatform.*` is everything of that API. Every transport asks
`authorize` by the full name of the method; whoever has a permission in some projects only is asked again once
the projects are known that the request names.
"""

import fnmatch
import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trainshed.access.principals import Principal, member_of
from trainshed.core.errors import PermissionDenied
from trainshed.core.names import project_number

OF_THE_SERVICE: Final = ("trainshed.nodes.", "trainshed.tokens.", "resourcemanager.projects.create")
"""How permissions begin that concern no project: who has them in some projects only cannot use them."""
_READS: Final = frozenset(
    {
        *("get", "list", "read", "batchRead", "test", "explain", "getConfig", "getIamPolicy"),
        *("readLogs", "tensorboard"),
        *("queryContextLineageSubgraph", "queryExecutionInputsAndOutputs"),
    }
)
"""The verbs of permissions to look at something."""
MEASURES: Final = frozenset(
    {
        *("trials", "artifacts", "contexts", "executions", "logEntries"),
        *("tensorboardExperiments", "tensorboardRuns", "tensorboardTimeSeries"),
    }
)
"""Resources that programs write in great number: the audit contains only their deletions."""
_APIS: Final = {"ml": "ml", "resourcemanager": "resourcemanager", "admin": "iam"}
"""What permissions of services begin with that are not of Vertex, by the third part of their names."""
_TABLES: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("permissions.toml").read_text("utf-8")
)


def _methods() -> Iterator[tuple[str, str]]:
    for service, nouns in _TABLES["resources"].items():
        api = _APIS.get(service.split(".")[2], "aiplatform")
        for noun, verbs in nouns.items():
            plural = noun if noun.endswith("Series") else f"{noun}s".replace("dys", "dies")
            for verb in verbs.split():
                method = verb[0].upper() + verb[1:]
                method += plural if verb in ("list", "batchCreate") else noun
                yield f"{service}.{method}", f"{api}.{plural[0].lower()}{plural[1:]}.{verb}"
    for service, methods in _TABLES["methods"].items():
        for method, permission in methods.items():
            yield f"{service}.{method}", permission


PERMISSIONS: Final[Mapping[str, str]] = dict(_methods())
"""Permissions by the full names of methods."""


def is_recorded(method: str) -> bool:
    """Whether the audit tells of calls of this method."""
    _, resource, verb = PERMISSIONS[method].split(".")
    return verb not in _READS and (resource not in MEASURES or verb == "delete")


def _patterns(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patterns of a group or a role, with those of the groups that it has."""
    yield from holder.get("may", ())
    for group in holder.get("of", ()):
        yield from _patterns(_GROUPS[group])


def _permissions(holder: Mapping[str, Any]) -> frozenset[str]:
    held = frozenset[str]().union(*map(_matching, _patterns(holder)))
    return held.difference(*map(_matching, holder.get("but", ())))


@functools.cache
def _matching(pattern: str) -> frozenset[str]:
    return frozenset(fnmatch.filter(_ALL, pattern))


_GROUPS: Final = _TABLES["groups"]
VIEW_OBJECTS: Final = frozenset(_patterns(_GROUPS["view_objects"]))
USE_OBJECTS: Final = frozenset(_patterns(_GROUPS["use_objects"]))
ADMIN_BUCKETS: Final = frozenset(_patterns(_GROUPS["admin_buckets"]))
_ALL: Final = frozenset({*PERMISSIONS.values(), *ADMIN_BUCKETS, "iam.serviceAccounts.actAs"})
OWNER: Final = "roles/owner"
ROLES: Final[Mapping[str, frozenset[str]]] = {
    name: _permissions(role) for name, role in _TABLES["roles"].items()
}
"""Every role that a policy may name, with its permissions."""
PROGRAM: Final = _permissions(_GROUPS["program"])
"""What the program of a job may do in its job's project."""

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
            f"permission {permission} there. {_advice(principal, permission, None)}"
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


def least_role(permission: str) -> str:
    """Return the role with the permission that has the fewest others: owners hold all there are."""
    roles = [role for role, held in ROLES.items() if permission in held]
    return min(roles, key=lambda role: len(ROLES[role]))


def _within(principal: Principal, project: str) -> frozenset[str]:
    """Return what is held in a project by its id or number."""
    held = principal.rights.projects
    if project.isdecimal() and project not in held:
        project = next((name for name in held if str(project_number(name)) == project), project)
    return held.get(project, frozenset())


def _advice(principal: Principal, permission: str, project: str | None) -> str:
    """Return who can give the permission, and how. `project`: None = it concerns the whole service."""
    if principal.program is not None:
        return "Have a person do that."
    least = least_role(permission)
    if project is None:
        return (
            "An owner of the service can give it: trainshed iam "
            f"{member_of(principal.email)} {least} --project -"
        )
    return (
        f"An owner can give it: gcloud projects add-iam-policy-binding {project} "
        f"--member={member_of(principal.email)} --role={least}"
    )
