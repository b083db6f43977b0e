"""Google's clients inside a job find the service, not the cloud: unmodified, unconfigured, with the job's
identity."""

import json
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.e2e.running import PROJECT, SKLEARN, container_job, running, submit

PROGRAM = Path(__file__).parent / "programs" / "clients_in_job.py"


def test_a_notebooks_cells_train_log_and_upload_inside_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests' own interpreter and packages stand for an image that has the clients in it.
    shown = [sys.prefix, sys.base_prefix, sysconfig.get_path("purelib")]
    monkeypatch.setenv("TRAINSHED_VISIBLE_PATHS", ":".join(dict.fromkeys(shown)))
    with running(tmp_path / "data") as service:
        status = service.call("GET", "/trainshed/v1/status")
        if status["engine"]["isolation"] == "session":
            pytest.skip("Google's names lead to Google at this level: it is NOT tested")
        body = container_job(PROGRAM.read_text())
        pool = body["jobSpec"]["workerPoolSpecs"][0]
        pool["containerSpec"] = {
            "imageUri": SKLEARN,
            "command": [sys.executable, "-c", PROGRAM.read_text()],
            "args": ["trainshed", "another-project", SKLEARN],
        }
        job = submit(service, body)
        state, lines = service.finish(job, 300)["state"], service.lines(job)
        assert state == "SUCCEEDED", "\n".join(lines[-30:])
        (told,) = (line for line in lines if line.startswith("SEEN "))
        seen = json.loads(told.removeprefix("SEEN "))
        assert (seen["project"], seen["by number"], seen["own job"]) == (PROJECT, PROJECT, True)
        assert seen["seconds"] < 20, "55 s before: it asked a host that was not there"
        for transport in ("grpc", "rest"):
            assert seen[f"models {transport}"] == [f"gs://trainshed/{transport}", transport]
            assert seen[f"foreign {transport}"] == 403
        assert (seen["ml"], seen["dynamic"], seen["without a token"]) == ([], [], 401)
        made_id = seen["made"].rsplit("/", 1)[1]
        assert service.finish(made_id, 120)["state"] == "SUCCEEDED"
        assert "made inside" in service.lines(made_id)
        read = {"resourceNames": [f"projects/{PROJECT}"], "filter": 'severity="ERROR"'}
        (entry,) = (
            each["jsonPayload"]
            for each in service.call("POST", "/v2/entries:list", read)["entries"]
            if "loss" in each.get("jsonPayload", {})
        )
        assert entry == {"message": "said by the API", "loss": 0.5}
