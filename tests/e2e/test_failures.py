"""Jobs that fail, are cancelled or run out of something (spec/lifecycle#cancel, spec/failures), over a real
service."""

from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.e2e.packages import submit_endless_build
from tests.e2e.processes import leftovers, marked, new_mark, wait_until_gone
from tests.e2e.running import CUSTOM_JOBS, Service, container_job, running, submit

GRACE = 1
MAX_REPLICAS = 4
MEMORY_MIB = 256
STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with a short grace and little memory per replica."""
    data = tmp_path_factory.mktemp("frail")
    config = data / "settings.toml"
    config.write_text(
        f"grace = {GRACE}\nmax_replicas = {MAX_REPLICAS}\nmemory_per_replica = {MEMORY_MIB}\n"
    )
    with running(data / "data", "--config", str(config)) as started:
        yield started
    assert not leftovers(data / "data")


def run(service: Service, script: str, *, pools: tuple[int, ...] = (1,)) -> str:
    return submit(service, container_job(script, pools=pools))


def by_role(primary: str, others: str) -> str:
    """A script that does one thing in the primary and another in all other replicas."""
    return (
        "import os, json\n"
        "primary = json.loads(os.environ['CLUSTER_SPEC'])['task']['type'] == 'workerpool0'\n"
        f"exec({primary!r} if primary else {others!r})"
    )


def wait_for_line(service: Service, job_id: str, wanted: str) -> None:
    """Read the job's log as it grows until a line says `wanted`."""
    assert any(line == wanted for line in service.follow(job_id)), f"{wanted!r} never came"


def running_state(service: Service, job_id: str) -> dict[str, Any]:
    return next(view for view in service.watch(job_id) if view["state"] == "RUNNING")


def kinds(service: Service, job_id: str) -> list[str]:
    answer = service.call("GET", f"/trainshed/v1/jobs/{job_id}/timeline")
    return [entry["kind"] for entry in answer["entries"]]


def test_a_traceback_ends_in_the_public_message_with_last_lines_and_link(frail: Service) -> None:
    """spec/failures#user-code, "any other non-zero exit"."""
    job_id = run(frail, "print('so far so good')\nraise ValueError('no such luck')")
    view = frail.finish(job_id)
    assert view["state"] == "FAILED"
    assert view["error"]["code"] == 3
    message = view["error"]["message"]
    assert message.startswith(
        "The replica workerpool0-0 exited with a non-zero status of 1. Termination reason: Error."
    )
    assert "ValueError: no such luck" in message
    assert "so far so good" in message
    assert (
        "Not every package" not in message
    )  # what the service says is not the program's last line
    page = f"{frail.rest}/jobs/{job_id}"
    assert f"why your job exited please check the logs: {page}" in message, "a page that is there"
    with pytest.raises(HTTPError) as answer:
        urlopen(page)
    assert answer.value.code == 401, "it is there, for whoever has signed in"
    assert "text/html" in answer.value.headers["content-type"]
    public = frail.call("GET", f"{CUSTOM_JOBS}/{job_id}")
    assert public["state"] == "JOB_STATE_FAILED"
    assert public["error"] == {"code": 3, "message": message}
    assert "ValueError: no such luck" in frail.lines(job_id)


def test_the_primary_s_success_ends_workers_that_ignore_sigterm(frail: Service) -> None:
    """spec/lifecycle#success: SIGTERM, grace, SIGKILL; their exit codes do not matter."""
    mark = new_mark()
    script = by_role("print('done')", f"{STUBBORN}; print('up', flush=True); time.sleep(600)")
    view = frail.finish(run(frail, f"{script} # {mark}", pools=(1, 2)))
    assert view["state"] == "SUCCEEDED"
    assert not marked(mark)


def test_grandchildren_and_daemons_are_gone_after_the_end(frail: Service) -> None:
    mark = new_mark()
    script = f"""
import os, subprocess, sys, time
deaf = "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
sleeper = [sys.executable, "-c", deaf, {mark!r}]
for _ in range(20):
    subprocess.Popen(sleeper, start_new_session=True, stdout=subprocess.DEVNULL)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.environ["MARK"] = {mark!r}
        os.execve("/bin/sleep", ["sleep", "600"], os.environ)
    os._exit(0)
print("main is done")
"""
    job_id = run(frail, script)
    assert frail.finish(job_id)["state"] == "SUCCEEDED"
    assert not marked(mark)
    assert "main is done" in frail.lines(job_id)


