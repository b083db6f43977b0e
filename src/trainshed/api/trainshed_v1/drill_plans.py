"""Drill plans of a project: drills under a name, which jobs order by their label `trainshed-drill` (SPEC §8).

A plan: `{name, project, drills: [{kind, replica, atLine, after}]}`; see `drills.drill` for the fields. Without `project` the
service's own is meant.
"""

import re
from typing import Any, Final

from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.api.trainshed_v1.drills import MOST_DRILLS, order_view, read_drill
from trainshed.api.trainshed_v1.fields import Fields
from trainshed.api.trainshed_v1.projects import read_project
from trainshed.core.lifecycle.drills import DrillPlan

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)
"""What both APIs take as the value of a label."""


async def list_(call: JsonCall) -> dict[str, Any]:
    """`GET /trainshed/v1/drillPlans[?project=P]`: `{project, plans: [plan]}`, by name."""
    project = _asked_project(call)
    plans = await call.services.reader.drill_plans(project)
    return {"project": project, "plans": [_view(plan) for plan in plans]}


async def get(call: JsonCall) -> dict[str, Any]:
    """`GET /trainshed/v1/drillPlans/{name}[?project=P]`: the plan. Raises NotFound."""
    return _view(await call.services.reader.drill_plan(_asked_project(call), call.target))


async def put(call: JsonCall) -> dict[str, Any]:
    """`PUT /trainshed/v1/drillPlans/{name} {project, drills}`, `POST /trainshed/v1/drillPlans {name, project, drills}`: the
    plan, stored in place of one of that name. Jobs that exist keep the drills that they have."""
    fields = call.fields()
    name = fields.text("name", required=not call.target) or call.target
    if call.target and name != call.target:
        fields.fault("name", f"The path says {call.target!r}. Leave it out, or say the same.")
    if name and not _NAME.fullmatch(name):
        fields.fault(
            "name",
            f"{name!r} cannot be the value of a label: small letters, digits, - and _, at most 63,"
            " a letter or digit first.",
        )
    project = read_project(call, fields, "plans")
    now = call.services.now()
    drills = tuple(read_drill(part, now) for part in fields.objects("drills"))
    if not fields.raw("drills"):
        fields.fault("drills", "A plan needs a drill, such as {kind: kill, after: 30s}.")
    if len(drills) > MOST_DRILLS:
        fields.fault("drills", f"These are {len(drills)} drills; at most {MOST_DRILLS}.")
    fields.refuse()
    plan = DrillPlan(project, name, drills)
    await call.services.intake.put_drill_plan(plan)
    return _view(plan)


async def delete(call: JsonCall) -> dict[str, Any]:
    """`DELETE /trainshed/v1/drillPlans/{name}[?project=P]`: `{}`. Raises NotFound. Jobs that exist keep the drills that
    they have."""
    await call.services.intake.delete_drill_plan(_asked_project(call), call.target)
    return {}


def _view(plan: DrillPlan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "project": plan.project_id,
        "drills": [order_view(drill) for drill in plan.drills],
    }


def _asked_project(call: JsonCall) -> str:
    fields = Fields({"project": call.parameter("project") or None})
    project = read_project(call, fields, "plans")
    fields.refuse()
    return project
