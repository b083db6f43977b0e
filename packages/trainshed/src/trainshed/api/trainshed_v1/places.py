"""Reads which project and region a call is about. By default they are the service's own."""

from trainshed.api.calls.parents import ProjectName
from trainshed.api.trainshed_v1.call import Fields, JsonCall, near
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import InvalidRequest
from trainshed.core.names import Api


def read_project(call: JsonCall, fields: Fields, what: str) -> str:
    """Return the id in `project`, else the service's own; faults are noted. `what`: what of the project is
    meant, in the plural."""
    return _project(call, fields, f"Whose {what}? Give the project's id.")


def read_place(call: JsonCall, fields: Fields, what: str) -> tuple[str, str]:
    """Return the project and region in `project` and `region`, else the service's own; faults are noted.
    `what`: as for `read_project`."""
    project = _project(call, fields, f"Which project's {what}? Give its id.")
    region = fields.text("region") or call.services.settings.region
    known = tuple(sorted({region for api in Api for region in regions(api)}))
    if not region:
        fields.fault("region", f"Which region's {what}? Give its name, such as us-central1.")
    elif region not in known:
        advice = near(region, known) or f" The regions are: {', '.join(known)}."
        fields.fault("region", f"{region!r} is not a region in which jobs run.{advice}")
    return project, region


def _project(call: JsonCall, fields: Fields, missing: str) -> str:
    project = fields.text("project") or call.services.settings.project
    if not project:
        fields.fault("project", missing)
        return ""
    try:
        return ProjectName.parse(f"projects/{project}", field="project").project_id
    except InvalidRequest:
        fields.fault("project", f"{project!r} is not a project id.")
        return ""
