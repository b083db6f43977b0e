"""The roles that can be given, by their public names, and the permissions that each one holds. Pure.

A role holds a permission if one of its patterns matches: `aiplatform.*` is everything of that API.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from trainshed.access.permissions import PERMISSIONS

OWNER: Final = "roles/owner"

VIEW_OBJECTS: Final = frozenset({"storage.objects.get", "storage.objects.list"})
USE_OBJECTS: Final = VIEW_OBJECTS | {
    "storage.objects.create",
    "storage.objects.update",
    "storage.objects.delete",
}
ADMIN_BUCKETS: Final = USE_OBJECTS | {
    f"storage.buckets.{verb}"
    for verb in ("get", "list", "create", "update", "delete", "getIamPolicy", "setIamPolicy")
}
_ALL: Final = frozenset({*PERMISSIONS.values(), *ADMIN_BUCKETS, "iam.serviceAccounts.actAs"})
_EVERYBODY: Final = (
    "aiplatform.permissions.test",
    "ml.permissions.test",
    "trainshed.service.get",
    "resourcemanager.projects.get",
    "resourcemanager.projects.list",
)
_LOOK: Final = (
    *_EVERYBODY,
    "trainshed.jobs.get",
    "trainshed.jobs.list",
    "trainshed.jobs.readLogs",
    "trainshed.models.get",
    "trainshed.quotas.get",
    "logging.logEntries.list",
)
_WORK: Final = (
    *_LOOK,
    "trainshed.jobs.*",
    "trainshed.secrets.list",
    "logging.logEntries.create",
    "storage.objects.*",
    "storage.buckets.get",
    "storage.buckets.list",
    "storage.buckets.create",
)
_OF_OWNERS: Final = (
    "*.setIamPolicy",
    "*.getIamPolicy",
    "resourcemanager.projects.create",
    "resourcemanager.projects.delete",
    "trainshed.tokens.*",
    "trainshed.audit.*",
    "trainshed.quotas.set",
    "trainshed.nodes.drain",
    "trainshed.secrets.rotateKey",
    "iam.serviceAccounts.getAccessToken",
    "iam.serviceAccountKeys.create",
)
"""What an editor does not hold."""


def _read(api: str) -> tuple[str, ...]:
    verbs = ("get", "list", "getConfig", "read", "batchRead", "query*")
    return tuple(f"{api}.*.{verb}" for verb in verbs)


def _role(*patterns: str, without: Iterable[str] = ()) -> frozenset[str]:
    refused = tuple(without)
    return frozenset(
        permission
        for permission in _ALL
        if any(fnmatchcase(permission, pattern) for pattern in patterns)
        and not any(fnmatchcase(permission, pattern) for pattern in refused)
    )


ROLES: Final[Mapping[str, frozenset[str]]] = {
    "roles/aiplatform.viewer": _role(*_LOOK, *_read("aiplatform")),
    "roles/aiplatform.user": _role(*_WORK, "aiplatform.*"),
    "roles/aiplatform.admin": _role(*_WORK, "aiplatform.*", "storage.*", "trainshed.secrets.set"),
    "roles/ml.viewer": _role(*_LOOK, *_read("ml")),
    "roles/ml.developer": _role(*_WORK, "ml.*"),
    "roles/ml.jobOwner": _role(*_LOOK, "ml.jobs.*", "trainshed.jobs.*"),
    "roles/ml.admin": _role(*_WORK, "ml.*", "storage.*", "trainshed.secrets.set"),
    "roles/storage.objectViewer": _role(*_EVERYBODY, *VIEW_OBJECTS),
    "roles/storage.objectUser": _role(*_EVERYBODY, *USE_OBJECTS),
    "roles/storage.objectAdmin": _role(*_EVERYBODY, *USE_OBJECTS),
    "roles/storage.admin": _role(*_EVERYBODY, "storage.*"),
    "roles/logging.viewer": _role(*_EVERYBODY, "logging.logEntries.list"),
    "roles/iam.serviceAccountUser": _role(*_EVERYBODY, "iam.serviceAccounts.actAs"),
    "roles/iam.serviceAccountTokenCreator": _role(
        *_EVERYBODY, "iam.serviceAccounts.getAccessToken"
    ),
    "roles/iam.serviceAccountAdmin": _role(
        *_EVERYBODY,
        "iam.serviceAccounts.*",
        without=("iam.serviceAccounts.actAs", "iam.serviceAccounts.getAccessToken"),
    ),
    "roles/iam.serviceAccountKeyAdmin": _role(
        *_EVERYBODY,
        "iam.serviceAccountKeys.*",
        "iam.serviceAccounts.get",
        "iam.serviceAccounts.list",
    ),
    "roles/viewer": _role(
        *_LOOK,
        *_read("aiplatform"),
        *_read("ml"),
        *VIEW_OBJECTS,
        "storage.buckets.get",
        "storage.buckets.list",
        "trainshed.nodes.list",
        "trainshed.secrets.list",
        "iam.*.get",
        "iam.*.list",
    ),
    "roles/editor": _role("*", without=_OF_OWNERS),
    OWNER: _ALL,
}
"""Every role that a policy may name. In a role that is given in one project, what concerns the whole service
(nodes, settings, other people's tokens) has no effect."""

_READ_BY_PROGRAMS: Final = frozenset(
    permission
    for permission in PERMISSIONS.values()
    if permission.startswith(("aiplatform.", "ml.", "logging.", "resourcemanager."))
    and permission.rpartition(".")[2] in ("get", "list", "getConfig", "test")
)
PROGRAM: Final[frozenset[str]] = _READ_BY_PROGRAMS | _role(
    # A program may do what the default account of its job may do on the hosted services, except remove jobs
    # and their logs, so that people can still look at them. `api.calls.call` makes sure that a job which it
    # submits has no more rights than it has itself, `api.resources.jobs` that it cancels only what it made.
    *(
        f"{jobs}.{verb}"
        for jobs in (
            "aiplatform.customJobs",
            "aiplatform.hyperparameterTuningJobs",
            "aiplatform.trainingPipelines",
            "ml.jobs",
        )
        for verb in ("create", "cancel")
    ),
    *(f"aiplatform.datasets.{verb}" for verb in ("create", "update", "delete", "import", "export")),
    # Models are copied with the rights of the program's project, like everything that it copies itself.
    *(f"aiplatform.models.{verb}" for verb in ("upload", "update", "delete", "export")),
    "aiplatform.modelEvaluations.import",
    # Programs log experiments from inside jobs.
    "aiplatform.metadataStores.create",
    "aiplatform.contexts.*",
    "aiplatform.artifacts.*",
    "aiplatform.executions.*",
    "aiplatform.tensorboard*",
    "logging.logEntries.create",
    *(f"{api}.studies.{verb}" for api in ("aiplatform", "ml") for verb in ("create", "delete")),
    *(
        f"{api}.trials.{verb}"
        for api in ("aiplatform", "ml")
        for verb in ("create", "update", "delete")
    ),
    "trainshed.service.get",
    "trainshed.jobs.list",
    "trainshed.jobs.get",
    "trainshed.jobs.readLogs",
)
"""What the program of a job may do in its job's project."""
