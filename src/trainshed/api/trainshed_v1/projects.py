"""Which project a request is about that may leave it out."""

from trainshed.api.calls.parents import ProjectName
from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.fields import Fields
from trainshed.core.errors import InvalidRequest


def read_project(call: JsonCall, fields: Fields, what: str) -> str:
    """The id in `project`, else the service's own; what is wrong with it is noted. `what`: the project's, in the plural."""
    project = fields.text("project") or call.services.settings.project
    if not project:
        fields.fault("project", f"Whose {what}? Give the project's id.")
        return ""
    try:
        return ProjectName.parse(f"projects/{project}", field="project").project_id
    except InvalidRequest:
        fields.fault("project", f"{project!r} is not a project id.")
        return ""
