"""The Node client with tuning jobs, over gRPC without TLS (issue 4); its custom jobs are in
`test_grpc_clients`."""

import json
import os
import socket
import subprocess
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e.processes import marked, new_mark
from tests.e2e.running import SKLEARN, Service, environment
from tests.e2e.tuning_programs import TRIAL

TRIALS = 6
"""Two of each of three jobs."""


@pytest.mark.soak  # Its jobs: test_grpc_clients.py; tuning jobs: test_tuning_sdk.py.
def test_tuning_jobs_are_created_listed_and_cancelled(
    service: Service, node_modules: Path, tmp_path: Path
) -> None:
    """Issue 4: created, listed in pages, cancelled while trials run; no process is left."""
    mark = new_mark()
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    said = f"import socket; socket.create_connection({listener.getsockname()!r}).sendall(b'x')"
    program = f"{TRIAL}\n# {mark}\n{said}\ntime.sleep(600)\n"
    Thread(target=_pass_on, args=(listener, begun), daemon=True).start()
    ready = tmp_path / "ready.json"
    ready.write_text(json.dumps(service.extra))
    script = Path(__file__).with_name("node_tuning.js")
    done = subprocess.run(
        ["node", str(script), str(ready), SKLEARN, program, str(begun)],
        env=environment(service.data)
        | {"NODE_PATH": str(node_modules), "METADATA_SERVER_DETECTION": "none"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["pages"] == 2
    assert seen["listed"] == list(reversed(seen["created"]))
    assert seen["trials"] == [["1", "ACTIVE"], ["2", "ACTIVE"]]
    assert seen["given"] == [["rate", "numberValue"], ["depth", "numberValue"]]
    for name in seen["created"]:
        service.finish(name.rsplit("/", 1)[1], 120)
        job = service.call("GET", f"/v1/{name}")
        assert (job["state"], job["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
        assert len(job["trials"]) == 2
    assert not marked(mark)


def _pass_on(listener: socket.socket, pipe: Path) -> None:
    """A byte into the pipe for each trial that calls: programs see no files of this test's."""
    with listener, pipe.open("wb", buffering=0) as told:
        for _ in range(TRIALS):
            caller, _ = listener.accept()
            told.write(caller.recv(1))
            caller.close()
