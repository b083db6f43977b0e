"""Google's clients inside a job connect to the service, not the cloud: unmodified, unconfigured, with the
job's identity.
"""

import sys
import sysconfig
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.packages import PROGRAMS
from tests.e2e.running import PROJECT, SKLEARN, Service, container_job, json_of, running, submit

BUCKET, FOREIGN = "trainshed", "another-project"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose programs use the tests' own interpreter and packages, in place of an image with the
    clients.
    """
    shown = [sys.prefix, sys.base_prefix, sysconfig.get_path("purelib")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINSHED_VISIBLE_PATHS", ":".join(dict.fromkeys(shown)))
        with running(tmp_path_factory.mktemp("service")) as started:
            status = started.call("GET", "/trainshed/v1/status")
            if status["engine"]["isolation"] == "session":
                pytest.skip("Google's names lead to Google at this level: it is NOT tested")
            yield started


def job_of(program: str, *arguments: str) -> dict[str, Any]:
    """A job that runs one of `PROGRAMS`."""
    text = (PROGRAMS / program).read_text()
    body = container_job(text)
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"] = {
        "imageUri": SKLEARN,
        "command": [sys.executable, "-c", text],
        "args": list(arguments),
    }
    return body


def test_notebook_cells_train_log_and_upload_inside_a_job(service: Service) -> None:
    job = submit(service, job_of("clients_in_job.py", BUCKET, FOREIGN, SKLEARN))
    view, lines = service.finish(job, 300), service.lines(job)
    assert view["state"] == "SUCCEEDED", (view, "\n".join(lines[-30:]))
    seen = json_of(lines, "SEEN")
    assert (seen["project"], seen["by number"], seen["own job"]) == (PROJECT, PROJECT, True)
    assert seen["seconds"] < 40, "55 s before: it asked a host that was not there"
    for transport in ("grpc", "rest"):
        assert seen[f"models {transport}"] == [f"gs://trainshed/{transport}", transport]
        assert seen[f"foreign {transport}"] == 403
    first, second = (uri.removesuffix("/data.txt") for uri in seen["staged"])
    assert first.startswith("gs://") and first != second
    assert (seen["ml"], seen["dynamic"], seen["without a token"]) == ([], [], 401)
    for transport in ("grpc", "rest"):
        status, text = seen[f"secret {transport}"]
        assert status == "UNIMPLEMENTED"
        assert "`trainshed run --secret VARIABLE=NAME`" in text
    assert seen["secret seconds"] < 40, "60 s before: it asked a host that was not there"
    made_id = seen["made"].rsplit("/", 1)[1]
    assert service.finish(made_id, 120)["state"] == "SUCCEEDED"
    assert "made inside" in service.lines(made_id)
    read = {"resourceNames": [f"projects/{PROJECT}"], "filter": 'severity="ERROR"'}
    (entry,) = (
        entry["jsonPayload"]
        for entry in service.call("POST", "/v2/entries:list", read)["entries"]
        if "loss" in entry.get("jsonPayload", {})
    )
    assert entry == {"message": "said by the API", "loss": 0.5}
