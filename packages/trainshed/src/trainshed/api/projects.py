"""Resource Manager's projects.get: v1 for gcloud, v3 for programs that use the Vertex SDK and name no
project.

Every project that a principal may name exists here.
"""

from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.access.permissions import authorize
from trainshed.access.principals import Principal
from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import ProjectName
from trainshed.api.calls.services import Services
from trainshed.core.names import project_number
from trainshed.wire import pool

METHOD: Final = "google.cloud.resourcemanager.v1.Projects.GetProject"
_PROJECTS: Final = "google.cloud.resourcemanager.v3.Projects"


def get(principal: Principal, services: Services, project: str) -> dict[str, Any]:
    """Return the public Project resource of v1. Projects have no creation time here, so it is the Unix epoch.
    Raises PermissionDenied, InvalidRequest."""
    authorize(principal, METHOD, (project,))
    name = ProjectName.parse(f"projects/{project}", field="project_id")
    project_id = _id(principal, services, name)
    return {
        "projectId": project_id,
        "projectNumber": str(project_number(project_id)),
        "name": project_id,
        "lifecycleState": "ACTIVE",
        "createTime": datetime.fromtimestamp(0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


async def get_project(call: Call, request: Any) -> Message:
    """Return the public Project resource of v3."""
    name = ProjectName.parse(request.name, field="name")
    project_id = _id(call.principal, call.services, name)
    view: Any = pool.message_class("google.cloud.resourcemanager.v3.Project")(
        name=f"projects/{project_number(project_id)}",
        project_id=project_id,
        display_name=project_id,
        state="ACTIVE",
    )
    view.create_time.seconds = view.update_time.seconds = 0
    return view


HANDLERS: Final[Handlers] = {f"{_PROJECTS}.GetProject": get_project}


def _id(principal: Principal, services: Services, name: ProjectName) -> str:
    """Return the id of a project that is named by id or number. Only the numbers of the caller's project and
    of the service's own are known; programs find a number in CLOUD_ML_PROJECT_ID."""
    for known in (principal.project, services.settings.project):
        if known and name.project_id == str(project_number(known)):
            return known
    return name.project_id
