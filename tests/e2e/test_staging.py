"""Staged code: the submitted code is the code that runs (docs/adr/0163)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.packages import package_job, source_package
from tests.e2e.running import SKLEARN, Service, trainshed

pytestmark = pytest.mark.e2e
TEAM = "team-s"
PARENT = f"/v1/projects/{TEAM}/locations/us-central1/customJobs"
MINE, THEIRS = (source_package(f"print('{who}'); raise SystemExit(3)") for who in ("me", "them"))


def uri_of(job: dict[str, Any]) -> str:
    (pool,) = job["jobSpec"]["workerPoolSpecs"]
    (uri,) = pool["pythonPackageSpec"]["packageUris"]
    return uri


def place_of(uri: str) -> tuple[str, str]:
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    return bucket, name


def test_job_file_does_not_run_a_package_that_was_replaced_after_staging(
    service: Service, tmp_path: Path
) -> None:
    """Regression: with a replaced wheel the owner's `run -f` printed the attacker's text."""
    here: Any = {"data": service.data, "cwd": tmp_path}
    (tmp_path / "task.py").write_text("print('mine')\n")
    words = ("run", "task.py", "--image", SKLEARN, "--project", TEAM)
    printed = trainshed(*words, "--as", "json", **here).stdout
    (tmp_path / "job.json").write_text(printed)
    uri = uri_of(json.loads(printed))
    assert uri.startswith(f"gs://trainshed-{TEAM}/trainshed-run/")
    run = ("run", "-f", "job.json", "--project", TEAM)
    assert "mine" in trainshed(*run, "--watch", **here).stdout
    content = service.read(*place_of(uri))
    service.put(*place_of(uri), content + b"\n")
    refusal = trainshed(*run, status=1, **here).stderr
    assert f"The package {uri} has changed since the job was created" in refusal
    assert hashlib.sha256(content + b"\n").hexdigest() in refusal
    service.put(*place_of(uri), content)
    assert "mine" in trainshed(*run, "--watch", **here).stdout


def test_package_that_is_replaced_while_its_job_waits_is_not_run(service: Service) -> None:
    """The digest is pinned when the job is created and checked when the package is installed, also for a
    retry.
    """
    quota = {"project": TEAM, "region": "us-central1", "metric": "cpus_n1_e2"}
    bucket, name = "replaced-s", "pkg-1.0.tar.gz"
    service.call("POST", f"/storage/v1/b?project={TEAM}", {"name": bucket})
    service.put(bucket, name, MINE)
    service.call("POST", "/trainshed/v1/quotas:set", quota | {"limit": 0})
    job = service.call("POST", PARENT, package_job(f"gs://{bucket}/{name}"))["name"].rsplit("/", 1)[1]
    service.put(bucket, name, THEIRS)
    service.call("POST", "/trainshed/v1/quotas:set", quota | {"limit": "unlimited"})
    view = service.finish(job)
    assert view["state"] == "FAILED" and "them" not in service.lines(job)
    message = view["error"]["message"]
    for word in (f"gs://{bucket}/{name}", *(hashlib.sha256(c).hexdigest() for c in (MINE, THEIRS))):
        assert word in message
    assert "submit it as a new job" in message
    retry = ("jobs", "retry", job, "--watch")
    assert hashlib.sha256(MINE).hexdigest() in trainshed(*retry, data=service.data, status=1).stderr
    service.put(bucket, name, MINE)
    assert "me" in trainshed(*retry, data=service.data, status=1).stdout.split()
