"""The table of permissions, and decisions that use it."""

import re
from itertools import product

import pytest

from trainshed.access.permissions import OWNER as OWNERS
from trainshed.access.permissions import PERMISSIONS, PROGRAM, ROLES, SERVICE_PREFIXES, authorize, is_recorded
from trainshed.access.policy import Grant, Policy
from trainshed.access.principals import Principal, Rights
from trainshed.api.registry import BUILT_IN
from trainshed.api.trainshed_v1.transport import METHODS
from trainshed.core.errors import PermissionDenied

PROJECTS = "google.cloud.resourcemanager.v3.Projects"
OF_NO_PROJECT = {f"{PROJECTS}.ListProjects", f"{PROJECTS}.SearchProjects"}
OF_ONESELF = ("Service.GetStatus", "Service.WhoAmI", "Tokens.CreateOwn", "Tokens.List")
FOR_EVERYBODY = {f"trainshed.v1.{name}" for name in (*OF_ONESELF, "Tokens.Revoke")}
OWNER = Principal("owner@example.com", Rights(ROLES[OWNERS]))
ANA = "ana@x.example"
KINDS = ("customJobs", "hyperparameterTuningJobs", "trainingPipelines")


def test_method_without_a_permission_is_denied_and_named_in_the_error() -> None:
    with pytest.raises(PermissionDenied, match=r"no\.such\.Method"):
        authorize(OWNER, "no.such.Method")


def test_every_method_has_a_permission() -> None:
    own = {method.name for method in METHODS.values()}
    assert own | BUILT_IN.methods <= PERMISSIONS.keys()


def test_program_cannot_delete_jobs_or_change_the_service() -> None:
    """spec/program#credentials: default credentials of a job."""
    ours = ("jobs.cancel", "jobs.delete", "jobs.drill", "nodes.drain", "quotas.set")
    refused = {f"aiplatform.{kind}.delete" for kind in KINDS} | {"ml.jobs.update"}
    assert not PROGRAM & (refused | {f"trainshed.{name}" for name in ours})
    assert not any("secrets" in held for held in PROGRAM)


def test_every_method_requires_its_permission_in_every_project_of_the_request() -> None:
    """Otherwise a caller could act in a second project of the request without a permission there (confused
    deputy). The test combines all methods and roles with requests for own and foreign projects."""
    for role, where, (method, permission), places in product(
        ROLES, ("", "own"), PERMISSIONS.items(), (["own"], ["foreign"], ["own", "foreign"], [])
    ):
        ana = Principal(ANA, Policy([Grant(where, role, f"user:{ANA}")]).rights(ANA))
        is_within = not where or places == ["own"] or method in OF_NO_PROJECT
        is_its_own = not (where and permission.startswith(SERVICE_PREFIXES))
        is_held = permission in ROLES[role] and is_within and is_its_own
        assert is_allowed(ana, method, places) == (is_held or method in FOR_EVERYBODY), (role, method)


def is_allowed(principal: Principal, method: str, places: list[str]) -> bool:
    try:
        authorize(principal, method, places)
    except PermissionDenied:
        return False
    return True


def test_denial_contains_the_missing_permission_and_the_remedy() -> None:
    ana = Principal("ana@x.example")
    create = "google.cloud.aiplatform.v1.JobService.CreateCustomJob"
    with pytest.raises(PermissionDenied) as refused:
        authorize(ana, create)
    for part in ("aiplatform.customJobs.create", "in no project", "--role=roles/aiplatform.user"):
        assert part in str(refused.value)
    vision = Policy([Grant("vision", "roles/aiplatform.user", "user:Ana@X.example")])
    ana = Principal("ana@x.example", vision.rights("ana@x.example"))
    with pytest.raises(PermissionDenied, match="gcloud projects add-iam-policy-binding nlp "):
        authorize(ana, create, ["nlp"])


@pytest.mark.parametrize("role", ROLES)
def test_role_with_permission_to_submit_jobs_may_read_jobs_and_job_logs(role: str) -> None:
    for jobs in ("ml.jobs", *(f"aiplatform.{kind}" for kind in KINDS)):
        sees = {f"{jobs}.get", f"{jobs}.list", "trainshed.jobs.get", "trainshed.jobs.readLogs"}
        assert f"{jobs}.create" not in ROLES[role] or ROLES[role] >= sees


@pytest.mark.parametrize("role", ["roles/aiplatform.viewer", "roles/ml.viewer", "roles/viewer"])
def test_viewer_cannot_change_anything(role: str) -> None:
    changing = ("create", "delete", "update", "cancel", "set", "drain", "shell", "drill", "upload")
    assert not [held for held in ROLES[role] if held.rpartition(".")[2] in changing]


@pytest.mark.parametrize("role", [role for role in ROLES if role != OWNERS])
def test_only_owners_manage_access(role: str) -> None:
    own = ("resourcemanager.projects.setIamPolicy", "trainshed.tokens.create")
    assert not ROLES[role] & {*own, "trainshed.nodes.drain", "trainshed.audit.list"}


READS = re.compile(
    r"(BatchRead|Check|Get|List|Lookup|Query|Read|Search|Tail|Test|Wait)\w*|WhoAmI|Policy|Curves|Describe|Explain|"
    r"Launch|Log\w+|Outlook|ResumeReport|Tensorboard|Timeline|Usage|Watch"
)
UNRECORDED = {
    *("AddContextArtifactsAndExecutions", "AddContextChildren", "AddExecutionEvents"),
    *(f"{verb}{noun}" for verb in ("Create", "Update") for noun in ("Artifact", "Context")),
    *("CreateExecution", "UpdateExecution", "WriteLogEntries"),
    *("BatchCreateTensorboardRuns", "BatchCreateTensorboardTimeSeries"),
    *("WriteTensorboardExperimentData", "WriteTensorboardRunData"),
    *(
        f"{verb}Tensorboard{noun}"
        for verb in ("Create", "Update")
        for noun in ("Experiment", "Run", "TimeSeries")
    ),
    *("AddTrialMeasurement", "CompleteTrial", "CreateTrial", "StopTrial", "SuggestTrials"),
}
"""Changes that the audit leaves out, as docs/team.md#read-the-audit-log documents."""


def test_audit_log_records_every_change_except_the_documented_exceptions() -> None:
    """A new method that changes data must be audited, or be listed in docs/team.md and in `UNRECORDED`."""
    names = {method.rpartition(".")[2] for method in PERMISSIONS if not is_recorded(method)}
    assert {name for name in names if not READS.fullmatch(name)} == UNRECORDED
