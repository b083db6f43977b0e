"""The one permission table says which permission each API method needs; and the roles that can be given, by
their public names, with the permissions that each one holds. Pure.

A method without a row cannot be called. A role holds a permission if one of its patterns matches:
`aiplatform.*` is everything of that API. `authorization` asks both.
"""

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

_VERTEX = "google.cloud.aiplatform.v1"
_MODELS = f"{_VERTEX}.ModelService"
_DATASETS = f"{_VERTEX}.DatasetService"
_TENSORBOARDS = f"{_VERTEX}.TensorboardService"
_METADATA = f"{_VERTEX}.MetadataService"
_ML_JOBS = "google.cloud.ml.v1.JobService"
_ML_PROJECTS = "google.cloud.ml.v1.ProjectManagementService"
_OPERATIONS = "google.longrunning.Operations"
_LOCATIONS = "google.cloud.location.Locations"
_VIZIER = f"{_VERTEX}.VizierService"
_PROJECTS = "google.cloud.resourcemanager.v3.Projects"
_IAM = "google.iam.admin.v1.IAM"

OF_THE_SERVICE: Final = (
    "trainshed.nodes.",
    "trainshed.tokens.",
    "resourcemanager.projects.create",
)
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

_APIS: Final = {_ML_JOBS: "ml", _PROJECTS: "resourcemanager", _IAM: "iam"}
"""What permissions of services begin with that are not of Vertex."""
_RESOURCES: Final = (
    (f"{_VERTEX}.JobService", "CustomJob", "create get list cancel delete"),
    (f"{_VERTEX}.JobService", "HyperparameterTuningJob", "create get list cancel delete"),
    (f"{_VERTEX}.PipelineService", "TrainingPipeline", "create get list cancel delete"),
    (_MODELS, "Model", "upload get list update delete"),
    (_MODELS, "ModelEvaluation", "import get list"),
    (_DATASETS, "Dataset", "create get list update delete"),
    (_METADATA, "MetadataStore", "create get list delete"),
    (_METADATA, "Context", "create get list update delete"),
    (_METADATA, "Artifact", "create get list update delete"),
    (_METADATA, "Execution", "create get list update delete"),
    (_TENSORBOARDS, "Tensorboard", "create get list update delete"),
    (_TENSORBOARDS, "TensorboardExperiment", "create get list update delete"),
    (_TENSORBOARDS, "TensorboardRun", "create get list update delete batchCreate"),
    (_TENSORBOARDS, "TensorboardTimeSeries", "create get list update delete batchCreate"),
    (_VIZIER, "Study", "create get list delete"),
    (_VIZIER, "Trial", "create get list delete"),
    (_ML_JOBS, "Job", "create get list cancel update"),
    (_PROJECTS, "Project", "create get list update delete undelete"),
    (_IAM, "ServiceAccount", "create get list delete disable enable"),
    (_IAM, "ServiceAccountKey", "create get list delete"),
)
"""Services, resources, and the verbs that their methods and permissions share: `GetStudy` needs
`aiplatform.studies.get`."""


def _of_resources() -> Iterator[tuple[str, str]]:
    for service, noun, verbs in _RESOURCES:
        api = _APIS.get(service, "aiplatform")
        plural = noun if noun.endswith("Series") else f"{noun}s".replace("dys", "dies")
        for verb in verbs.split():
            method = verb[0].upper() + verb[1:]
            method += plural if verb in ("list", "batchCreate") else noun
            yield f"{service}.{method}", f"{api}.{plural[0].lower()}{plural[1:]}.{verb}"


