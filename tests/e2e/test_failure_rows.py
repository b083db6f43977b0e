"""A scripted run per row of the failure table (spec/failures): real programs in a real service, judged by the
public API, the timeline and the log. The last test says whether a row has none. What a program prints first
is `stories.BEGUN`."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.e2e.packages import package_job
from tests.e2e.processes import leftovers, marked, new_mark, wait_until_gone
from tests.e2e.running import CUSTOM_JOBS, Service, container_job, running, submit
from tests.e2e.stories import (
    ABORTS,
    BEGUN,
    PLACE,
    PRIMARY,
    WORKER,
    Verdict,
    at,
    pools,
    process_of,
    run,
    scheduled,
    story_of,
    telling,
    until,
    user_code,
    verdicts,
)
from tests.failure_entries import toml
from trainshed.core.failure.table import RULES

GRACE = 1
MEMORY_MIB = 256
QUICK_RULES = toml("internal_error", back_off=[0.1, 0.2])
"""What the service failed at is soon tried again."""
WAITS = "import signal; signal.pause()"

Test = TypeVar("Test", bound=Callable[..., None])
ROWS: set[str] = set()
"""Rows of the table that a test here has a job go through."""


def row(name: str) -> Callable[[Test], Test]:
    """The test is a scripted run of that row."""

    def mark(test: Test) -> Test:
        ROWS.add(name)
        return test

    return mark


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A short grace, little memory per replica, one node, failures of the service that are soon tried
    again."""
    data = tmp_path_factory.mktemp("rows")
    config = data / "settings.toml"
    config.write_text(f"grace = {GRACE}\nmemory_per_replica = {MEMORY_MIB}\n{QUICK_RULES}")
    with running(data / "data", "--config", str(config)) as started:
        yield started
    assert not leftovers(data / "data")


# --- success ---


@row("primary_succeeded")
def test_the_primary_s_exit_0_is_the_job_s_success(service: Service, gate: Path) -> None:
    """spec/failures#rules, first row; spec/lifecycle#success: the others are shut down, and their exit codes
    do not matter."""
    worker = (
        "import os, signal\n"
        "def told(*_):\n    print('told to stop', flush=True); os._exit(7)\n"
        "signal.signal(signal.SIGTERM, told)\n"
        f"open({str(gate)!r}, 'w').close()\n"
        "while True: signal.pause()"
    )
    story = story_of(service, run(service, at(gate), worker))
    assert story.state == "SUCCEEDED"
    assert "error" not in story.public
    assert story.view["rule"] == "primary_succeeded"
    (verdict,) = story.of_kind("verdict")
    assert (verdict["details"]["rule"], verdict["details"]["effect"]) == (
        "primary_succeeded",
        "job_succeeds",
    )
    assert (verdict["details"]["replica"], verdict["details"]["exit_code"]) == (PRIMARY, 0)
    assert story.begun == {PRIMARY: 1, WORKER: 1}
    assert "told to stop" in service.lines(story.view["jobId"], WORKER)
    (over,) = story.of_kind("succeeded")
    assert over["details"]["rule"] == "primary_succeeded"


@row("replica_completed")
def test_a_worker_s_exit_0_is_its_own_affair(service: Service, gate: Path) -> None:
    """spec/failures#rules: that replica is done, the job goes on, and it is not started again."""
    job_id = run(service, at(gate), "pass")
    for view in service.watch(job_id):
        if view["replicas"][1]["state"] == "EXITED":
            break
    assert verdicts(service, job_id) == [Verdict("replica_completed", "replica_done", WORKER)]
    gate.write_text("")
    story = story_of(service, job_id)
    assert story.state == "SUCCEEDED"
    assert story.begun == {PRIMARY: 1, WORKER: 1}


# --- the program's own end ---


HOG = f"x = bytearray({MEMORY_MIB * 3} << 20); print(len(x))"


@row("out_of_memory")
def test_out_of_memory_is_final(service: Service) -> None:
    """spec/failures#messages: FAILED at once with its own message; a worker's as well as the primary's."""
    jobs = {PRIMARY: run(service, HOG), WORKER: run(service, WAITS, HOG)}
    for replica, job_id in jobs.items():
        story = story_of(service, job_id)
        assert (story.state, story.code) == ("FAILED", 3)
        assert (
            story.message
            == f"The replica {replica} ran out of memory and exited with a non-zero status of 137."
        )
        assert story.verdicts == [Verdict("out_of_memory", "job_fails", replica)]
        assert story.begun[replica] == 1
        assert story.view["failure"]["cause"] == "out_of_memory"


