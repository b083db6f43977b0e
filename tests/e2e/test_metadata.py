"""A program's metadata server announces preemption. tests/unit/test_buckets_metadata.py tests its other
contents.
"""

import pytest

from tests.e2e.running import CUSTOM_JOBS, Service, container_job, submit

WATCHES = """
import os, signal, threading, urllib.request
BASE = "http://metadata.google.internal/computeMetadata/v1/instance/"
def get(path):
    request = urllib.request.Request(BASE + path, headers={"Metadata-Flavor": "Google"})
    answer = urllib.request.urlopen(request)
    return answer.read().decode(), answer.headers["ETag"]
def stop(*_):
    # Waits a moment for a notice that was sent at the same time as the signal.
    now, _ = get("preempted?wait_for_change=true&timeout_sec=2&last_etag=" + tag)
    if now == "TRUE":
        watcher.join()
    print("AT STOP", now, get("maintenance-event")[0], flush=True)
    os._exit(1)
now, tag = get("preempted")
print("AT START", now, flush=True)
def watch():
    print("CHANGED", get("preempted?wait_for_change=true")[0], flush=True)
watcher = threading.Thread(target=watch, daemon=True)
signal.signal(signal.SIGTERM, stop)
watcher.start()
print("WATCHING", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("kind", "event"), [("preempt", "NONE"), ("maintenance", "TERMINATE_ON_HOST_MAINTENANCE")]
)
def test_program_that_watches_the_metadata_server_sees_preemption_but_no_cancel(
    service: Service, kind: str, event: str
) -> None:
    """Regression: the hanging GET was rejected, and recipes stopped their training at its first step."""
    job = submit(service, container_job(WATCHES))
    order = {"kind": kind, "replica": "workerpool0-0", "atLine": "^WATCHING"}
    service.call("POST", f"/trainshed/v1/jobs/{job}:drill", order)
    lines: list[str] = []
    for line in service.follow(job):
        lines.append(line)
        if lines.count("WATCHING") == 2:
            service.call("POST", f"{CUSTOM_JOBS}/{job}:cancel", {})
            break
    service.finish(job)
    lines = [line for line in service.lines(job) if line.startswith(("AT", "CHANGED"))]
    assert lines[:3] == ["AT START FALSE", "CHANGED TRUE", f"AT STOP TRUE {event}"]
    assert lines[3:] == ["AT START FALSE", "AT STOP FALSE NONE"]
