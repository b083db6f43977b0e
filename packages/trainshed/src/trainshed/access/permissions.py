"""The permission table: the permission that each API method requires, and the permissions of each role. Pure.

The data is in permissions.toml. A method without an entry cannot be called. A role has a permission if one of
the role's patterns matches it: `aiplatform.*` matches the whole API. Every transport calls `authorize` with
the full name of the method. If the caller has the permission only in some projects, the transport calls
`authorize` again with the projects in the request.
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

SERVICE_PREFIXES: Final = ("trainshed.nodes.", "trainshed.tokens.", "resourcemanager.projects.create")
"""Prefixes of permissions that apply to the whole service. A role in a single project does not grant them."""
_READS: Final = frozenset(
    {
        *("get", "list", "read", "batchRead", "test", "explain", "getConfig", "getIamPolicy"),
        *("readLogs", "tensorboard"),
        *("queryContextLineageSubgraph", "queryExecutionInputsAndOutputs"),
    }
)
"""Verbs of permissions that only read."""
MEASUREMENTS: Final = frozenset(
    {
        *("trials", "artifacts", "contexts", "executions", "logEntries"),
        *("tensorboardExperiments", "tensorboardRuns", "tensorboardTimeSeries"),
    }
)
"""Resources that programs write in large numbers. Only their deletions are recorded in the audit log."""
_APIS: Final = {"ml": "ml", "resourcemanager": "resourcemanager", "admin": "iam"}
"""First part of a permission, by the third part of the service's name. Default: aiplatform."""
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
"""The required permission of each method, by full method name."""


def is_recorded(method: str) -> bool:
    """Return whether calls of this method are recorded in the audit log."""
    _, resource, verb = PERMISSIONS[method].split(".")
    return verb not in _READS and (resource not in MEASUREMENTS or verb == "delete")


def _patterns(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patterns of a group or a role (`holder`), including the patterns of the groups that `holder`
    contains."""
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
"""The permissions of every role that a policy may contain."""
PROGRAM: Final = _permissions(_GROUPS["program"])
"""The permissions that a job's program has in the job's project."""

_ALWAYS_ALLOWED: Final = frozenset(
    {
        "trainshed.v1.Service.GetStatus",
        "trainshed.v1.Service.WhoAmI",
        "trainshed.v1.Tokens.CreateOwn",
        "trainshed.v1.Tokens.List",
        "trainshed.v1.Tokens.Revoke",
    }
)
"""Methods that every authenticated caller may call. Token methods then apply only to the caller's own tokens.
"""
_WITHOUT_PROJECT: Final = frozenset(
    {
        "google.cloud.resourcemanager.v3.Projects.ListProjects",
        "google.cloud.resourcemanager.v3.Projects.SearchProjects",
    }
)
"""Methods whose requests contain no project. They return only the projects that the caller may see."""


def authorize(principal: Principal, method: str, projects: Iterable[str] | None = None) -> None:
    """Raise PermissionDenied, with the missing permission, unless `principal` may call `method` (full name).

    Args:
        principal: The caller.
        method: The full name of the method.
        projects: The ID or number of every project in the request. None = the request was not read yet; if
            the caller has the permission in some projects only, check again afterwards.
    """
    permission = PERMISSIONS.get(method)
    if permission is None:
        raise PermissionDenied(
            f"{principal.email} may not call {method}, because access/permissions.toml defines no permission "
            "for this method. Report this error to the service's developers."
        )
    rights = principal.rights
    if permission in rights.everywhere or method in _ALWAYS_ALLOWED:
        return
    if permission.startswith(SERVICE_PREFIXES):
        raise PermissionDenied(
            f"{principal.email} may not call {method}. The method affects the whole service and requires the "
            f"permission {permission} there. {_advice(principal, permission, None)}"
        )
    if not rights.anywhere(permission):
        raise PermissionDenied(
            f"{principal.email} may not call {method}. The method requires the permission {permission}, "
            f"which {principal.email} has in no project. {_advice(principal, permission, 'PROJECT')}"
        )
    if projects is None or method in _WITHOUT_PROJECT:
        return
    unique = dict.fromkeys(projects)
    foreign = [project for project in unique if permission not in _within(principal, project)]
    if foreign or not unique:
        mine = ", ".join(rights.where(permission))
        where = foreign[0] if foreign and foreign[0] not in ("", "-") else "PROJECT"
        requested = ", ".join(filter(None, foreign)) or "no project"
        advice = (
            f"Specify resources of {mine}."
            if principal.program is not None
            else f"Specify resources of that project. {_advice(principal, permission, where)}"
        )
        raise PermissionDenied(
            f"{principal.email} has the permission {permission} only in the project {mine}, but the request "
            f"specifies {requested}. {advice}"
        )


def least_role(permission: str) -> str:
    """Return the role that grants the permission and the fewest other permissions. The owner role grants
    every permission."""
    roles = [role for role, held in ROLES.items() if permission in held]
    return min(roles, key=lambda role: len(ROLES[role]))


def _within(principal: Principal, project: str) -> frozenset[str]:
    """Return the permissions in a project, which is identified by ID or number."""
    held = principal.rights.projects
    if project.isdecimal() and project not in held:
        project = next((name for name in held if str(project_number(name)) == project), project)
    return held.get(project, frozenset())


def _advice(principal: Principal, permission: str, project: str | None) -> str:
    """Return advice on how to obtain the permission. `project`: None = the whole service."""
    if principal.program is not None:
        return "Ask a user to do this."
    least = least_role(permission)
    if project is None:
        return (
            "An owner of the service can grant it: trainshed iam "
            f"{member_of(principal.email)} {least} --project -"
        )
    return (
        f"An owner can grant it: gcloud projects add-iam-policy-binding {project} "
        f"--member={member_of(principal.email)} --role={least}"
    )