PERMISSIONS: Final[Mapping[str, str]] = {
    **dict(_of_resources()),
    f"{_MODELS}.CopyModel": "aiplatform.models.upload",
    f"{_MODELS}.ListModelVersions": "aiplatform.models.list",
    f"{_MODELS}.MergeVersionAliases": "aiplatform.models.update",
    f"{_MODELS}.DeleteModelVersion": "aiplatform.models.delete",
    f"{_DATASETS}.ImportData": "aiplatform.datasets.import",
    f"{_METADATA}.AddContextArtifactsAndExecutions": "aiplatform.contexts.addContextArtifactsAndExecutions",
    f"{_METADATA}.AddContextChildren": "aiplatform.contexts.addContextChildren",
    f"{_METADATA}.AddExecutionEvents": "aiplatform.executions.addExecutionEvents",
    f"{_METADATA}.QueryContextLineageSubgraph": "aiplatform.contexts.queryContextLineageSubgraph",
    f"{_METADATA}.QueryExecutionInputsAndOutputs": "aiplatform.executions.queryExecutionInputsAndOutputs",
    f"{_TENSORBOARDS}.WriteTensorboardRunData": "aiplatform.tensorboardRuns.write",
    f"{_TENSORBOARDS}.WriteTensorboardExperimentData": "aiplatform.tensorboardExperiments.write",
    f"{_TENSORBOARDS}.ReadTensorboardTimeSeriesData": "aiplatform.tensorboardTimeSeries.read",
    f"{_TENSORBOARDS}.BatchReadTensorboardTimeSeriesData": "aiplatform.tensorboardTimeSeries.batchRead",
    f"{_OPERATIONS}.GetOperation": "aiplatform.operations.get",
    f"{_OPERATIONS}.ListOperations": "aiplatform.operations.list",
    f"{_OPERATIONS}.WaitOperation": "aiplatform.operations.get",
    f"{_OPERATIONS}.CancelOperation": "aiplatform.operations.cancel",
    f"{_OPERATIONS}.DeleteOperation": "aiplatform.operations.delete",
    f"{_LOCATIONS}.GetLocation": "aiplatform.locations.get",
    f"{_LOCATIONS}.ListLocations": "aiplatform.locations.list",
    f"{_ML_PROJECTS}.GetConfig": "ml.projects.getConfig",
    "google.cloud.ml.v1.Operations.ListOperations": "ml.operations.list",
    "google.cloud.ml.v1.Operations.GetOperation": "ml.operations.get",
    # Anyone may ask what they may do, so this needs a permission that every role holds.
    "google.iam.v1.IAMPolicy.TestIamPermissions": "aiplatform.permissions.test",
    f"{_ML_JOBS}.TestIamPermissions": "ml.permissions.test",
    f"{_VIZIER}.LookupStudy": "aiplatform.studies.get",
    f"{_VIZIER}.SuggestTrials": "aiplatform.trials.create",
    f"{_VIZIER}.AddTrialMeasurement": "aiplatform.trials.update",
    f"{_VIZIER}.CompleteTrial": "aiplatform.trials.update",
    f"{_VIZIER}.StopTrial": "aiplatform.trials.update",
    f"{_VIZIER}.CheckTrialEarlyStoppingState": "aiplatform.trials.get",
    f"{_VIZIER}.ListOptimalTrials": "aiplatform.trials.list",
    "google.logging.v2.LoggingServiceV2.ListLogEntries": "logging.logEntries.list",
    "google.logging.v2.LoggingServiceV2.WriteLogEntries": "logging.logEntries.create",
    f"{_PROJECTS}.SearchProjects": "resourcemanager.projects.list",
    f"{_PROJECTS}.GetIamPolicy": "resourcemanager.projects.getIamPolicy",
    f"{_PROJECTS}.SetIamPolicy": "resourcemanager.projects.setIamPolicy",
    f"{_IAM}.PatchServiceAccount": "iam.serviceAccounts.update",
    "google.iam.credentials.v1.IAMCredentials.GenerateAccessToken": "iam.serviceAccounts.getAccessToken",
    # Anyone may ask what they may do.
    f"{_PROJECTS}.TestIamPermissions": "aiplatform.permissions.test",
    "trainshed.v1.Service.WhoAmI": "trainshed.service.get",
    "trainshed.v1.Service.GetStatus": "trainshed.service.get",
    "trainshed.v1.Tokens.CreateOwn": "trainshed.tokens.createOwn",
    "trainshed.v1.Service.GetMetrics": "trainshed.nodes.list",
    "trainshed.v1.Tokens.List": "trainshed.tokens.list",
    "trainshed.v1.Tokens.Create": "trainshed.tokens.create",
    "trainshed.v1.Tokens.Revoke": "trainshed.tokens.delete",
    "trainshed.v1.Access.Policy": "resourcemanager.projects.getIamPolicy",
    "trainshed.v1.Access.Change": "resourcemanager.projects.setIamPolicy",
    "trainshed.v1.Audit.List": "trainshed.audit.list",
    "trainshed.v1.Nodes.List": "trainshed.nodes.list",
    "trainshed.v1.Nodes.Drain": "trainshed.nodes.drain",
    "trainshed.v1.Nodes.Undrain": "trainshed.nodes.drain",
    "trainshed.v1.Quotas.List": "trainshed.quotas.get",
    "trainshed.v1.Quotas.Set": "trainshed.quotas.set",
    "trainshed.v1.Usage.List": "trainshed.quotas.get",
    "trainshed.v1.Models.Describe": "trainshed.models.get",
    "trainshed.v1.Secrets.List": "trainshed.secrets.list",
    "trainshed.v1.Secrets.Set": "trainshed.secrets.set",
    "trainshed.v1.Secrets.Delete": "trainshed.secrets.delete",
    "trainshed.v1.Jobs.List": "trainshed.jobs.list",
    "trainshed.v1.Jobs.Explain": "trainshed.jobs.explain",
    "trainshed.v1.Jobs.Describe": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Timeline": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Cancel": "trainshed.jobs.cancel",
    "trainshed.v1.Jobs.Delete": "trainshed.jobs.delete",
    "trainshed.v1.Jobs.Drill": "trainshed.jobs.drill",
    "trainshed.v1.Jobs.ResumeReport": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.Usage": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Launch": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Curves": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Outlook": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Logs": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.LogPage": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.Watch": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Shell": "trainshed.jobs.shell",
    "trainshed.v1.Jobs.Tensorboard": "trainshed.jobs.tensorboard",
}


