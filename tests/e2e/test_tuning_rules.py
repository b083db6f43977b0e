"""What becomes of trials and of their tuning job (spec/tuning#early-stopping, facts/tuning): measured,
stopped, failed, cancelled, distributed."""

import json
from pathlib import Path
from typing import Any

from tests.e2e.processes import marked, new_mark, wait_until_gone
from tests.e2e.running import Service
from tests.e2e.tuning_programs import (
    TUNING_JOBS,
    double,
    final,
    finished,
    gates,
    job_id_of,
    job_of,
    meet,
    study_spec,
    tune,
    tuning,
    tuning_job,
    until_running,
)


def states(job: dict[str, Any]) -> list[str]:
    return [trial["state"] for trial in job["trials"]]


def test_a_trial_below_the_median_is_stopped(service: Service) -> None:
    """spec/tuning#early-stopping: median automated stopping; what the trial measured counts, and its program
    gets SIGTERM."""
    script = """
print("MARK %s")
for step in range(1, 6):
    report((1 if trial == 6 else 10 + trial) + step, step)
while trial == 6:
    step += 1
    report(6, step)
    time.sleep(0.02)
"""
    mark = new_mark()
    study = study_spec(medianAutomatedStoppingSpec={"useElapsedDuration": False})
    # Below five trials that are over the rule says nothing.
    body = tuning_job(script % mark, trials=7, parallel=2, study=study)
    job_id = tune(service, body)
    job = finished(service, job_id)
    assert job["state"] == "JOB_STATE_SUCCEEDED"
    assert states(job) == ["SUCCEEDED"] * 7
    assert [final(trial) for trial in job["trials"]] == [16, 17, 18, 19, 20, 6, 22]
    ended = [job_of(service, trial)["state"] for trial in job["trials"]]
    assert ended.pop(5) == "JOB_STATE_CANCELLED"
    assert ended == ["JOB_STATE_SUCCEEDED"] * 6
    entries = service.call("GET", f"/trainshed/v1/jobs/{job_id}/timeline")["entries"]
    (why,) = (entry for entry in entries if entry["kind"] == "trial_stopping")
    assert "median" in why["message"]
    assert not marked(mark)


def test_cancel_while_trials_run(service: Service, commons: Path) -> None:
    """spec/lifecycle#cancel, spec/tuning#trials: the job and its trials are CANCELLED, and no process is
    left."""
    mark = new_mark()
    gates(commons, "1", "2", "3")
    script = f"""
# {mark}
report(trial, 1)
open({str(commons)!r} + f"/{{trial}}", "w").close()
time.sleep(600)
"""
    job_id = tune(service, tuning_job(script, trials=9, parallel=3))
    for name in ("1", "2", "3"):
        meet(commons / name)
    until_running(service, job_id)
    running = tuning(service, job_id)
    assert states(running) == ["ACTIVE"] * 3
    for trial in running["trials"]:
        until_running(service, job_id_of(trial))
    programs = marked(mark)
    assert len(programs) >= 3
    service.call("POST", f"{TUNING_JOBS}/{job_id}:cancel", {})
    job = finished(service, job_id)
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    assert len(job["trials"]) == 3
    assert all(job_of(service, each)["state"] == "JOB_STATE_CANCELLED" for each in job["trials"])
    wait_until_gone(programs)
    assert not marked(mark)
    refused = service.call("POST", f"{TUNING_JOBS}/{job_id}:cancel", {}, expect=400)
    assert refused["error"]["status"] == "FAILED_PRECONDITION"
    service.call("DELETE", f"{TUNING_JOBS}/{job_id}")
    service.call("GET", f"{TUNING_JOBS}/{job_id}", expect=404)


def test_a_trial_of_two_pools(service: Service) -> None:
    """spec/program#cluster_spec, issue 4: `task.trial` in CLUSTER_SPEC and TF_CONFIG of every replica, and
    arguments for every one."""
    script = """
import json
print("SEEN " + json.dumps([
    json.loads(os.environ["CLUSTER_SPEC"])["task"],
    json.loads(os.environ["TF_CONFIG"])["task"],
    sorted(given),
]), flush=True)
# The worker is heard before the primary ends, and the trial with it.
told = f"/gcs/trainshed/pools/{trial}"
if "-workerpool1-" in os.environ["HOSTNAME"]:
    os.makedirs(told)
    time.sleep(600)
while not os.path.exists(told):
    time.sleep(0.02)
report(trial, 1)
"""
    study = study_spec(double("x"), double("rate", 1e-3, 1.0, "LOG"))
    body = tuning_job(script, trials=2, pools=(1, 1), study=study)
    job = finished(service, tune(service, body))
    assert job["state"] == "JOB_STATE_SUCCEEDED"
    for trial in job["trials"]:
        for pool, role in (("workerpool0", "chief"), ("workerpool1", "worker")):
            (line,) = (
                x for x in service.lines(job_id_of(trial), f"{pool}-0") if x.startswith("SEEN ")
            )
            task, config, given = json.loads(line.removeprefix("SEEN "))
            assert task["trial"] == config["trial"] == trial["id"]
            assert (task["type"], config["type"]) == (pool, role)
            assert given == ["rate", "x"]
