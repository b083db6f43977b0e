"""Resource Manager v1 projects.get: every project that a principal may name exists here."""

from datetime import UTC, datetime
from typing import Any, Final

from trainshed.access.permissions import authorize
from trainshed.access.principals import Principal
from trainshed.api.parents import ProjectName
from trainshed.core.names import project_number

METHOD: Final = "google.cloud.resourcemanager.v1.Projects.GetProject"


def get(principal: Principal, project_id: str) -> dict[str, Any]:
    """The public Project resource. Projects have no beginning here; the epoch stands for it."""
    authorize(principal, METHOD, (project_id,))
    project = ProjectName.parse(f"projects/{project_id}", field="project_id")
    return {
        "projectId": project.project_id,
        "projectNumber": str(project_number(project.project_id)),
        "name": project.project_id,
        "lifecycleState": "ACTIVE",
        "createTime": datetime.fromtimestamp(0, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
