"""The table from exceptions to google.rpc codes, the public texts of refused requests, and what is advised
instead of methods that are not served.

A test proves that every leaf class of `core.errors.RequestError` has a row.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from trainshed.core import errors as core
from trainshed.httpd.messages import BodyNotRead, BodyTooLarge
from trainshed.wire.routes import KnownMethod
from trainshed.wire.status import StatusCode, Violation, WireError, told


class NotServed(core.RequestError):
    """The method is known, and this service does not serve it."""


CODES: Final[Mapping[type[Exception], StatusCode]] = {
    core.InvalidRequest: StatusCode.INVALID_ARGUMENT,
    core.NotFound: StatusCode.NOT_FOUND,
    core.AlreadyExists: StatusCode.ALREADY_EXISTS,
    core.FailedPrecondition: StatusCode.FAILED_PRECONDITION,
    core.Aborted: StatusCode.ABORTED,
    core.Unauthenticated: StatusCode.UNAUTHENTICATED,
    core.PermissionDenied: StatusCode.PERMISSION_DENIED,
    core.ResourceExhausted: StatusCode.RESOURCE_EXHAUSTED,
    core.Unavailable: StatusCode.UNAVAILABLE,
    NotServed: StatusCode.UNIMPLEMENTED,
    WireError: StatusCode.INVALID_ARGUMENT,
    BodyTooLarge: StatusCode.INVALID_ARGUMENT,
    BodyNotRead: StatusCode.INVALID_ARGUMENT,
}

_REASONS: Final[Mapping[type[Exception], str]] = {core.PermissionDenied: "IAM_PERMISSION_DENIED"}
"""google.rpc.ErrorInfo reasons of those errors for which the public services have one that is true here."""


class Refusal(Struct, frozen=True):
    """An error as every transport reports it."""

    code: StatusCode
    message: str
    violations: tuple[Violation, ...] = ()
    #: Reason of a google.rpc.ErrorInfo; "" = there is none.
    reason: str = ""


def refusal(error: Exception, api: str) -> Refusal | None:
    """Return what a caller of `api` (a set of `wire.pool`) is told; None for a fault of the service
    itself."""
    code = CODES.get(type(error))
    if code is None:
        return None
    if isinstance(error, WireError):
        return Refusal(code, str(error), told(error.violations))
    if isinstance(error, BodyTooLarge | BodyNotRead):
        return Refusal(code, str(error), (Violation("", str(error)),))
    if isinstance(error, core.InvalidRequest):
        violations = told(tuple(Violation(v.field, v.description) for v in error.violations))
        return Refusal(code, _listed(violations, api), violations)
    return Refusal(code, str(error), reason=_REASONS.get(type(error), ""))


def internal_refusal() -> Refusal:
    """Return the refusal for a fault of the service. It tells nothing of the cause, which is in the service's
    log."""
    return Refusal(
        StatusCode.INTERNAL, "Internal error encountered. The log of the service says more."
    )


def _listed(violations: tuple[Violation, ...], api: str) -> str:
    """Return the public text that names every violation, in the form of the API that was called
    (facts/limits#error-texts)."""
    if api == "aiplatform_v1":
        errors = "".join(
            f"{number}.Field: {violation.field}; Message: {violation.description}\t"
            for number, violation in enumerate(violations, 1)
        )
        return f"List of found errors:\t{errors}"
    return "\n".join(f"Field: {v.field} Error: {v.description}" for v in violations)


_NO_SERVING: Final = (
    "This service trains models and does not deploy them: fetch the model from its artifact directory "
    "(`gcloud storage cp -r gs://BUCKET/PATH .`) and load it where it is to predict, or let a custom job "
    "read a bucket and predict in bulk"
)
_LANGUAGE_MODELS: Final = (
    "This service has no language models of its own: let a custom job load one from a bucket, and generate, "
    "count or tune in its program"
)
_VECTORS: Final = (
    "Nothing is indexed or searched here: build the index in a custom job (faiss or scann in its "
    "requirements), and write it to a bucket"
)
_NOTEBOOKS: Final = (
    "Here a notebook is a job: `trainshed run --notebook` opens JupyterLab on a machine of the service, and "
    "`trainshed run NOTEBOOK.py` runs its code"
)
_FILES: Final = (
    "Put the data into a bucket and give the program its path, gs://BUCKET/PATH or /gcs/BUCKET/PATH"
)
_TRACKING: Final = (
    "Let the program write what it measures to its log or, as TensorBoard's files, below "
    "AIP_TENSORBOARD_LOG_DIR, which `trainshed tensorboard JOB` shows"
)
_SECRETS: Final = (
    "A program gets the secrets that its job names, in its environment: store one with `trainshed secrets "
    "set NAME`, submit the job with `trainshed run --secret VARIABLE=NAME` or with $(secret:NAME) in a value "
    "of env, and read it from os.environ"
)
_ROLES: Final = (
    "Roles are given in projects and buckets (`gcloud projects add-iam-policy-binding PROJECT "
    "--member=MEMBER --role=ROLE`); :testIamPermissions says what your token may"
)
_SHARED: Final = {
    "Lines that jobs write are kept as long as the jobs are; entries:list reads them": "logging",
    "Nothing is signed for an account here: call with its token (:generateAccessToken), and open a bucket to "
    "allUsers where an address is to need none": "generateIdToken signBlob signJwt",
    "Projects need no care: each project id that is named is a project": "cloudresourcemanager folders "
    "organizations resourcemanager",
    _FILES: "annotations annotationSpecs dataItems dataLabelingJobs datasets entityTypes featureGroups "
    "featureOnlineStores featurestores specialistPools",
    _LANGUAGE_MODELS: "cacheConfig cachedContents countTokens generateContent publishers ragCorpora "
    "ragEngineConfig streamGenerateContent tuningJobs",
    _NO_SERVING: "batchPredictionJobs deploymentResourcePools directPredict directRawPredict endpoints "
    "explain ml.projects.models modelDeploymentMonitoringJobs modelMonitors predict rawPredict "
    "serverStreamingPredict streamRawPredict",
    _NOTEBOOKS: "notebookRuntimeTemplates notebookRuntimes",
    _ROLES: "getIamPolicy iam serviceAccounts setIamPolicy",
    _SECRETS: "secretmanager",
    _TRACKING: "metadataStores",
    _VECTORS: "indexEndpoints indexes",
}
_INSTEAD: Final = {
    **{name: text for text, names in _SHARED.items() for name in names.split()},
    "batchImport": "Import each slice as an evaluation of its own",
    "export": "A model is the files at its artifactUri, a dataset those that it names: copy them with "
    "`gcloud storage cp -r`",
    "exportTensorboardTimeSeries": "Read all points with :read?maxDataPoints=-1",
    "nasJobs": "Search by a hyperparameterTuningJob whose parameters describe the model",
    "notebookExecutionJobs": "Run the notebook's code as a customJob",
    "persistentResources": "No machines are kept, and jobs start as fast without; a custom job can start "
    "Ray on its replicas (`ray start`)",
    "pipelineJobs": "Submit the steps one after another, each as a customJob: its end can be waited for",
    "purge": "List what passes the filter, and delete each",
    "queryArtifactLineageSubgraph": "Ask its execution, by :queryExecutionInputsAndOutputs",
    "reasoningEngines": "Agents are not hosted here; a custom job runs any program",
    "schedules": "Submit the job from a scheduler of your own, such as cron",
    "services": "What is served here needs no enabling",
    "tensorboards": "What TensorBoards show is counted nowhere; the blobs of a series are objects below the "
    "tensorboard's blobStoragePathPrefix, which any storage client reads; event files of a job are shown by "
    "`trainshed tensorboard JOB`",
}
"""What to do instead of a method, by its custom verb, else by a collection of its path, else by its API."""


def not_served(method: KnownMethod, handlers: Iterable[str]) -> NotServed:
    """Return the error for a method without a handler. `handlers`: full names of the methods that have
    one."""
    service = method.name.rpartition(".")[0]
    beside = sorted(
        handler.rpartition(".")[2] for handler in handlers if handler.startswith(f"{service}.")
    )
    there = f" Of {service.rpartition('.')[2]} there is {', '.join(beside)}." if beside else ""
    instead = _instead(method)
    return NotServed(f"{method.name} is not served here.{f' {instead}.' if instead else ''}{there}")


def _instead(method: KnownMethod) -> str:
    path, _, verb = method.path.partition(":")
    api = method.name.split(".")
    words = (verb, *path.split("/"), ".".join(api[:3]), *api)
    return next((_INSTEAD[word] for word in words if word in _INSTEAD), "")