TRANSIENT = {"raise SystemExit(134)": 134, ABORTS: 134, "import ctypes; ctypes.string_at(0)": 139}
"""An exit and deaths; each code: tests/unit/test_failure_table.py."""
THREE_RETRIES = [
    *(Verdict("transient_exit", "job_retries", budget=f"{n}/3") for n in (1, 2, 3)),
    Verdict("transient_exit", "job_fails"),
]


@row("transient_exit")
def test_crashes_are_tried_three_times_more(service: Service) -> None:
    """spec/failures#crashes: exit codes 6, 134, 11, 139 and deaths by SIGABRT and SIGSEGV, in a container's
    spelling."""
    jobs = {run(service, text): status for text, status in TRANSIENT.items()}
    for job_id, status in jobs.items():
        story = story_of(service, job_id)
        user_code(story, status)
        assert story.verdicts == THREE_RETRIES
        assert story.begun == {PRIMARY: 4}
        assert story.view["attempt"] == 4
        assert story.view["retries"] == {"transient_exit": 3}


FINAL = {
    "raise SystemExit(137)": 137,
    "raise ValueError('no such luck')": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGBUS)": 135,
    "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), signal.SIGINT)": 130,
}


@row("user_code_failed")
def test_any_other_end_of_the_program_s_own_is_final(service: Service) -> None:
    """spec/failures#user-code: other non-zero exits, codes of 129 and more among them, and signals of the
    program's own making."""
    jobs = {run(service, script): status for script, status in FINAL.items()}
    for job_id, status in jobs.items():
        story = story_of(service, job_id)
        user_code(story, status)
        assert story.verdicts == [Verdict("user_code_failed", "job_fails")], status
        assert story.begun == {PRIMARY: 1}
        assert f"please check the logs: {service.rest}/jobs/{job_id}" in story.message


@row("package_failed")
def test_a_package_that_cannot_be_installed_is_the_job_s_own_fault(service: Service) -> None:
    """spec/failures#rules, docs/failure-table.md: no retry would help."""
    story = story_of(service, submit(service, package_job("gs://trainshed/nowhere/pkg-1.0.tar.gz")))
    user_code(story, 1)
    assert "gs://trainshed/nowhere/pkg-1.0.tar.gz does not exist" in story.message
    assert story.verdicts == [Verdict("package_failed", "job_fails", replica="")]
    assert not story.begun


# --- lost through no fault of the program's ---


@row("replica_lost")
def test_a_replica_killed_from_outside_is_restarted_in_its_place(
    service: Service, gate: Path
) -> None:
    """spec/failures#lost-replicas: on the same node with the same hostname, index and working directory, five
    times in an attempt; the others' processes are not touched. The sixth time the whole job is retried."""
    mark = new_mark()
    body = pools(f"print('up', flush=True)\n{at(gate)}", (f"{PLACE}{WAITS}", 2), mark=mark)
    job_id = submit(service, body)
    log = service.follow(job_id, WORKER)
    others = (PRIMARY, "workerpool1-1")
    for other in others:
        until(service.follow(job_id, other), "up")
    untouched = {other: process_of(mark, other) for other in others}
    heard = [until(log, "up")]
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        os.kill(process_of(mark, WORKER), number)
        heard.append(until(log, "up"))
    assert {other: process_of(mark, other) for other in others} == untouched
    assert len({lines[-1] for lines in heard}) == 1, "another hostname, directory or cluster"
    lives = [f"life-{n}" for n in range(5)]
    listings = [next(line for line in lines if line.startswith("found")) for lines in heard]
    assert listings == [f"found {lives[:n]}" for n in range(6)]
    view = service.call("GET", f"/trainshed/v1/jobs/{job_id}")
    assert view["state"] == "RUNNING"
    assert view["replicas"][1]["restarts"] == {"replica_lost": 5}
    assert [replica["incarnation"] for replica in view["replicas"]] == [1, 6, 1]

    os.kill(process_of(mark, WORKER), signal.SIGKILL)
    until(log, "up")
    wait_until_gone(list(untouched.values()))
    gate.write_text("")
    story = story_of(service, job_id)
    assert story.state == "SUCCEEDED"
    assert story.verdicts == [
        *(Verdict("replica_lost", "replica_restarts", WORKER, f"{n}/5") for n in range(1, 6)),
        Verdict("replica_lost", "job_retries", WORKER, "1/3"),
    ]
    assert story.begun[WORKER] == 7
    assert story.begun[PRIMARY] == 2
    places = [entry["details"] for entry in story.of_kind("replica_started")]
    first = [place["node"] for place in places if place["replica"] == WORKER][:6]
    assert len(first) == 6 and len(set(first)) == 1
    timeline = service.call("GET", f"/trainshed/v1/jobs/{job_id}/timeline")
    counters = {"retries": {"replica_lost": 1}, "restarts": {"replica_lost": 5}}
    assert timeline["counters"] == counters
    first, second = timeline["attempts"]
    lives = {replica["id"]: replica["incarnations"] for replica in first["replicas"]}
    assert {replica: len(handles) for replica, handles in lives.items()} == {
        **dict.fromkeys(others, 1),
        WORKER: 6,
    }
    signals = [life["exit"]["signal"] for life in lives[WORKER]]
    assert signals == [9, 15, 9, 15, 9, 9]
    assert (first["rule"], second["rule"]) == ("replica_lost", "primary_succeeded")


