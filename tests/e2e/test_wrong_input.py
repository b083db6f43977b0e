"""Wrong input of every kind of spec/submit#refusals over plain REST: status, shape, all fields named, nothing
stored."""

import copy
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.running import CUSTOM_JOBS, PROJECT, SKLEARN, Service, container_job

ML_JOBS = f"/v1/projects/{PROJECT}/jobs"
GOOD_ML: dict[str, Any] = {
    "jobId": "good",
    "trainingInput": {
        "scaleTier": "BASIC",
        "packageUris": ["gs://trainshed/p-1.0.tar.gz"],
        "pythonModule": "trainer.task",
        "region": "us-central1",
        # On the service that the files share it is the environment of all; another would be built, though the
        # job has failed long since.
        "runtimeVersion": "2.11",
        "pythonVersion": "3.7",
    },
}
GOOD_VERTEX = container_job("print('never')")

Change = Callable[[dict[str, Any]], Any]


def changed(good: dict[str, Any], change: Change) -> dict[str, Any]:
    body = copy.deepcopy(good)
    change(body)
    return body


def ml_input(**values: Any) -> Change:
    def change(body: dict[str, Any]) -> None:
        body["trainingInput"].update(values)

    return change


def job(**values: Any) -> Change:
    return lambda body: body.update(values)


def spec(**values: Any) -> Change:
    return lambda body: body["jobSpec"].update(values)


def pool(**values: Any) -> Change:
    return lambda body: body["jobSpec"]["workerPoolSpecs"][0].update(values)


def custom(**values: Any) -> Change:
    return ml_input(**{"scaleTier": "CUSTOM", "masterType": "n1-standard-4", **values})


ML_CASES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "no job id": (job(jobId=""), ("job_id",)),
    "job id with a dash": (job(jobId="a-b"), ("job_id",)),
    "job id starts with a digit": (job(jobId="1a"), ("job_id",)),
    "job id too long": (job(jobId="a" * 129), ("job_id",)),
    "no training input": (lambda body: body.pop("trainingInput"), ("training_input",)),
    "max wait below 1800s": (
        ml_input(scheduling={"maxWaitTime": "1799s"}),
        ("scheduling.max_wait_time",),
    ),
    "runtime and python do not go together": (
        ml_input(runtimeVersion="2.6", pythonVersion="2.7"),
        ("python_version",),
    ),
    "unknown runtime": (ml_input(runtimeVersion="9.9"), ("runtime_version",)),
    "unknown region": (ml_input(region="mars-west1"), ("region",)),
    "no region": (ml_input(region=""), ("region",)),
    "no module": (ml_input(pythonModule=""), ("python_module",)),
    "no packages": (ml_input(packageUris=[]), ("package_uris",)),
    "package outside a bucket": (ml_input(packageUris=["/tmp/p.tar.gz"]), ("package_uris",)),
    "job dir outside a bucket": (ml_input(jobDir="/tmp/x"), ("job_dir",)),
    "job dir in a bucket that is not there": (
        ml_input(jobDir="gs://no-such-bucket/x"),
        ("job_dir",),
    ),
    "label with a capital": (job(labels={"Team": "A"}), ("labels",)),
    "unknown machine": (custom(masterType="n9-huge"), ("master_type",)),
    "GPUs that the machine cannot take": (
        lambda body: body["trainingInput"].update(
            scaleTier="CUSTOM",
            masterType="e2-standard-4",
            masterConfig={"acceleratorConfig": {"count": "1", "type": "NVIDIA_TESLA_T4"}},
        ),
        ("master_config",),
    ),
    "master type with a tier that has its own": (
        ml_input(masterType="n1-standard-4"),
        ("master_type",),
    ),
    "CUSTOM without a master type": (ml_input(scaleTier="CUSTOM"), ("master_type",)),
    "workers without a type": (custom(workerCount="2"), ("worker_type",)),
    "many at once": (
        lambda body: (
            body.update(jobId="1-x", labels={"A": "b"}),
            body["trainingInput"].update(
                region="mars-west1",
                runtimeVersion="9.9",
                scheduling={"maxWaitTime": "5s"},
                jobDir="nowhere",
            ),
        ),
        ("job_id", "labels", "region", "runtime_version", "scheduling.max_wait_time", "job_dir"),
    ),
    "unknown field": (ml_input(colour="red"), ("colour",)),
    "unknown enum value": (ml_input(scaleTier="GIGANTIC"), ("scale_tier",)),
    "wrong type": (ml_input(workerCount={"a": 1}), ("worker_count",)),
    "a bad duration": (ml_input(scheduling={"maxRunningTime": "an hour"}), ("max_running_time",)),
}

