"""Resource Manager projects.get, of v1 (gcloud) and v3 (the Vertex SDK, in programs that name no project):
every project that a principal may name exists here."""

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
    """The public Project resource of v1. Projects have no beginning here; the epoch stands for it."""
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
    """The same of v3."""
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
    """The id of a project that is named by id or number, if it is one that we can know: the caller's, or the
    service's own. Programs find the number in CLOUD_ML_PROJECT_ID."""
    for known in (principal.project, services.settings.project):
        if known and name.project_id == str(project_number(known)):
            return known
    return name.project_id
