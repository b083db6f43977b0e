"""`trainshed jobs` for tuning jobs: requests and output (spec/tuning#studies)."""

from typing import Any

import pytest

from tests.contract.cli.fake_service import JOBS, FakeService, Stream, entry, job, line

PLACE = "projects/p/locations/us-central1"
NAME = f"{PLACE}/hyperparameterTuningJobs/7"


def trial(number: int, value: float | None = None, **changes: Any) -> dict[str, Any]:
    over = value is not None
    record: dict[str, Any] = {
        "number": number,
        "state": "SUCCEEDED" if over else "ACTIVE",
        "parameters": {"lr": 0.01 * number, "units": 8},
        "value": value,
        "step": 12 if over else 0,
        "startTime": "2026-11-20T06:00:01.000000Z",
        "endTime": "2026-11-20T06:00:04.000000Z" if over else "",
        "job": f"{PLACE}/customJobs/7{number}",
        "jobState": "SUCCEEDED" if over else "RUNNING",
        "curve": [[1, 0.5]],
    }
    return record | changes


def search(*trials: dict[str, Any], state: str = "RUNNING", **changes: Any) -> dict[str, Any]:
    valued = [item for item in trials if item["value"] is not None]
    best = max(valued, key=lambda item: item["value"], default=None)
    tuning = {
        "metric": "accuracy",
        "goal": "MAXIMIZE",
        "algorithm": "DEFAULT",
        "maxTrials": 12,
        "parallelTrials": 4,
        "firstTrial": 1,
        "replicas": 1,
        "succeeded": len(valued),
        "running": len(trials) - len(valued),
        "best": best["number"] if best else 0,
    }
    search = job(state=state, kind="tuning", name=NAME, tuning=tuning, trials=list(trials))
    return search | changes


def serve_search(service: FakeService, *views: dict[str, Any]) -> None:
    service.on("GET", f"{JOBS}/7", *views)
    service.on("GET", f"{JOBS}/7/watch", Stream(list(views)))
    entries = [
        entry("created", "It was created."),
        entry("trial_succeeded", "Trial 2 reached accuracy 0.75 at step 12, the best so far.", 4),
    ]
    service.on("GET", f"{JOBS}/7/timeline", {"name": NAME, "entries": entries})


OVER = search(trial(1, 0.5), trial(2, 0.75), state="SUCCEEDED")


def test_tuning_job_description_shows_the_best_trial_first(service: FakeService) -> None:
    service.on("GET", f"{JOBS}/7", search(trial(1, 0.5), trial(2, 0.75), trial(3)))
    lines = service.cli("jobs", "describe", "7").stdout.splitlines()
    assert lines[6:] == [
        "Tunes    accuracy, maximize (default, 4 at a time)",
        "Trials   2 of 12 done, 1 running",
        "Best     trial 2: accuracy 0.75 at step 12",
        "         lr     0.02",
        "         units  8",
        f"Its job  {PLACE}/customJobs/72",
        "",
        "TRIAL  STATE      accuracy  PARAMETERS",
        "1      SUCCEEDED       0.5  lr=0.01, units=8",
        "2      SUCCEEDED      0.75  lr=0.02, units=8",
        "3      ACTIVE            –  lr=0.03, units=8",
    ]


def test_watch_of_a_tuning_job_prints_trials_and_the_best_trial(service: FakeService) -> None:
    serve_search(service, search(trial(1)), OVER)
    result = service.cli("jobs", "watch", "7")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "06:00:00.000  created: It was created.",
        "06:00:04.000  trial_succeeded: Trial 2 reached accuracy 0.75 at step 12, the best so far.",
        "SUCCEEDED after 4.0s",
        "best is trial 2: accuracy 0.75 at step 12",
        "with lr=0.02, units=8",
    ]
    # Logs of many trials are not requested.
    assert not [request for request in service.sent if request.path.endswith("/logs")]


def test_watch_of_a_pipeline_prints_its_trials_and_model(service: FakeService) -> None:
    child = OVER | {"uid": "8"}
    own: dict[str, Any] = {
        "kind": "pipeline",
        "replicas": [],
        "pipeline": {"task": "hyperparameter_tuning_task", "job": NAME, "model": "m@1"},
        "child": child,
    }
    serve_search(service, job(state="SUCCEEDED") | own)
    output = [entry("created", "Below."), entry("trial_began", "Trial 1 of 12.", 1)]
    service.on("GET", f"{JOBS}/8/timeline", {"name": NAME, "entries": output})
    lines = service.cli("jobs", "watch", "7").stdout.splitlines()
    assert "06:00:01.000  trial_began: Trial 1 of 12." in lines
    assert not any("Below." in line for line in lines)
    assert lines[-1] == "model m@1"
    described = service.cli("jobs", "describe", "7").stdout
    assert f"Model    m@1\nRuns     {NAME}\nTunes    accuracy" in described


@pytest.mark.parametrize("words", [(), ("-f",)])
def test_logs_of_a_trial_exclude_other_trials(service: FakeService, words: tuple[str, ...]) -> None:
    """A follower stops at the end of the trial, although its tuning job continues."""
    service.on("GET", f"{JOBS}/7", search(trial(3)))
    lines = [line("workerpool0-0", "one")]
    service.on("GET", f"{JOBS}/{trial(3)['job']}/watch", Stream([job("73", "SUCCEEDED")]))
    service.on("GET", f"{JOBS}/{trial(3)['job']}/logs", Stream(lines))
    result = service.cli("jobs", "logs", "7", "--trial", "3", *words)
    assert (result.exit_code, result.stdout) == (0, "workerpool0-0  one\n"), result.stderr
    refused = service.cli("jobs", "logs", "7", "--trial", "4").stderr
    assert "has not started trial 4. Started trials: 3." in refused


@pytest.mark.parametrize(("trials", "text"), [((1, 3), "--trial 3"), ((), "started no trial yet")])
def test_logs_of_a_tuning_job_require_a_trial_number(
    service: FakeService, trials: tuple[int, ...], text: str
) -> None:
    service.on("GET", f"{JOBS}/7", search(*map(trial, trials)))
    result = service.cli("jobs", "logs", "7")
    assert result.exit_code == 1
    assert "is a tuning job" in result.stderr and text in result.stderr