POOL0 = "job_spec.worker_pool_specs[0]"
VERTEX_CASES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "no display name": (job(displayName=""), ("display_name",)),
    "display name too long": (job(displayName="x" * 129), ("display_name",)),
    "no pools": (spec(workerPoolSpecs=[]), ("worker_pool_specs",)),
    "an empty primary pool": (spec(workerPoolSpecs=[{}]), (POOL0,)),
    "two primaries": (pool(replicaCount="2"), (f"{POOL0}.replica_count",)),
    "five pools": (
        lambda body: body["jobSpec"]["workerPoolSpecs"].extend(
            body["jobSpec"]["workerPoolSpecs"] * 4
        ),
        ("worker_pool_specs",),
    ),
    "unknown machine": (
        pool(machineSpec={"machineType": "n9-huge"}),
        (f"{POOL0}.machine_spec.machine_type",),
    ),
    "machine and accelerator do not go together": (
        pool(
            machineSpec={
                "machineType": "e2-standard-4",
                "acceleratorType": "NVIDIA_TESLA_T4",
                "acceleratorCount": 1,
            }
        ),
        (f"{POOL0}.machine_spec",),
    ),
    "container and package at once": (
        pool(
            pythonPackageSpec={
                "executorImageUri": SKLEARN,
                "packageUris": ["gs://trainshed/p.tar.gz"],
                "pythonModule": "a",
            }
        ),
        (POOL0,),
    ),
    "no image": (pool(containerSpec={"command": ["a"]}), (f"{POOL0}.container_spec.image_uri",)),
    "bad bucket": (
        spec(baseOutputDirectory={"outputUriPrefix": "s3://a/b"}),
        ("base_output_directory",),
    ),
    "bad label": (job(labels={"A B": "c"}), ("labels",)),
    "disk too large": (
        pool(diskSpec={"bootDiskSizeGb": 10**6}),
        (f"{POOL0}.disk_spec.boot_disk_size_gb",),
    ),
    "negative timeout": (spec(scheduling={"timeout": "-5s"}), ("scheduling.timeout",)),
    "many at once": (
        lambda body: (
            body.update(displayName="", labels={"A": "b"}),
            body["jobSpec"]["workerPoolSpecs"][0].update(
                replicaCount="3", machineSpec={"machineType": "huge"}
            ),
        ),
        (
            "display_name",
            "labels",
            f"{POOL0}.replica_count",
            f"{POOL0}.machine_spec.machine_type",
        ),
    ),
    "unknown field": (job(colour="red"), ("colour",)),
    "unknown field deep inside": (pool(colour="red"), ("colour",)),
    "unknown enum value": (spec(scheduling={"strategy": "SOMETIMES"}), ("strategy",)),
    "wrong type": (spec(workerPoolSpecs="one"), ("worker_pool_specs",)),
    "a fraction for a count": (pool(replicaCount=1.5), ("replica_count",)),
}


def expect_refused(answer: dict[str, Any], code: int, status: str) -> dict[str, Any]:
    """The google.rpc.Status shape of an error over REST."""
    error = answer["error"]
    assert error["code"] == code
    assert error["status"] == status
    assert error["message"]
    return error


def fields_named(error: dict[str, Any]) -> list[str]:
    (bad,) = [d for d in error["details"] if d["@type"].endswith("google.rpc.BadRequest")]
    assert all(v["description"] for v in bad["fieldViolations"])
    return [v["field"] for v in bad["fieldViolations"]]


