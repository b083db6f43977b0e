"""Drills in a real service (spec/operations#drills): each kind hits a program that saves its step to a
bucket, and the report is held against what the program itself logged."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.processes import leftovers
from tests.e2e.running import CUSTOM_JOBS, Service, container_job, running, submit
from tests.failure_entries import toml

KINDS = ("kill", "segv", "oom", "maintenance", "preempt", "stockout", "internal")
LAST = 60
PROGRAM = """
import os, time, urllib.error, urllib.parse, urllib.request
api, name = os.environ["STORAGE_EMULATOR_HOST"], {name!r}
def latest():
    try:
        path = api + "/storage/v1/b/trainshed/o/" + urllib.parse.quote(name, safe="") + "?alt=media"
        return int(urllib.request.urlopen(path).read())
    except urllib.error.HTTPError:
        return 0
def save(step):
    path = api + "/upload/storage/v1/b/trainshed/o?uploadType=media&name=" + urllib.parse.quote(name)
    urllib.request.urlopen(urllib.request.Request(path, str(step).encode(), method="POST")).read()
step = latest() if {resumes} else 0
if step:
    print("restored the checkpoint of step", step, flush=True)
while step < {last}:
    step += 1
    print("step", step, "of {last}", flush=True)
    if step % 5 == 0:
        save(step)
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two nodes, a short grace, and stock-outs and failures of the service that are soon over."""
    data = tmp_path_factory.mktemp("drills")
    config = data / "settings.toml"
    config.write_text(
        "grace = 1\nnodes = 2\n"
        + toml("stock_out", back_off=[0.5])
        + toml("internal_error", back_off=[0.5])
    )
    with running(data / "data", "--config", str(config)) as started:
        yield started
    assert not leftovers(data / "data")


def program(run: str, *, resumes: bool = True) -> str:
    return PROGRAM.format(name=f"{run}/checkpoint", resumes=resumes, last=LAST)


def job(run: str, script: str) -> dict[str, Any]:
    body = container_job(script)
    body["jobSpec"]["baseOutputDirectory"] = {"outputUriPrefix": f"gs://trainshed/{run}"}
    return body


def ordered(service: Service, job_id: str, **drill: Any) -> None:
    answer = service.call("POST", f"/trainshed/v1/jobs/{job_id}:drill", drill)
    assert answer["number"] == 1


@pytest.fixture(scope="module")
def drilled(service: Service) -> dict[str, str]:
    """A job for each kind of drill, and one that forgets its checkpoint; all run at the same time."""
    jobs: dict[str, str] = {}
    for name in (*KINDS, "forgetful"):
        job_id = submit(service, job(name, program(name, resumes=name != "forgetful")))
        kind = name if name in KINDS else "kill"
        ordered(service, job_id, kind=kind, atLine="step 12 ")
        jobs[name] = job_id
    return jobs


def report(service: Service, job_id: str) -> dict[str, Any]:
    """The report on the only drill of a job, after the job's end."""
    service.finish(job_id)
    found = service.call("GET", f"/trainshed/v1/jobs/{job_id}/resumeReport")
    (drill,) = found["drills"]
    return drill | {"result": found["result"]}


def runs(service: Service, job_id: str) -> list[list[int]]:
    """The steps that the program logged, of each of its lives."""
    lives: list[list[int]] = []
    for line in service.lines(job_id):
        if match := re.match(r"step (\d+) of", line):
            step = int(match[1])
            if not lives or step <= lives[-1][-1]:
                lives.append([])
            lives[-1].append(step)
    return lives


@pytest.mark.parametrize(
    ("kind", "rule", "effect"),
    [
        ("kill", "replica_lost", "replica_restarts"),
        ("maintenance", "replica_lost", "replica_restarts"),
        ("segv", "transient_exit", "job_retries"),
        ("preempt", "preempted", "job_retries"),
        ("stockout", "stock_out", "job_retries"),
        ("internal", "internal_error", "job_retries"),
    ],
)
def test_a_job_that_resumes_is_reported_so(
    service: Service, drilled: dict[str, str], kind: str, rule: str, effect: str
) -> None:
    """spec/operations#drills: injected into a real job; spec/failures: what the rule of that name decides."""
    found = report(service, drilled[kind])
    assert (found["drill"]["kind"], found["drill"]["state"]) == (kind, "done")
    assert (found["verdict"]["rule"], found["verdict"]["effect"]) == (rule, effect)
    assert found["verdict"]["count"] == 1
    assert (found["outcome"], found["result"]) == ("resumed", "PASS"), found
    before, after = (found["steps"][key]["number"] for key in ("before", "after"))
    lines = service.lines(drilled[kind])
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    assert steps == [*range(1, before + 1), *range(after, LAST + 1)], lines
    assert after % 5 == 1, "from a checkpoint on"
    assert found["lost"] == before - after + 1
    assert 0 <= found["downSeconds"] <= found["silentSeconds"] < 30
    restart = found["restart"]
    assert (restart["attempt"], restart["incarnation"]) == (
        (1, 2) if effect == "replica_restarts" else (2, 1)
    )


def test_a_job_that_forgets_its_checkpoint_is_caught(
    service: Service, drilled: dict[str, str]
) -> None:
    """spec/operations#drills: so that people find out before it matters."""
    found = report(service, drilled["forgetful"])
    assert (found["outcome"], found["result"]) == ("started_over", "FAIL")
    first, again = runs(service, drilled["forgetful"])
    assert found["lost"] == len(first)
    assert again == list(range(1, LAST + 1))
    assert "looks for its latest one when it starts" in found["advice"]


def test_a_job_that_runs_out_of_memory_is_over(service: Service, drilled: dict[str, str]) -> None:
    """spec/failures#out-of-memory: out of memory is not retried, and so nothing is known of resuming."""
    found = report(service, drilled["oom"])
    assert found["verdict"]["rule"] == "out_of_memory"
    assert (found["outcome"], found["restart"], found["result"]) == ("unknown", None, "UNKNOWN")
    assert "out_of_memory" in found["why"]
    public = service.call("GET", f"{CUSTOM_JOBS}/{drilled['oom']}")
    assert public["state"] == "JOB_STATE_FAILED"
    assert "memory" in public["error"]["message"]
