"""The private pool, the discovery documents, statuses (spec/invariants#private-pool,
facts/limits#error-texts)."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message

from trainshed.wire import pool, status
from trainshed.wire.status import StatusCode, Violation

CUSTOM_JOB = "google.cloud.aiplatform.v1.CustomJob"


@pytest.mark.parametrize(
    "name",
    [
        CUSTOM_JOB,
        "google.cloud.aiplatform.v1.Study",
        "google.cloud.aiplatform.v1.TrainingPipeline",
        "google.cloud.aiplatform.v1.Model",
        "google.cloud.aiplatform.v1.PersistentResource",
        "google.cloud.ml.v1.Job",
        "google.cloud.ml.v1.TrainingInput",
        "google.logging.v2.LogEntry",
        "google.longrunning.Operation",
        "google.cloud.location.Location",
        "google.iam.v1.Policy",
        "google.rpc.Status",
        "google.rpc.BadRequest",
        "google.protobuf.Empty",
    ],
)
def test_served_messages_have_a_class(name: str) -> None:
    kind = pool.message_class(name)
    assert kind.DESCRIPTOR.full_name == name
    assert pool.message_class(name) is kind


def test_an_unknown_message_says_what_to_check() -> None:
    with pytest.raises(KeyError, match=r"no public message is called 'a\.B': check the name"):
        pool.message_class("a.B")


def test_shared_messages_are_one_class_for_all_apis() -> None:
    status_class = pool.message_class("google.rpc.Status")
    operation = pool.message_class("google.longrunning.Operation")(
        error=status_class(code=3, message="no")
    )
    pool.load("ml_v1")
    pool.load("logging_v2")
    assert pool.message_class("google.longrunning.Operation") is type(operation)
    entry = pool.message_class("google.logging.v2.LogEntry")()
    cast(Any, entry).timestamp.seconds = 5
    assert cast(Any, entry).timestamp.ToDatetime().year == 1970


def test_the_default_pool_stays_clean() -> None:
    """spec/invariants#private-pool: the SDK registers the same files in the default pool."""
    script = (
        "from google.protobuf import descriptor_pool\n"
        "from trainshed.wire import pool\n"
        f"[pool.load(api) for api in pool.APIS]\n"
        "try:\n"
        f"    descriptor_pool.Default().FindMessageTypeByName({CUSTOM_JOB!r})\n"
        "except KeyError:\n"
        "    print('clean')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "clean"
    assert pool.pool() is not descriptor_pool.Default()


def test_first_use_from_many_threads_gives_one_class() -> None:
    script = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from trainshed.wire import pool\n"
        "with ThreadPoolExecutor(16) as threads:\n"
        f"    found = list(threads.map(pool.message_class, [{CUSTOM_JOB!r}] * 64))\n"
        "print(len(set(map(id, found))))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"


def test_importing_the_room_does_not_import_protobuf_descriptors() -> None:
    script = (
        "import sys\n"
        "import trainshed.wire.binding, trainshed.wire.json, trainshed.wire.routes\n"
        "trainshed.wire.routes.route_table()\n"
        "print('google.protobuf.descriptor_pb2' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_loading_twice_gives_the_same_files() -> None:
    with ThreadPoolExecutor(4) as threads:
        again: list[pool.Api] = ["logging_v2"] * 8
        names = set(threads.map(pool.load, again))
    assert len(names) == 1


@pytest.mark.parametrize("api", ["ml_v1", "logging_v2"])
def test_discovery_documents_hold_names_and_no_prose(api: str) -> None:
    text = pool.discovery_document(api, "http://127.0.0.1:8080")
    document = json.loads(text)
    assert document["rootUrl"] == document["baseUrl"] == "http://127.0.0.1:8080/"
    assert b"enumDescriptions" not in text

    def longest(value: object) -> int:
        if isinstance(value, dict):
            return max(
                (longest(inner) for inner in cast(dict[str, object], value).values()), default=0
            )
        if isinstance(value, list):
            return max((longest(inner) for inner in cast(list[object], value)), default=0)
        return value.count(" ") if isinstance(value, str) else 0

    assert longest(document) < 4


def test_there_is_no_document_for_what_has_none() -> None:
    with pytest.raises(KeyError, match="ask for one of logging_v2, ml_v1"):
        pool.discovery_document("aiplatform_v1", "http://x")


def test_apiclient_builds_the_ml_service_from_our_document() -> None:
    """spec/clients#surface: the methods that gcloud ai-platform and apiclient need."""
    discovery: Any = pytest.importorskip("googleapiclient.discovery")
    http: Any = pytest.importorskip("googleapiclient.http")
    service = discovery.build_from_document(
        pool.discovery_document("ml_v1", "http://h:1"), http=http.HttpMock()
    )
    projects = service.projects()
    jobs = projects.jobs()
    created = jobs.create(parent="projects/p", body={"jobId": "j"})
    assert created.uri == "http://h:1/v1/projects/p/jobs?alt=json"
    assert jobs.list(parent="projects/p", filter="state:FAILED", pageSize=5).uri.startswith(
        "http://h:1/v1/projects/p/jobs?filter=state%3AFAILED&pageSize=5"
    )
    patched = jobs.patch(name="projects/p/jobs/j", updateMask="labels", body={})
    assert patched.method == "PATCH"
    assert jobs.cancel(name="projects/p/jobs/j", body={}).uri.endswith("/jobs/j:cancel?alt=json")
    assert projects.getConfig(name="projects/p").uri.endswith("/projects/p:getConfig?alt=json")
    for methods, names in (
        (jobs, ("get", "getIamPolicy", "setIamPolicy", "testIamPermissions")),
        (projects.locations(), ("get", "list")),
        (projects.operations(), ("get", "list", "cancel")),
    ):
        assert all(hasattr(methods, name) for name in names)
    assert not hasattr(jobs, "delete")


def test_status_codes_are_googles() -> None:
    code_pb2: Any = pytest.importorskip("google.rpc.code_pb2")
    assert {code.name: code.number for code in StatusCode} == dict(code_pb2.Code.items())
    assert StatusCode.of(5) is StatusCode.NOT_FOUND
    assert StatusCode.of(99) is StatusCode.UNKNOWN
    assert (StatusCode.ALREADY_EXISTS.http, StatusCode.RESOURCE_EXHAUSTED.http) == (409, 429)


def test_error_body_has_the_public_shape() -> None:
    body = status.error_body(
        StatusCode.INVALID_ARGUMENT, "bad", [Violation("job.job_id", "no")], reason="WHY"
    )
    assert json.loads(body) == {
        "error": {
            "code": 400,
            "message": "bad",
            "status": "INVALID_ARGUMENT",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                    "reason": "WHY",
                    "domain": "googleapis.com",
                },
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": [{"field": "job.job_id", "description": "no"}],
                },
            ],
        }
    }
    assert "details" not in json.loads(status.error_body(StatusCode.NOT_FOUND, "gone"))["error"]


def test_the_grpc_status_says_the_same() -> None:
    from trainshed.wire.json import to_public

    message = status.status_message(
        StatusCode.INVALID_ARGUMENT, "bad", [Violation("job.job_id", "no")], reason="WHY"
    )
    assert isinstance(message, Message)
    rest = json.loads(
        status.error_body(
            StatusCode.INVALID_ARGUMENT, "bad", [Violation("job.job_id", "no")], reason="WHY"
        )
    )["error"]
    public = to_public(message)
    assert public["code"] == 3
    assert public["message"] == rest["message"]
    assert public["details"] == rest["details"]
