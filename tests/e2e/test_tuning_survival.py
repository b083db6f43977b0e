"""Tuning jobs and studies over the death of the service (spec/tuning#reproducible,
spec/invariants#durability): no trial lost, none doubled, and the same next suggestion out of what is
stored."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import leftovers, marked, new_mark
from tests.e2e.running import CUSTOM_JOBS, running
from tests.e2e.tuning_programs import (
    STUDIES,
    complete,
    double,
    final,
    finished,
    gates,
    integer,
    meet,
    runs,
    study_spec,
    suggested,
    tune,
    tuning_job,
)

TRIALS = 12


@pytest.mark.soak  # test_tuning_summaries.py kills once, tests/sim/test_parents.py everywhere.
def test_kills_lose_and_double_no_trial(data: Path, commons: Path) -> None:
    """spec/tuning#algorithms: at three random moments; every trial has one number, one job and one run, and
    all of them are done."""
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    mark = new_mark()
    moments = sorted(chance.sample(range(2, TRIALS + 1), 3))
    gates(commons, *(str(number) for number in moments))
    script = f"""
# {mark}
run_once("survival")
if trial in {moments}:
    open({str(commons)!r} + f"/{{trial}}", "w").close()
for step in range(1, 6):
    report(trial + step, step)
    time.sleep(0.05)
"""
    body = tuning_job(script, trials=TRIALS, parallel=4)
    job_id = ""
    for moment in moments:
        with running(data) as service:
            job_id = job_id or tune(service, body)
            meet(commons / str(moment))
            # Something else is going on at every one of these moments.
            time.sleep(chance.uniform(0, 0.3))
            service.kill()
    with running(data) as service:
        job = finished(service, job_id)
        told = f"seed {seed}, killed at trials {moments}: {job}"
        assert job["state"] == "JOB_STATE_SUCCEEDED", told
        numbers = range(1, TRIALS + 1)
        assert [trial["id"] for trial in job["trials"]] == [str(n) for n in numbers], told
        assert [final(trial) for trial in job["trials"]] == [n + 5 for n in numbers], told
        for trial in job["trials"]:
            assert [each["stepCount"] for each in trial["measurements"]] == list("12345"), told
        assert runs(service, "survival") == dict.fromkeys(numbers, 1), told
        jobs = service.call("GET", f"{CUSTOM_JOBS}?pageSize=100")["customJobs"]
        assert {each["name"] for each in jobs} == {each["customJob"] for each in job["trials"]}
        assert len(jobs) == TRIALS, told
        assert {each["state"] for each in jobs} == {"JOB_STATE_SUCCEEDED"}, told
    assert not marked(mark)
    assert not leftovers(data)


@pytest.mark.soak
def test_a_killed_service_and_a_copy_of_its_data_suggest_the_same(
    data: Path, tmp_path: Path
) -> None:
    """Issue 4: the same stored trials give the same next suggestion, whoever computes it."""
    with running(data) as service:
        spec = study_spec(double("x"), integer("n", 1, 50))
        body = {"displayName": "survivor", "studySpec": spec}
        study = service.call("POST", STUDIES, body)["name"]
        for _ in range(8):
            (trial,) = suggested(service, study, "first")
            x, n = (each["value"] for each in trial["parameters"])
            complete(service, trial, -((x - 0.3) ** 2) - n / 50)
        # One that is pending counts, too.
        pending = suggested(service, study, "second")
        service.kill()
    copy = tmp_path / "copy"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock", "slots", "service.json"))
    answers: list[Any] = []
    for directory in (data, copy):
        with running(directory) as service:
            assert suggested(service, study, "second") == pending
            trials = suggested(service, study, "third", 3)
            answers.append([(trial["id"], trial["parameters"]) for trial in trials])
    assert answers[0] == answers[1]
    assert [number for number, _ in answers[0]] == ["10", "11", "12"]