# --- the service's own failures, and cancels ---


@row("internal_error")
def test_what_the_service_fails_at_is_tried_three_times_in_all(service: Service) -> None:
    """spec/failures#service-failures: code 13 and its message; the typed cause stands beside it. Here the
    engine has no place for a log."""
    logs = service.data / "logs"
    logs.rename(logs.with_name("logs-away"))
    logs.write_text("no directory")
    try:
        job_id = run(service, "print('never')")
        assert service.finish(job_id)["state"] == "FAILED"
    finally:
        logs.unlink()
        logs.with_name("logs-away").rename(logs)
    story = story_of(service, job_id)
    assert (story.state, story.code) == ("FAILED", 13)
    assert story.message.startswith("Internal error occurred for the current attempt: ")
    assert story.verdicts == [
        Verdict("internal_error", "job_retries", budget="1/2"),
        Verdict("internal_error", "job_retries", budget="2/2"),
        Verdict("internal_error", "job_fails"),
    ]
    assert story.view["attempt"] == 3
    assert story.view["failure"]["cause"] == "service"
    assert "NotADirectoryError" in story.view["failure"]["reason"]
    assert all("NotADirectoryError" in entry["message"] for entry in story.of_kind("verdict"))
    assert not story.begun


@row("cancelled")
def test_a_cancel_ends_a_job_that_would_be_restarted_for_ever(service: Service) -> None:
    """spec/lifecycle#cancel: works in every state, restarts and retries under way included;
    spec/failures#rules: code 1, the reason in the message."""
    body = scheduled(container_job("", pools=(1,)))
    body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["command"] = [
        *("python3", "-c", telling("import os, time; time.sleep(0.05); os.kill(os.getpid(), 9)"))
    ]
    job_id = submit(service, body)
    log = service.follow(job_id)
    for _ in range(3):
        until(log, BEGUN)
    service.call("POST", f"{CUSTOM_JOBS}/{job_id}:cancel", {})
    story = story_of(service, job_id)
    assert (story.state, story.code) == ("CANCELLED", 1)
    assert story.message == "CANCELED: The job was cancelled by the user."
    assert story.view["rule"].startswith("cancelled")
    assert 3 <= story.begun[PRIMARY] < 24


# --- what ends and cancels leave behind ---


def test_grandchildren_and_daemons_are_gone_after_the_end(service: Service) -> None:
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
    job_id = run(service, script)
    assert service.finish(job_id)["state"] == "SUCCEEDED"
    assert not marked(mark)
    assert "main is done" in service.lines(job_id)


ELSEWHERE = {
    *("stock_out", "preempted", "budget_used_up"),
    *("out_of_disk", "data_failed", "reducer_lost"),
}
"""Scripted in `test_queueing`, `test_team`, `test_reduction`, `tests/contract/engines/test_disks.py` and
`tests/sim/test_controller.py`."""
ON_CLUSTERS = {
    "node_failed",
    "agent_lost",
    "pod_evicted",
    "allocation_revoked",
    "allocation_expired",
    "cluster_preempted",
    "launch_rejected",
}
"""Scripted in `test_service_rows.py` and `test_service_faults.py` of `tests.slurm` and `tests.kubernetes`;
what becomes `pod_evicted` is in `tests.kubernetes.unit.test_look`."""


def test_every_row_of_the_table_has_a_scripted_run() -> None:
    assert {rule.name for rule in RULES} == ROWS | ELSEWHERE | ON_CLUSTERS
