"""The one permission table says which permission each API method needs, and which roles hold it.

Every transport asks here, by the full name of the method. A method without a row cannot be called
(tests/unit/test_access_permissions.py proves that every handler has one). Some principals work in one project
only; whatever their requests name must then be in that project.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from trainshed.access.principals import Principal, Role
from trainshed.core.errors import PermissionDenied
from trainshed.core.names import project_number

_VERTEX_JOBS = "google.cloud.aiplatform.v1.JobService"
_PIPELINES = "google.cloud.aiplatform.v1.PipelineService"
_MODELS = "google.cloud.aiplatform.v1.ModelService"
_RESOURCES = "google.cloud.aiplatform.v1.PersistentResourceService"
_DATASETS = "google.cloud.aiplatform.v1.DatasetService"
_TENSORBOARDS = "google.cloud.aiplatform.v1.TensorboardService"
_METADATA = "google.cloud.aiplatform.v1.MetadataService"
_ML_JOBS = "google.cloud.ml.v1.JobService"
_ML_PROJECTS = "google.cloud.ml.v1.ProjectManagementService"
_ML_OPERATIONS = "google.cloud.ml.v1.Operations"
_OPERATIONS = "google.longrunning.Operations"
_LOCATIONS = "google.cloud.location.Locations"
_VERTEX_VIZIER = "google.cloud.aiplatform.v1.VizierService"
_ML_VIZIER = "google.cloud.ml.v1.VizierService"

PERMISSIONS: Final[Mapping[str, str]] = {
    f"{_VERTEX_JOBS}.CreateCustomJob": "aiplatform.customJobs.create",
    f"{_VERTEX_JOBS}.GetCustomJob": "aiplatform.customJobs.get",
    f"{_VERTEX_JOBS}.ListCustomJobs": "aiplatform.customJobs.list",
    f"{_VERTEX_JOBS}.CancelCustomJob": "aiplatform.customJobs.cancel",
    f"{_VERTEX_JOBS}.DeleteCustomJob": "aiplatform.customJobs.delete",
    f"{_VERTEX_JOBS}.CreateHyperparameterTuningJob": "aiplatform.hyperparameterTuningJobs.create",
    f"{_VERTEX_JOBS}.GetHyperparameterTuningJob": "aiplatform.hyperparameterTuningJobs.get",
    f"{_VERTEX_JOBS}.ListHyperparameterTuningJobs": "aiplatform.hyperparameterTuningJobs.list",
    f"{_VERTEX_JOBS}.CancelHyperparameterTuningJob": "aiplatform.hyperparameterTuningJobs.cancel",
    f"{_VERTEX_JOBS}.DeleteHyperparameterTuningJob": "aiplatform.hyperparameterTuningJobs.delete",
    f"{_PIPELINES}.CreateTrainingPipeline": "aiplatform.trainingPipelines.create",
    f"{_PIPELINES}.GetTrainingPipeline": "aiplatform.trainingPipelines.get",
    f"{_PIPELINES}.ListTrainingPipelines": "aiplatform.trainingPipelines.list",
    f"{_PIPELINES}.CancelTrainingPipeline": "aiplatform.trainingPipelines.cancel",
    f"{_PIPELINES}.DeleteTrainingPipeline": "aiplatform.trainingPipelines.delete",
    f"{_MODELS}.UploadModel": "aiplatform.models.upload",
    f"{_MODELS}.CopyModel": "aiplatform.models.upload",
    f"{_MODELS}.GetModel": "aiplatform.models.get",
    f"{_MODELS}.ListModels": "aiplatform.models.list",
    f"{_MODELS}.ListModelVersions": "aiplatform.models.list",
    f"{_MODELS}.UpdateModel": "aiplatform.models.update",
    f"{_MODELS}.MergeVersionAliases": "aiplatform.models.update",
    f"{_MODELS}.DeleteModel": "aiplatform.models.delete",
    f"{_MODELS}.DeleteModelVersion": "aiplatform.models.delete",
    f"{_MODELS}.ExportModel": "aiplatform.models.export",
    f"{_DATASETS}.CreateDataset": "aiplatform.datasets.create",
    f"{_DATASETS}.GetDataset": "aiplatform.datasets.get",
    f"{_DATASETS}.ListDatasets": "aiplatform.datasets.list",
    f"{_DATASETS}.UpdateDataset": "aiplatform.datasets.update",
    f"{_DATASETS}.DeleteDataset": "aiplatform.datasets.delete",
    f"{_DATASETS}.ImportData": "aiplatform.datasets.import",
    f"{_DATASETS}.ExportData": "aiplatform.datasets.export",
    f"{_MODELS}.ImportModelEvaluation": "aiplatform.modelEvaluations.import",
    f"{_MODELS}.GetModelEvaluation": "aiplatform.modelEvaluations.get",
    f"{_MODELS}.ListModelEvaluations": "aiplatform.modelEvaluations.list",
    f"{_METADATA}.CreateMetadataStore": "aiplatform.metadataStores.create",
    f"{_METADATA}.GetMetadataStore": "aiplatform.metadataStores.get",
    f"{_METADATA}.ListMetadataStores": "aiplatform.metadataStores.list",
    f"{_METADATA}.DeleteMetadataStore": "aiplatform.metadataStores.delete",
    f"{_METADATA}.CreateContext": "aiplatform.contexts.create",
    f"{_METADATA}.GetContext": "aiplatform.contexts.get",
    f"{_METADATA}.ListContexts": "aiplatform.contexts.list",
    f"{_METADATA}.UpdateContext": "aiplatform.contexts.update",
    f"{_METADATA}.DeleteContext": "aiplatform.contexts.delete",
    f"{_METADATA}.CreateArtifact": "aiplatform.artifacts.create",
    f"{_METADATA}.GetArtifact": "aiplatform.artifacts.get",
    f"{_METADATA}.ListArtifacts": "aiplatform.artifacts.list",
    f"{_METADATA}.UpdateArtifact": "aiplatform.artifacts.update",
    f"{_METADATA}.DeleteArtifact": "aiplatform.artifacts.delete",
    f"{_METADATA}.CreateExecution": "aiplatform.executions.create",
    f"{_METADATA}.GetExecution": "aiplatform.executions.get",
    f"{_METADATA}.ListExecutions": "aiplatform.executions.list",
    f"{_METADATA}.UpdateExecution": "aiplatform.executions.update",
    f"{_METADATA}.DeleteExecution": "aiplatform.executions.delete",
    f"{_METADATA}.AddContextArtifactsAndExecutions": "aiplatform.contexts.addContextArtifactsAndExecutions",
    f"{_METADATA}.AddContextChildren": "aiplatform.contexts.addContextChildren",
    f"{_METADATA}.AddExecutionEvents": "aiplatform.executions.addExecutionEvents",
    f"{_METADATA}.QueryContextLineageSubgraph": "aiplatform.contexts.queryContextLineageSubgraph",
    f"{_METADATA}.QueryExecutionInputsAndOutputs": "aiplatform.executions.queryExecutionInputsAndOutputs",
    f"{_TENSORBOARDS}.CreateTensorboard": "aiplatform.tensorboards.create",
    f"{_TENSORBOARDS}.GetTensorboard": "aiplatform.tensorboards.get",
    f"{_TENSORBOARDS}.ListTensorboards": "aiplatform.tensorboards.list",
    f"{_TENSORBOARDS}.UpdateTensorboard": "aiplatform.tensorboards.update",
    f"{_TENSORBOARDS}.DeleteTensorboard": "aiplatform.tensorboards.delete",
    f"{_TENSORBOARDS}.CreateTensorboardExperiment": "aiplatform.tensorboardExperiments.create",
    f"{_TENSORBOARDS}.GetTensorboardExperiment": "aiplatform.tensorboardExperiments.get",
    f"{_TENSORBOARDS}.ListTensorboardExperiments": "aiplatform.tensorboardExperiments.list",
    f"{_TENSORBOARDS}.UpdateTensorboardExperiment": "aiplatform.tensorboardExperiments.update",
    f"{_TENSORBOARDS}.DeleteTensorboardExperiment": "aiplatform.tensorboardExperiments.delete",
    f"{_TENSORBOARDS}.CreateTensorboardRun": "aiplatform.tensorboardRuns.create",
    f"{_TENSORBOARDS}.GetTensorboardRun": "aiplatform.tensorboardRuns.get",
    f"{_TENSORBOARDS}.ListTensorboardRuns": "aiplatform.tensorboardRuns.list",
    f"{_TENSORBOARDS}.UpdateTensorboardRun": "aiplatform.tensorboardRuns.update",
    f"{_TENSORBOARDS}.DeleteTensorboardRun": "aiplatform.tensorboardRuns.delete",
    f"{_TENSORBOARDS}.CreateTensorboardTimeSeries": "aiplatform.tensorboardTimeSeries.create",
    f"{_TENSORBOARDS}.GetTensorboardTimeSeries": "aiplatform.tensorboardTimeSeries.get",
    f"{_TENSORBOARDS}.ListTensorboardTimeSeries": "aiplatform.tensorboardTimeSeries.list",
    f"{_TENSORBOARDS}.UpdateTensorboardTimeSeries": "aiplatform.tensorboardTimeSeries.update",
    f"{_TENSORBOARDS}.DeleteTensorboardTimeSeries": "aiplatform.tensorboardTimeSeries.delete",
    f"{_TENSORBOARDS}.BatchCreateTensorboardRuns": "aiplatform.tensorboardRuns.batchCreate",
    f"{_TENSORBOARDS}.BatchCreateTensorboardTimeSeries": "aiplatform.tensorboardTimeSeries.batchCreate",
    f"{_TENSORBOARDS}.WriteTensorboardRunData": "aiplatform.tensorboardRuns.write",
    f"{_TENSORBOARDS}.WriteTensorboardExperimentData": "aiplatform.tensorboardExperiments.write",
    f"{_TENSORBOARDS}.ReadTensorboardTimeSeriesData": "aiplatform.tensorboardTimeSeries.read",
    f"{_TENSORBOARDS}.BatchReadTensorboardTimeSeriesData": "aiplatform.tensorboardTimeSeries.batchRead",
    f"{_RESOURCES}.CreatePersistentResource": "aiplatform.persistentResources.create",
    f"{_RESOURCES}.GetPersistentResource": "aiplatform.persistentResources.get",
    f"{_RESOURCES}.ListPersistentResources": "aiplatform.persistentResources.list",
    f"{_RESOURCES}.DeletePersistentResource": "aiplatform.persistentResources.delete",
    f"{_RESOURCES}.RebootPersistentResource": "aiplatform.persistentResources.update",
    f"{_OPERATIONS}.GetOperation": "aiplatform.operations.get",
    f"{_OPERATIONS}.ListOperations": "aiplatform.operations.list",
    f"{_OPERATIONS}.WaitOperation": "aiplatform.operations.get",
    f"{_OPERATIONS}.CancelOperation": "aiplatform.operations.cancel",
    f"{_OPERATIONS}.DeleteOperation": "aiplatform.operations.delete",
    f"{_LOCATIONS}.GetLocation": "aiplatform.locations.get",
    f"{_LOCATIONS}.ListLocations": "aiplatform.locations.list",
    f"{_ML_JOBS}.CreateJob": "ml.jobs.create",
    f"{_ML_JOBS}.GetJob": "ml.jobs.get",
    f"{_ML_JOBS}.ListJobs": "ml.jobs.list",
    f"{_ML_JOBS}.CancelJob": "ml.jobs.cancel",
    f"{_ML_JOBS}.UpdateJob": "ml.jobs.update",
    f"{_ML_PROJECTS}.GetConfig": "ml.projects.getConfig",
    f"{_ML_PROJECTS}.GetLocation": "ml.locations.get",
    f"{_ML_PROJECTS}.ListLocations": "ml.locations.list",
    f"{_ML_OPERATIONS}.ListOperations": "ml.operations.list",
    f"{_ML_OPERATIONS}.GetOperation": "ml.operations.get",
    f"{_ML_OPERATIONS}.CancelOperation": "ml.operations.cancel",
    # Anyone may ask what they may do, so this needs a permission that every role holds.
    "google.iam.v1.IAMPolicy.TestIamPermissions": "aiplatform.permissions.test",
    f"{_ML_JOBS}.TestIamPermissions": "ml.permissions.test",
    f"{_VERTEX_VIZIER}.CreateStudy": "aiplatform.studies.create",
    f"{_VERTEX_VIZIER}.GetStudy": "aiplatform.studies.get",
    f"{_VERTEX_VIZIER}.ListStudies": "aiplatform.studies.list",
    f"{_VERTEX_VIZIER}.LookupStudy": "aiplatform.studies.get",
    f"{_VERTEX_VIZIER}.DeleteStudy": "aiplatform.studies.delete",
    f"{_VERTEX_VIZIER}.CreateTrial": "aiplatform.trials.create",
    f"{_VERTEX_VIZIER}.GetTrial": "aiplatform.trials.get",
    f"{_VERTEX_VIZIER}.ListTrials": "aiplatform.trials.list",
    f"{_VERTEX_VIZIER}.DeleteTrial": "aiplatform.trials.delete",
    f"{_VERTEX_VIZIER}.SuggestTrials": "aiplatform.trials.create",
    f"{_VERTEX_VIZIER}.AddTrialMeasurement": "aiplatform.trials.update",
    f"{_VERTEX_VIZIER}.CompleteTrial": "aiplatform.trials.update",
    f"{_VERTEX_VIZIER}.StopTrial": "aiplatform.trials.update",
    f"{_VERTEX_VIZIER}.CheckTrialEarlyStoppingState": "aiplatform.trials.get",
    f"{_VERTEX_VIZIER}.ListOptimalTrials": "aiplatform.trials.list",
    f"{_ML_VIZIER}.CreateStudy": "ml.studies.create",
    f"{_ML_VIZIER}.GetStudy": "ml.studies.get",
    f"{_ML_VIZIER}.ListStudies": "ml.studies.list",
    f"{_ML_VIZIER}.DeleteStudy": "ml.studies.delete",
    f"{_ML_VIZIER}.CreateTrial": "ml.trials.create",
    f"{_ML_VIZIER}.GetTrial": "ml.trials.get",
    f"{_ML_VIZIER}.ListTrials": "ml.trials.list",
    f"{_ML_VIZIER}.DeleteTrial": "ml.trials.delete",
    f"{_ML_VIZIER}.SuggestTrials": "ml.trials.create",
    f"{_ML_VIZIER}.AddTrialMeasurement": "ml.trials.update",
    f"{_ML_VIZIER}.CompleteTrial": "ml.trials.update",
    f"{_ML_VIZIER}.StopTrial": "ml.trials.update",
    f"{_ML_VIZIER}.CheckTrialEarlyStoppingState": "ml.trials.get",
    f"{_ML_VIZIER}.ListOptimalTrials": "ml.trials.list",
    "google.logging.v2.LoggingServiceV2.ListLogEntries": "logging.logEntries.list",
    "google.logging.v2.LoggingServiceV2.WriteLogEntries": "logging.logEntries.create",
    "google.cloud.resourcemanager.v1.Projects.GetProject": "resourcemanager.projects.get",
    "google.cloud.resourcemanager.v3.Projects.GetProject": "resourcemanager.projects.get",
    "trainshed.v1.Service.GetStatus": "trainshed.service.get",
    "trainshed.v1.Service.GetMetrics": "trainshed.nodes.list",
    "trainshed.v1.Service.ListSettings": "trainshed.settings.list",
    "trainshed.v1.Nodes.List": "trainshed.nodes.list",
    "trainshed.v1.Nodes.Drain": "trainshed.nodes.drain",
    "trainshed.v1.Nodes.Undrain": "trainshed.nodes.drain",
    "trainshed.v1.Quotas.List": "trainshed.quotas.get",
    "trainshed.v1.Quotas.Set": "trainshed.quotas.set",
    "trainshed.v1.Quotas.Clear": "trainshed.quotas.set",
    "trainshed.v1.Models.Describe": "trainshed.models.get",
    "trainshed.v1.Secrets.List": "trainshed.secrets.list",
    "trainshed.v1.Secrets.Set": "trainshed.secrets.set",
    "trainshed.v1.Secrets.Delete": "trainshed.secrets.delete",
    "trainshed.v1.Secrets.RotateKey": "trainshed.secrets.rotateKey",
    "trainshed.v1.Logs.Collect": "trainshed.logs.collect",
    "trainshed.v1.Jobs.List": "trainshed.jobs.list",
    "trainshed.v1.Jobs.Explain": "trainshed.jobs.explain",
    "trainshed.v1.Jobs.Describe": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Timeline": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Cancel": "trainshed.jobs.cancel",
    "trainshed.v1.Jobs.Delete": "trainshed.jobs.delete",
    "trainshed.v1.Jobs.Drill": "trainshed.jobs.drill",
    "trainshed.v1.Jobs.ListDrills": "trainshed.jobs.get",
    "trainshed.v1.Jobs.ResumeReport": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.Progress": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Usage": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Launch": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Curves": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Logs": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.LogPage": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.Watch": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Shell": "trainshed.jobs.shell",
    "trainshed.v1.Jobs.Tensorboard": "trainshed.jobs.tensorboard",
    "trainshed.v1.Jobs.AutopsyFiles": "trainshed.jobs.shell",
}

ON_BUCKETS: Final = frozenset(
    {
        *(f"storage.objects.{verb}" for verb in ("get", "list", "create", "update", "delete")),
        *(f"storage.buckets.{verb}" for verb in ("get", "update", "delete")),
        "storage.buckets.getIamPolicy",
        "storage.buckets.setIamPolicy",
    }
)
"""The permissions that can be asked about on a bucket. Who holds which depends on the bucket
(`buckets.admission`)."""
IN_PROJECTS: Final = ON_BUCKETS | {"storage.buckets.create", "storage.buckets.list"}
"""The permissions on buckets that everybody who may work in a project holds."""

_READ_BY_JOBS: Final = frozenset(
    permission
    for permission in PERMISSIONS.values()
    if permission.startswith(("aiplatform.", "ml.", "logging.", "resourcemanager."))
    and permission.rpartition(".")[2] in ("get", "list", "getConfig", "test")
)
ROLES: Final[Mapping[Role, frozenset[str]]] = {
    Role.OWNER: frozenset(PERMISSIONS.values()),
    # A program may do what the default account of its job may do on the hosted services, except remove jobs
    # and their logs, so that people can still look at them. `api.calls.call` makes sure that a job which it
    # submits has no more rights than it has itself, `api.resources.acting` that it cancels only what it made.
    Role.JOB: _READ_BY_JOBS
    | {
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
        *(
            f"aiplatform.datasets.{verb}"
            for verb in ("create", "update", "delete", "import", "export")
        ),
        "aiplatform.models.upload",
        "aiplatform.models.update",
        "aiplatform.models.delete",
        # Models are copied with the rights of the program's project, like everything that it copies itself.
        "aiplatform.models.export",
        "aiplatform.modelEvaluations.import",
        # Programs log experiments from inside jobs.
        "aiplatform.metadataStores.create",
        *(
            permission
            for permission in PERMISSIONS.values()
            if permission.startswith(
                (
                    "aiplatform.contexts.",
                    "aiplatform.artifacts.",
                    "aiplatform.executions.",
                    "aiplatform.tensorboard",
                )
            )
        ),
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
    },
}
_OF_NO_PROJECT: Final = frozenset({"trainshed.v1.Service.GetStatus"})
"""Methods that name no project and reveal nothing about one."""


def held(principal: Principal) -> frozenset[str]:
    """Every permission that the principal has, in the projects that it may work in."""
    return ROLES[principal.role]


def authorize(principal: Principal, method: str, projects: Iterable[str] | None = None) -> None:
    """Let `principal` call `method` (full name), or raise PermissionDenied, which says what is missing.

    `projects` holds the id or number of every project that the request names. None means that the request was
    not read yet: a principal bound to one project must then be checked again once it was.
    """
    permission = PERMISSIONS.get(method)
    if permission is None or permission not in held(principal):
        raise PermissionDenied(
            f"{principal.email} may not call {method}: the role {principal.role} lacks the permission "
            f"{permission or '(none is defined)'}; ask an owner of this service for a role that has it"
        )
    if projects is None or not principal.project or method in _OF_NO_PROJECT:
        return
    unique = dict.fromkeys(projects)
    own = (principal.project, str(project_number(principal.project)))
    foreign = [project for project in unique if project not in own]
    if foreign or not unique:
        what = f"names {', '.join(foreign)}" if foreign else "names no project"
        raise PermissionDenied(
            f"{principal.email} has the permission {permission} in the project {principal.project} only, "
            f"and the request {what}: name what lies in {principal.project}, or use the token of somebody "
            "who may work elsewhere"
        )
