"""What the program of a real job reaches of other jobs by its own token (spec/lifecycle#jobs-of-jobs)."""

import json
from pathlib import Path

import pytest

from tests.e2e.running import CUSTOM_JOBS, SKLEARN, container_job, running, submit

PROGRAM = Path(__file__).parent / "programs" / "jobs_of_jobs.py"


def test_a_job_reaches_no_further_than_what_it_has_made(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        status = service.call("GET", "/trainshed/v1/status")
        if status["engine"]["isolation"] == "session":
            pytest.skip("Google's names lead to Google at this level: it is NOT tested")
        victim = submit(service, container_job("import time; time.sleep(600)"))
        body = container_job(PROGRAM.read_text())
        parent = CUSTOM_JOBS.removeprefix("/v1/").removesuffix("/customJobs")
        body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["args"] = [
            parent,
            f"{parent}/customJobs/{victim}",
            SKLEARN,
        ]
        maker = submit(service, body)
        assert service.finish(maker, 120)["state"] == "SUCCEEDED", service.lines(maker)
        (line,) = (line for line in service.lines(maker) if line.startswith("SEEN "))
        seen = json.loads(line.removeprefix("SEEN "))

        # With the one that outlives it, there are twenty.
        assert seen["statuses"] == {"200": 19, "429": 41}
        assert "max_child_jobs" in seen["too many"]
        assert (seen["victim"][0], seen["own"][0]) == (403, 200)
        for name in seen["made"]:
            assert service.finish(name.rpartition("/")[2], 120)["state"] == "CANCELLED"
        first, last = (
            {
                entry["kind"]: entry["message"]
                for entry in service.call(
                    "GET", f"/trainshed/v1/jobs/{name.rpartition('/')[2]}/timeline"
                )["entries"]
            }
            for name in (seen["made"][0], seen["made"][-1])
        )
        ours = f"the job {parent}/customJobs/{maker}"
        assert f"was created by {ours}" in first["created"]
        assert first["cancel_requested"] == f"The job was cancelled by {ours}."
        assert f"because {ours}" in last["cancel_requested"]
        for spared in (seen["outliving"], f"{parent}/customJobs/{victim}"):
            assert service.call("GET", f"/v1/{spared}")["state"] == "JOB_STATE_RUNNING"
            service.call("POST", f"/v1/{spared}:cancel", {})
