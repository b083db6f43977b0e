"""`ml` v1 projects.getConfig: who runs the project's jobs."""

from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.parents import ProjectName
from trainshed.core.names import project_number
from trainshed.wire import pool

_SERVICE: Final = "google.cloud.ml.v1.ProjectManagementService"


async def get_config(call: Call, request: Any) -> Message:
    project = ProjectName.parse(request.name, field="name")
    account = call.services.settings.service_account
    response: Any = pool.message_class("google.cloud.ml.v1.GetConfigResponse")(
        service_account=account, service_account_project=project_number(project.project_id)
    )
    response.config.tpu_service_account = account
    return response


HANDLERS: Final[Handlers] = {f"{_SERVICE}.GetConfig": get_config}
