"""The user of a job whose Python is missing is informed before the submit, in the timeline, and in
the description (spec/runtimes#substitutes)."""

from collections.abc import Sequence
from pathlib import Path

from tests.contract.api.api_service import LOCATION, ApiService
from tests.unit.specs_requests import container, custom_job
from trainshed.runtimes.catalog import LocalCatalog
from trainshed.runtimes.families import Minor
from trainshed.runtimes.interpreters import Interpreters

IMAGE = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-8:latest"


class OnePython(Interpreters):
    """A machine with only Python 3.11."""

    def usual(self) -> Minor:
        return (3, 11)

    def found(self) -> Sequence[Minor]:
        return [(3, 11)]


async def test_substituted_python_is_reported_before_and_after_submit(tmp_path: Path) -> None:
    service = ApiService(tmp_path)
    service.serve(runtimes=LocalCatalog(OnePython()))
    body = custom_job(container(imageUri=IMAGE, command=["python3", "-c", "pass"]))
    request = {"api": "vertex", "project": "p1", "location": "us-central1", "job": body}
    explained = await service.result("POST", "/trainshed/v1/jobs:explain", request)
    made = await service.result("POST", f"{LOCATION}/customJobs", body)
    path = f"/trainshed/v1/jobs/{made['name'].rpartition('/')[2]}"
    timeline = (await service.result("GET", f"{path}/timeline"))["entries"]
    substitutions = (await service.result("GET", path))["substitutions"]
    assert len(substitutions) == 1
    assert "TensorFlow 2.8 on Python 3.7, which is not available here" in substitutions[0]
    assert "`pyenv install 3.7`" in substitutions[0]
    assert substitutions[0] in explained["warnings"]
    assert substitutions[0] not in explained["notices"]
    assert substitutions[0] in [entry["message"] for entry in timeline if entry["kind"] == "warning"]
    service.close()