def is_recorded(method: str) -> bool:
    """Whether the audit tells of calls of this method."""
    permission = PERMISSIONS[method]
    _, resource, verb = permission.split(".")
    return not (verb in _READS or resource in _MEASURES or permission.startswith(_MEASURED))


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
    "resourcemanager.projects.*delete",
    "trainshed.tokens.*",
    "trainshed.audit.*",
    "trainshed.quotas.set",
    "trainshed.nodes.drain",
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
        *_EVERYBODY, "iam.serviceAccounts.*", without=("*.actAs", "*.getAccessToken")
    ),
    "roles/iam.serviceAccountKeyAdmin": _role(
        *_EVERYBODY, "iam.serviceAccountKeys.*", "iam.*.get", "iam.*.list"
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
    *(f"aiplatform.models.{verb}" for verb in ("upload", "update", "delete")),
    "aiplatform.modelEvaluations.import",
    # Programs log experiments from inside jobs.
    "aiplatform.metadataStores.create",
    "aiplatform.contexts.*",
    "aiplatform.artifacts.*",
    "aiplatform.executions.*",
    "aiplatform.tensorboard*",
    "logging.logEntries.create",
    # Those that search by themselves ask for trials and report what these came to.
    *("aiplatform.studies.create", "aiplatform.trials.create", "aiplatform.trials.update"),
    "trainshed.service.get",
    "trainshed.jobs.list",
    "trainshed.jobs.get",
    "trainshed.jobs.readLogs",
)
"""What the program of a job may do in its job's project."""