def snake(text: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in text)


def expect_fields(error: dict[str, Any], wanted: tuple[str, ...]) -> None:
    named = [snake(field) for field in fields_named(error)]
    for field in wanted:
        assert any(field in name for name in named), (field, named, error["message"])


def all_jobs(service: Service) -> list[str]:
    return [
        found["name"]
        for found in service.call("GET", "/trainshed/v1/jobs?project=-&limit=500")["jobs"]
    ]


@pytest.mark.parametrize("case", ML_CASES)
def test_ml_job_is_refused_and_not_stored(service: Service, case: str) -> None:
    """spec/submit#refusals."""
    before = all_jobs(service)
    change, wanted = ML_CASES[case]
    answer = service.call("POST", ML_JOBS, changed(GOOD_ML, change), expect=400)
    expect_fields(expect_refused(answer, 400, "INVALID_ARGUMENT"), wanted)
    assert all_jobs(service) == before


@pytest.mark.parametrize("case", VERTEX_CASES)
def test_custom_job_is_refused_and_not_stored(service: Service, case: str) -> None:
    """spec/submit#refusals."""
    before = all_jobs(service)
    change, wanted = VERTEX_CASES[case]
    answer = service.call("POST", CUSTOM_JOBS, changed(GOOD_VERTEX, change), expect=400)
    expect_fields(expect_refused(answer, 400, "INVALID_ARGUMENT"), wanted)
    assert all_jobs(service) == before


def test_a_refused_id_is_free_and_a_taken_one_is_not(service: Service) -> None:
    """spec/submit#refusals, "duplicate jobId (409)"."""
    body = changed(GOOD_ML, job(jobId="taken_once"))
    wrong = changed(body, ml_input(region="mars-west1"))
    service.call("POST", ML_JOBS, wrong, expect=400)
    service.call("POST", ML_JOBS, body)
    answer = service.call("POST", ML_JOBS, body, expect=409)
    assert "taken_once" in expect_refused(answer, 409, "ALREADY_EXISTS")["message"]
    both = service.call("POST", ML_JOBS, wrong, expect=400)
    expect_refused(both, 400, "INVALID_ARGUMENT")
    service.finish("taken_once")


def raw(
    service: Service, verb: str, path: str, data: bytes | None, headers: dict[str, str]
) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(service.rest + path, method=verb, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as failure:
        return failure.code, json.loads(failure.read())


@pytest.mark.parametrize(
    "text",
    [b"{", b"", b"[]", b'"text"', b"null", b"\xff\xfe", b'{"displayName": 1e400}', b"{" * 5000],
)
def test_bodies_that_are_no_json_object(service: Service, text: bytes) -> None:
    before = all_jobs(service)
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    for path in (CUSTOM_JOBS, ML_JOBS):
        status, answer = raw(service, "POST", path, text, headers)
        assert status == 400, (path, answer)
        expect_refused(answer, 400, "INVALID_ARGUMENT")
    assert all_jobs(service) == before


def test_a_body_over_the_limit(service: Service) -> None:
    """facts: the public services draw the line at 10 MB. The answer comes before the body, of which nothing
    is read: who sends on may hear of the closed connection alone."""
    address = urllib.parse.urlsplit(service.rest)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.putrequest("POST", CUSTOM_JOBS)
    for name, value in (
        ("Authorization", f"Bearer {service.token}"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(11 << 20)),
    ):
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status in (400, 413)
    assert "exceeds the limit" in json.loads(answer.read())["error"]["message"]
    connection.close()


def test_credentials(service: Service) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": service.token},
        {"Authorization": "Bearer"},
    ):
        for path in (CUSTOM_JOBS, ML_JOBS, "/trainshed/v1/jobs?project=-"):
            status, answer = raw(service, "GET", path, None, headers)
            assert status == 401, (headers, path)
            expect_refused(answer, 401, "UNAUTHENTICATED")
    # A 401 would make a browser forget the credentials with which it is signed in to the console.
    status, answer = raw(service, "GET", ML_JOBS, None, {"Authorization": "Basic YTpi"})
    assert status == 403
    expect_refused(answer, 401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (f"{CUSTOM_JOBS}?pageToken=nonsense", "page_token"),
        (f"{CUSTOM_JOBS}?pageSize=-1", "page_size"),
        (f"{CUSTOM_JOBS}?pageSize=many", "page_size"),
        (f"{CUSTOM_JOBS}?filter=state%3D", "filter"),
        (f"{CUSTOM_JOBS}?filter=colour%3D%22red%22", "filter"),
        (f"{CUSTOM_JOBS}?colour=red", "colour"),
        (f"{ML_JOBS}?pageToken=nonsense", "page_token"),
        (f"{ML_JOBS}?pageSize=-1", "page_size"),
        (f"{ML_JOBS}?filter=state%20is%20good", "filter"),
        (f"{ML_JOBS}?colour=red", "colour"),
    ],
)
def test_wrong_list_parameters(service: Service, path: str, field: str) -> None:
    error = expect_refused(service.call("GET", path, expect=400), 400, "INVALID_ARGUMENT")
    expect_fields(error, (field,))


