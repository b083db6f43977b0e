"""Requests of which every part is small, and of which there are too many: refused at once, while others are
answered."""

import contextlib
import http.client
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.running import CUSTOM_JOBS, PROJECT, Service, container_job, start

QUICK = 0.1
"""Processor seconds in which the service may answer nobody else because of such a request."""
ML_JOBS = f"/v1/projects/{PROJECT}/jobs"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    started = start(tmp_path_factory.mktemp("sizes") / "data")
    yield started
    started.terminate()


def with_labels(count: int) -> dict[str, Any]:
    return {**container_job("pass"), "labels": {f"label-{n}": "x" for n in range(count)}}


def lists(field: str, megabytes: int = 10) -> bytes:
    """A job with a field of empty lists."""
    many = b",".join([b"[]"] * ((megabytes << 20) // 3 - 100))
    return b'{"displayName": "x", "%b": [%b]}' % (field.encode(), many)


def with_arguments(count: int, text: str) -> dict[str, Any]:
    job = container_job("pass")
    (pool,) = job["jobSpec"]["workerPoolSpecs"]
    pool["containerSpec"]["args"] = [text] * count
    return job


def with_unknown_fields() -> dict[str, Any]:
    return {f"unknown{n}": 1 for n in range(20_000)}


def of_the_older_api() -> dict[str, Any]:
    return {"jobId": "x", "labels": {f"label-{n}": "x" for n in range(9_000)}}


CASES = [
    pytest.param(CUSTOM_JOBS, partial(with_labels, 100_000), "", "50000", id="labels"),
    pytest.param(CUSTOM_JOBS, partial(lists, "jobSpec"), "", "50000", id="lists"),
    pytest.param(
        CUSTOM_JOBS, partial(with_arguments, 10_000, "x" * 900), "args", "100000", id="arguments"
    ),
    pytest.param(
        CUSTOM_JOBS,
        with_unknown_fields,
        "Cannot find field",
        "And 19900 more faults",
        id="unknown-fields",
    ),
    pytest.param(ML_JOBS, of_the_older_api, "labels", "at most 64", id="labels-of-the-older-api"),
]


@pytest.mark.parametrize(("path", "body", "field", "limit"), CASES)
def test_many_small_things_are_refused_while_others_are_answered(
    service: Service, path: str, body: Callable[[], Any], field: str, limit: str
) -> None:
    """Nobody waits for long, since the service's loop computes little of it at a time; by the clock, tests
    beside this one would tell."""
    refusal = service.ask("POST", path, body())
    assert refusal.status == 400
    assert field in refusal.message
    assert limit in refusal.message
    assert refusal.message.count("\n") < 110
    loop = service.call("GET", "/trainshed/v1/status")["eventLoop"]
    assert loop["computed"] < QUICK, loop


def test_without_a_token_nothing_is_read(service: Service) -> None:
    """Refused before the body has come."""
    parts = urlsplit(service.rest)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    with contextlib.closing(connection):
        connection.putrequest("POST", CUSTOM_JOBS)
        connection.putheader("Content-Length", "9000000")
        connection.endheaders()
        assert connection.getresponse().status == 401


def test_a_form_without_a_token_has_few_bytes(service: Service) -> None:
    form = b"a=" + b"x" * 5_000_000
    refusal = service.ask("POST", "/oauth2/token", form, place="storage", token=None)
    assert refusal.status == 400
    assert b"16384" in refusal.body
