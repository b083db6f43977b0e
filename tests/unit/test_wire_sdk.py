"""The REST routes of the unmodified Python SDK (spec/clients#surface)."""

import importlib
import inspect
from typing import Any

import pytest

from trainshed.wire import routes

SERVICES = {
    "job_service": "JobService",
    "pipeline_service": "PipelineService",
    "vizier_service": "VizierService",
    "model_service": "ModelService",
}


@pytest.mark.parametrize(("module", "service"), SERVICES.items())
def test_every_route_of_the_sdk_is_ours(module: str, service: str) -> None:
    transport = importlib.import_module(
        f"google.cloud.aiplatform_v1.services.{module}.transports.rest_base"
    )
    base: Any = getattr(transport, f"_Base{service}RestTransport")
    ours = {
        (route.method, route.verb.lower(), route.template.text, route.body)
        for route in routes.routes("aiplatform_v1")
        if route.service == f"google.cloud.aiplatform.v1.{service}"
    }
    checked = 0
    for name, method in inspect.getmembers(base):
        if not hasattr(method, "_get_http_options"):
            continue
        rpc = name.removeprefix("_Base")
        for option in method._get_http_options():
            if option["uri"].startswith(
                "/ui/"
            ) or f"/google.cloud.aiplatform.v1.{service}/{rpc}" not in (
                routes.rpcs("aiplatform_v1")
            ):
                continue
            checked += 1
            assert (rpc, option["method"], option["uri"], option.get("body", "")) in ours
    assert checked >= 6