def test_a_command_that_is_not_there_is_named(frail: Service) -> None:
    body = container_job("")
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"] = ["no-such-command"]
    view = frail.finish(submit(frail, body))
    assert view["state"] == "FAILED"
    assert "non-zero status of 127" in view["error"]["message"]
    assert "no-such-command: command not found" in view["error"]["message"]


def test_cancel_while_running_ends_a_program_that_ignores_sigterm(frail: Service) -> None:
    """spec/lifecycle#cancel: idempotent, leaves no process, FAILED_PRECONDITION after the end."""
    mark = new_mark()
    job_id = run(frail, f"{STUBBORN}; print('up', flush=True); time.sleep(600) # {mark}")
    wait_for_line(frail, job_id, "up")
    name = f"{CUSTOM_JOBS}/{job_id}"
    refused = frail.call("DELETE", name, expect=400)["error"]
    assert refused["status"] == "FAILED_PRECONDITION"
    for _ in range(3):
        assert frail.call("POST", f"{name}:cancel", {}) == {}
    states = [view["state"] for view in frail.watch(job_id)]
    assert states[-1] == "CANCELLED"
    assert set(states) <= {"RUNNING", "CANCELLING", "CANCELLED"}
    assert not marked(mark)
    assert frail.call("GET", name)["error"]["code"] == 1
    again = frail.call("POST", f"{name}:cancel", {}, expect=400)["error"]
    assert again["status"] == "FAILED_PRECONDITION"
    assert kinds(frail, job_id).count("cancel_requested") == 1


def test_cancel_lets_a_program_checkpoint_within_its_grace(frail: Service) -> None:
    """spec/program#stopping: SIGTERM with a grace time before SIGKILL."""
    script = (
        "import signal, sys, time\n"
        "def checkpoint(*_):\n"
        "    print('checkpointed', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, checkpoint); print('up', flush=True); time.sleep(600)"
    )
    job_id = run(frail, script)
    wait_for_line(frail, job_id, "up")
    frail.call("POST", f"{CUSTOM_JOBS}/{job_id}:cancel", {})
    assert frail.finish(job_id)["state"] == "CANCELLED"
    assert "checkpointed" in frail.lines(job_id)


def test_a_finished_job_can_be_deleted_and_is_gone(frail: Service) -> None:
    job_id = run(frail, "print('short')")
    frail.finish(job_id)
    name = f"{CUSTOM_JOBS}/{job_id}"
    operation = frail.call("DELETE", name)
    assert operation["done"] is True
    assert frail.call("GET", f"/v1/{operation['name']}")["done"] is True
    for verb, path in (("GET", name), ("DELETE", name), ("POST", f"{name}:cancel")):
        assert frail.call(verb, path, expect=404)["error"]["status"] == "NOT_FOUND"
    assert not (frail.data / "logs" / job_id).exists()


def test_cancel_while_the_runtime_is_prepared(frail: Service) -> None:
    """A package whose build would take minutes: the job is over at once, the build is stopped."""
    mark = new_mark()
    job_id = submit_endless_build(frail, mark).job_id
    building = marked(mark)
    assert building
    frail.call("POST", f"{CUSTOM_JOBS}/{job_id}:cancel", {})
    view = frail.finish(job_id)
    assert view["state"] == "CANCELLED"
    assert view["error"]["message"] == "The job was cancelled by the user."
    wait_until_gone(building)


def test_cancel_while_queued(frail: Service) -> None:
    """spec/lifecycle#cancel: a cancel works in every state before the end."""
    first = run(frail, "import time; time.sleep(600)", pools=(1, MAX_REPLICAS - 1))
    running_state(frail, first)
    second = run(frail, "print('never')")
    assert frail.call("GET", f"{CUSTOM_JOBS}/{second}")["state"] == "JOB_STATE_QUEUED"
    third = run(frail, "print('runs when there is room')")
    for job_id in (second, first):
        frail.call("POST", f"{CUSTOM_JOBS}/{job_id}:cancel", {})
        assert frail.finish(job_id)["state"] == "CANCELLED"
    assert frail.lines(second) == []
    assert frail.finish(third)["state"] == "SUCCEEDED"