def test_a_page_token_of_another_question(service: Service) -> None:
    for _ in range(2):
        service.call("POST", CUSTOM_JOBS, GOOD_VERTEX)
    token = service.call("GET", f"{CUSTOM_JOBS}?pageSize=1")["nextPageToken"]
    service.call("GET", f"{CUSTOM_JOBS}?pageSize=1&pageToken={token}")
    wrong = f"{CUSTOM_JOBS}?pageSize=1&filter=state%3D%22JOB_STATE_FAILED%22&pageToken={token}"
    expect_fields(service.call("GET", wrong, expect=400)["error"], ("page_token",))


@pytest.mark.parametrize(
    ("verb", "path", "code", "status"),
    [
        ("GET", "/v1/nothing", 404, "NOT_FOUND"),
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("PUT", CUSTOM_JOBS, 404, "NOT_FOUND"),
        ("GET", f"{CUSTOM_JOBS}/12345", 404, "NOT_FOUND"),
        ("GET", f"{ML_JOBS}/absent", 404, "NOT_FOUND"),
        ("POST", f"{ML_JOBS}/absent:cancel", 404, "NOT_FOUND"),
        ("DELETE", f"{CUSTOM_JOBS}/12345", 404, "NOT_FOUND"),
        ("GET", f"/v1/projects/{PROJECT}/locations/us-central1/nasJobs", 400, "UNIMPLEMENTED"),
        ("GET", f"/v1/projects/{PROJECT}/locations/us-central1/pipelineJobs", 400, "UNIMPLEMENTED"),
        ("GET", f"/v1/projects/{PROJECT}/locations/mars-west1/customJobs", 404, "NOT_FOUND"),
        ("GET", "/v1/projects/BAD_Project!/locations/us-central1/customJobs", 400, ""),
        ("GET", "/trainshed/v1/nothing", 404, "NOT_FOUND"),
    ],
)
def test_what_is_not_there(service: Service, verb: str, path: str, code: int, status: str) -> None:
    answer = service.call(verb, path, {} if verb in ("POST", "PUT") else None, expect=code)
    expect_refused(answer, code, status or answer["error"]["status"])


def test_output_only_fields_are_ignored_and_null_is_unset(service: Service) -> None:
    """spec/submit#refusals (spec/clients#wire): what a client sends back does not get it refused."""
    body = changed(
        GOOD_VERTEX,
        job(
            name="projects/x/locations/y/customJobs/1",
            state="JOB_STATE_FAILED",
            createTime="2020-01-01T00:00:00Z",
            webAccessUris={},
            encryptionSpec=None,
        ),
    )
    made = service.call("POST", CUSTOM_JOBS, body)
    assert made["state"] in ("JOB_STATE_PENDING", "JOB_STATE_QUEUED")
    assert not made["createTime"].startswith("2020")
