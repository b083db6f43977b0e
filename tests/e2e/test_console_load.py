"""Two hundred browsers look at one job that prints 20 MB/s: what everybody else's calls take meanwhile."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.e2e import loop_load
from tests.e2e.browsing import credentials_of
from tests.e2e.running import CUSTOM_JOBS, ROOT, Service, container_job, running, submit

pytestmark = pytest.mark.soak
BROWSERS = 200
SECONDS = 8.0
FLOOD = """
import sys, time
block = ("x" * 99 + "\\n") * 20_000
while True:
    began = time.time()
    sys.stdout.write(block)
    sys.stdout.flush()
    time.sleep(max(0, 0.1 - (time.time() - began)))
"""
"""2 MB ten times a second."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("crowd") / "data") as started:
        # What is loaded by the first job, and its runtime, are there.
        loop_load.start_gang(started, 2)
        yield started


@pytest.fixture(scope="module")
def quiet(service: Service) -> float:
    """p99 of status calls, in ms, while nothing runs."""
    return p99(service, [])


def p99(service: Service, paths: list[str]) -> float:
    """Of status calls beside these event streams, in ms."""
    if not paths:
        with loop_load.calling(service) as found:
            time.sleep(SECONDS)
        return _p99(found[0])
    address = urlsplit(service.rest)
    where = (address.hostname or "", str(address.port), credentials_of(service))
    watching = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.watchers", *where, *paths],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert watching.stdout is not None
    assert watching.stdout.readline() == "open\n"
    with loop_load.calling(service) as found:
        time.sleep(SECONDS)
    said, _ = watching.communicate("")
    streams = json.loads(said.splitlines()[-1])
    assert len(streams) == len(paths)
    assert min(events for _, events in streams) > 1, "some were told nothing"
    return _p99(found[0])


def _p99(calls: list[float]) -> float:
    return sorted(calls)[int(len(calls) * 0.99)] * 1e3


@pytest.mark.parametrize(
    "page", ["/events/jobs/{job}", "/events/jobs/{job}/logs?lines=true"], ids=["job", "log"]
)
def test_a_crowd_before_a_flood_keeps_nobody_waiting(
    service: Service, quiet: float, page: str
) -> None:
    job = submit(service, container_job(FLOOD))
    try:
        next(service.follow(job))
        ratios: list[float] = []
        for _ in range(3):
            beside = p99(service, [page.format(job=job)] * BROWSERS)
            print(f"p99 of status calls: {quiet:.1f} ms, beside {BROWSERS} streams {beside:.1f} ms")
            ratios.append(beside / quiet)
            if ratios[-1] < 3:
                return
        raise AssertionError(f"p99 was {ratios} times of what it is without them")
    finally:
        service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
        service.finish(job, 60)
