"""Routes of the HTTP annotations, of the unmodified Python SDK, and the binding of requests
(spec/clients#surface, spec/clients#wire)."""

import importlib
import inspect
from typing import Any

import pytest

from trainshed.wire import pool, routes
from trainshed.wire.json import to_public
from trainshed.wire.routes import Route
from trainshed.wire.status import WireError

PLACE = "/v1/projects/p/locations/l"


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/"),
        ("GET", ""),
        ("GET", "v1/projects/p/jobs"),
        ("DELETE", "/v1/projects/p/jobs/j"),
        ("GET", "/v1/projects/p/jobs/j/more"),
        ("GET", "/v2/entries:list"),
    ],
)
def test_request_paths_that_are_not_served_match_no_route(verb: str, path: str) -> None:
    assert routes.match(verb, path) is None


def test_request_path_of_both_apis_is_routed_to_the_vertex_api() -> None:
    match = routes.match("GET", "/v1/projects/p/locations")
    assert match is not None and match[0].api == "aiplatform_v1"


def test_path_built_from_a_route_template_matches_that_route() -> None:
    firsts: dict[object, Route] = {}
    for route in (route for api in pool.APIS for route in routes.routes(api)):
        firsts.setdefault((route.verb, route.template.segments, route.template.custom), route)
    for route in firsts.values():
        segments, custom = route.template.segments, route.template.custom
        path = "/" + "/".join("x" if part in ("*", "**") else part for part in segments)
        match = routes.match(route.verb, path + (f":{custom}" if custom else ""))
        assert match is not None and match[0] is route
        assert pool.message_class(route.rpc.request)
        assert pool.message_class(route.rpc.response)


def bind_request(verb: str, path: str, query: list[tuple[str, str]], body: bytes = b"") -> Any:
    match = routes.match(verb, path)
    assert match is not None
    return routes.bind(match[0], match[1], query, body)


def test_request_message_contains_values_of_path_query_and_body() -> None:
    result = bind_request(
        "PATCH",
        "/v1/projects/p/jobs/j",
        [("updateMask", "labels,etag"), ("alt", "json")],
        b'{"labels":{"a":"b"},"etag":"aGk="}',
    )
    assert to_public(result) == {
        "name": "projects/p/jobs/j",
        "updateMask": "labels,etag",
        "job": {"labels": {"a": "b"}, "etag": "aGk="},
    }


@pytest.mark.parametrize("key", ["nope", "custom_job.display_name", "parent.x", "customJob"])
def test_unknown_query_parameters_are_rejected(key: str) -> None:
    with pytest.raises(WireError) as caught:
        bind_request("POST", f"{PLACE}/customJobs", [(key, "1")], b'{"bad":1}')
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["custom_job.bad", key]
    assert "Cannot bind query parameter" in caught.value.violations[1].description


SERVICES = {
    "job_service": "JobService",
    "pipeline_service": "PipelineService",
    "vizier_service": "VizierService",
    "model_service": "ModelService",
}


@pytest.mark.parametrize(("module", "service"), SERVICES.items())
def test_every_route_of_the_sdk_is_served(module: str, service: str) -> None:
    transport = importlib.import_module(f"google.cloud.aiplatform_v1.services.{module}.transports.rest_base")
    base: Any = getattr(transport, f"_Base{service}RestTransport")
    ours = {
        (route.rpc.method, route.verb.lower(), route.template.text, route.body)
        for route in routes.routes("aiplatform_v1")
        if route.rpc.service == f"google.cloud.aiplatform.v1.{service}"
    }
    checked = 0
    for name, method in inspect.getmembers(base):
        if not hasattr(method, "_get_http_options"):
            continue
        rpc = name.removeprefix("_Base")
        for option in method._get_http_options():
            if option["uri"].startswith("/ui/") or f"/google.cloud.aiplatform.v1.{service}/{rpc}" not in (
                routes.rpcs("aiplatform_v1")
            ):
                continue
            checked += 1
            assert (rpc, option["method"], option["uri"], option.get("body", "")) in ours
    assert checked >= 6
