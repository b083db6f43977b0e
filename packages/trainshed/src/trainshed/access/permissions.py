"""The one permission table says which permission each API method needs; and the roles that can be given, by
their public names, with the permissions that each one holds.

Both are data (permissions.toml). A method without a row cannot be called. A role holds a permission if one of
its patterns matches: `aiplatform.*` is everything of that API. `authorization` asks both.
"""

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

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
_MEASURED: Final = ("aiplatform.tensorboard", "aiplatform.contexts.", "aiplatform.executions.")
_MEASURES: Final = frozenset({"trials", "artifacts", "metadataStores", "logEntries"})
"""What programs and their experiments write in great number is no matter of an audit."""
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
    permission = PERMISSIONS[method]
    _, resource, verb = permission.split(".")
    return not (verb in _READS or resource in _MEASURES or permission.startswith(_MEASURED))


def _patterns(holder: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patterns of a group or a role, with those of the groups that it has."""
    yield from holder.get("may", ())
    for group in holder.get("of", ()):
        yield from _patterns(_GROUPS[group])


def _permissions(holder: Mapping[str, Any]) -> frozenset[str]:
    patterns, refused = tuple(_patterns(holder)), holder.get("but", ())
    return frozenset(
        permission
        for permission in _ALL
        if any(fnmatchcase(permission, pattern) for pattern in patterns)
        and not any(fnmatchcase(permission, pattern) for pattern in refused)
    )


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
