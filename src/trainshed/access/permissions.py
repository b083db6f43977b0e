"""The one permission table: which permission each API method asks for, and which role holds it.

Every transport asks here, by the full name of the method. A method without a row cannot be called
(tests/unit/test_access_permissions.py proves that every handler has one).
"""

from collections.abc import Mapping
from typing import Final

from trainshed.access.principals import Principal, Role
from trainshed.core.errors import PermissionDenied

_VERTEX_JOBS = "google.cloud.aiplatform.v1.JobService"
_ML_JOBS = "google.cloud.ml.v1.JobService"
_ML_PROJECTS = "google.cloud.ml.v1.ProjectManagementService"
_ML_OPERATIONS = "google.cloud.ml.v1.Operations"
_OPERATIONS = "google.longrunning.Operations"
_LOCATIONS = "google.cloud.location.Locations"

PERMISSIONS: Final[Mapping[str, str]] = {
    f"{_VERTEX_JOBS}.CreateCustomJob": "aiplatform.customJobs.create",
    f"{_VERTEX_JOBS}.GetCustomJob": "aiplatform.customJobs.get",
    f"{_VERTEX_JOBS}.ListCustomJobs": "aiplatform.customJobs.list",
    f"{_VERTEX_JOBS}.CancelCustomJob": "aiplatform.customJobs.cancel",
    f"{_VERTEX_JOBS}.DeleteCustomJob": "aiplatform.customJobs.delete",
    f"{_OPERATIONS}.GetOperation": "aiplatform.operations.get",
    f"{_OPERATIONS}.ListOperations": "aiplatform.operations.list",
    f"{_OPERATIONS}.WaitOperation": "aiplatform.operations.get",
    f"{_OPERATIONS}.CancelOperation": "aiplatform.operations.cancel",
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
    "google.logging.v2.LoggingServiceV2.ListLogEntries": "logging.logEntries.list",
    "google.cloud.resourcemanager.v1.Projects.GetProject": "resourcemanager.projects.get",
    "trainshed.v1.Service.GetStatus": "trainshed.service.get",
    "trainshed.v1.Nodes.List": "trainshed.nodes.list",
    "trainshed.v1.Nodes.Drain": "trainshed.nodes.drain",
    "trainshed.v1.Nodes.Undrain": "trainshed.nodes.drain",
    "trainshed.v1.Quotas.List": "trainshed.quotas.get",
    "trainshed.v1.Quotas.Set": "trainshed.quotas.set",
    "trainshed.v1.Quotas.Clear": "trainshed.quotas.set",
    "trainshed.v1.DrillPlans.List": "trainshed.drillPlans.list",
    "trainshed.v1.DrillPlans.Get": "trainshed.drillPlans.get",
    "trainshed.v1.DrillPlans.Put": "trainshed.drillPlans.put",
    "trainshed.v1.DrillPlans.Delete": "trainshed.drillPlans.delete",
    "trainshed.v1.Jobs.List": "trainshed.jobs.list",
    "trainshed.v1.Jobs.Explain": "trainshed.jobs.explain",
    "trainshed.v1.Jobs.Describe": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Timeline": "trainshed.jobs.get",
    "trainshed.v1.Jobs.Cancel": "trainshed.jobs.cancel",
    "trainshed.v1.Jobs.Drill": "trainshed.jobs.drill",
    "trainshed.v1.Jobs.ListDrills": "trainshed.jobs.get",
    "trainshed.v1.Jobs.ResumeReport": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.Logs": "trainshed.jobs.readLogs",
    "trainshed.v1.Jobs.Watch": "trainshed.jobs.get",
}

ROLES: Final[Mapping[Role, frozenset[str]]] = {Role.OWNER: frozenset(PERMISSIONS.values())}


def authorize(principal: Principal, method: str) -> None:
    """Let `principal` call `method` (full name) or raise PermissionDenied, saying what is missing."""
    permission = PERMISSIONS.get(method)
    if permission is None or permission not in ROLES[principal.role]:
        raise PermissionDenied(
            f"{principal.email} may not call {method}: the role {principal.role} lacks the permission "
            f"{permission or '(none is defined)'}; ask an owner of this service for a role that has it"
        )
