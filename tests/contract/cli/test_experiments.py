"""`trainshed experiments`: what is asked of the service, and what is printed."""

import json
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService
from trainshed.wire.trainshed_v1.experiments import (
    Curve,
    Experiment,
    ExperimentList,
    ExperimentRun,
    ExperimentRuns,
    Value,
)
from trainshed.wire.trainshed_v1.record import plain

EXPERIMENTS = "/trainshed/v1/experiments"
AT = "2026-11-20T05:55:42.123456Z"
HOSTILE = "\x1b]0;gone\x07\x1b[2Jrm\u202e\nnext"
"""Sets the title, clears the terminal, turns the direction of text, begins a line."""


def run(name: str, metrics: dict[str, Value] | None = None, **parameters: Value) -> ExperimentRun:
    return ExperimentRun(
        name=name,
        state="COMPLETE",
        created=AT,
        changed=AT,
        parameters=parameters,
        metrics=metrics or {},
    )


def described(*runs: ExperimentRun, token: str = "", count: int | None = None) -> dict[str, Any]:
    experiment = Experiment(
        name="churn",
        description="who leaves",
        runs=len(runs) if count is None else count,
        created=AT,
        changed=AT,
    )
    return plain(
        ExperimentRuns(
            project="p",
            location="us-central1",
            experiment=experiment,
            runs=runs,
            next_page_token=token,
        )
    )


def there_are(service: FakeService, *runs: ExperimentRun) -> None:
    service.on("GET", f"{EXPERIMENTS}/churn", described(*runs))


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_experiments_are_listed_page_by_page(trainshed: Invoke, service: FakeService) -> None:
    pages = [
        ExperimentList(
            project="p",
            location="us-central1",
            experiments=(Experiment(name=name, runs=3, created=AT, changed=AT, description="why"),),
            next_page_token=token,
        )
        for name, token in (("new", "t"), ("old", ""))
    ]
    service.on("GET", EXPERIMENTS, *map(plain, pages))
    result = trainshed("experiments", "list")
    assert result.exit_code == 0, result.output
    assert rows(result.stdout) == [
        ["EXPERIMENT", "RUNS", "CHANGED", "DESCRIPTION"],
        ["new", "3", "2026-11-20", "05:55:42", "why"],
        ["old", "3", "2026-11-20", "05:55:42", "why"],
    ]
    assert [asked.query.get("pageToken") for asked in service.asked] == [None, "t"]
    assert service.asked[0].query == {"project": "p", "region": "us-central1"}


def test_an_empty_list_says_so(trainshed: Invoke, service: FakeService) -> None:
    service.on("GET", EXPERIMENTS, plain(ExperimentList(project="q", location="europe-west1")))
    where = ("--project", "q", "--region", "europe-west1")
    result = trainshed("experiments", "list", *where)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "No experiments in q, europe-west1" in result.stderr
    assert json.loads(trainshed("experiments", "list", *where, "--format", "json").stdout) == []


def test_a_run_is_described_with_its_curves_and_jobs(
    trainshed: Invoke, service: FakeService
) -> None:
    job = "projects/p/locations/us-central1/customJobs/7"
    second = ExperimentRun(
        name="second",
        state="RUNNING",
        created=AT,
        parameters={"lr": 0.1, "layers": 3.0, "fast": True, "opt": "adam"},
        metrics={"acc": 0.93},
        curves=(
            Curve(name="loss", steps=(1, 2, 9), values=(4.0, 2.0, 1.0)),
            Curve(name="odd", steps=(1, 2), values=(1.0, None)),
            Curve(name="none"),
        ),
        jobs=(job,),
    )
    service.on("GET", f"{EXPERIMENTS}/churn", described(second, run("first"), count=30))
    result = trainshed("experiments", "describe", "churn")
    assert result.exit_code == 0, result.output
    head, body = result.stdout.split("\n\n", 1)
    assert "churn  (p, us-central1)" in head and "who leaves" in head
    assert "lr=0.1, layers=3, fast=true, opt=adam" in body
    assert "acc=0.93" in body
    assert "loss        █▃▁  1 at step 9" in body
    assert "odd         ▄·  – at step 2" in body
    assert f"job         {job}" in body
    assert "28 older ones are not shown" in body
    assert service.asked[0].query["curves"] == "true" and service.asked[0].query["limit"] == "20"
    # A run without anything is a line.
    assert ["first", "COMPLETE", "2026-11-20", "05:55:42"] in rows(body)


def test_an_experiment_without_runs(trainshed: Invoke, service: FakeService) -> None:
    there_are(service)
    assert "Runs         0" in trainshed("experiments", "describe", "churn").stdout
    result = trainshed("experiments", "compare", "churn")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "churn has no runs yet" in result.stderr


def test_runs_are_compared_by_what_differs_and_the_best_are_marked(
    trainshed: Invoke, service: FakeService
) -> None:
    there_are(
        service,
        run("c", {"val_loss": 0.5, "accuracy": 0.9, "size": 3.0}, lr=0.1, layers=3.0, opt="adam"),
        run("b", {"val_loss": 0.4, "accuracy": 0.9}, lr=0.2, layers=3.0, opt="adam"),
        run("a", {"val_loss": None, "size": 2.0}, lr=0.1, layers=3.0),
    )
    result = trainshed("experiments", "compare", "churn")
    assert result.exit_code == 0, result.output
    head, *lines = rows(result.stdout)
    assert head == [
        *("RUN", "STATE", "param.lr", "param.opt"),
        *("metric.val_loss", "metric.accuracy", "metric.size"),
    ]
    assert lines[:3] == [
        ["c", "COMPLETE", "0.1", "adam", "0.5", "★", "0.9", "3"],
        ["b", "COMPLETE", "0.2", "adam", "★", "0.4", "★", "0.9", "–"],
        ["a", "COMPLETE", "0.1", "–", "–", "–", "2"],
    ]
    assert "1 parameter with the same value in all runs" in result.stdout
    every = trainshed("experiments", "compare", "churn", "--all").stdout
    assert "param.layers" in every and "same value" not in every


def test_a_metric_orders_the_runs_and_says_which_is_better(
    trainshed: Invoke, service: FakeService
) -> None:
    there_are(
        service,
        run("none"),
        run("small", {"size": 1.0, "accuracy": 0.1}),
        run("large", {"size": 2.0, "accuracy": 0.9}),
    )

    def order(*options: str) -> list[str]:
        result = trainshed("experiments", "compare", "churn", *options)
        assert result.exit_code == 0, result.output
        return [line[0] for line in rows(result.stdout)[1:4]]

    assert order() == ["none", "small", "large"]
    assert order("--by", "size") == ["small", "large", "none"]
    assert order("--by", "size", "--descending") == ["large", "small", "none"]
    # Its name tells; who says otherwise is believed.
    assert order("--by", "accuracy") == ["large", "small", "none"]
    assert order("--by", "accuracy", "--ascending") == ["small", "large", "none"]
    wrong = trainshed("experiments", "compare", "churn", "--by", "speed")
    assert wrong.exit_code == 1 and "Those that they have: size, accuracy." in wrong.stderr
    assert trainshed("experiments", "compare", "churn", "--descending").exit_code == 2


def test_some_runs_are_compared_in_the_order_of_their_names(
    trainshed: Invoke, service: FakeService
) -> None:
    there_are(service, run("c", lr=1.0), run("b", lr=2.0), run("a", lr=3.0))
    result = trainshed("experiments", "compare", "churn", "a", "c", "a")
    assert [line[0] for line in rows(result.stdout)[1:]] == ["a", "c"]
    # Of a single run all is shown.
    assert "param.lr" in trainshed("experiments", "compare", "churn", "b").stdout
    missing = trainshed("experiments", "compare", "churn", "a", "x", "y")
    assert missing.exit_code == 1
    assert "no run 'x', 'y'. It has c, b, a." in missing.stderr


def test_json_is_for_programs(trainshed: Invoke, service: FakeService) -> None:
    there_are(
        service, run("b", {"loss": 1.0}, lr=1.0, n=3.0), run("a", {"loss": 2.0}, lr=2.0, n=3.0)
    )
    command = ("experiments", "compare", "churn", "--format", "json")
    document = json.loads(trainshed(*command).stdout)
    assert [each["name"] for each in document["runs"]] == ["b", "a"]
    assert (document["differing"], document["best"]) == (["lr"], {"loss": ["b"]})
    assert document["experiment"]["name"] == "churn"
    whole = trainshed("experiments", "describe", "churn", "--format", "json").stdout
    assert json.loads(whole)["runs"][0]["parameters"] == {"lr": 1.0, "n": 3.0}


@pytest.mark.parametrize("command", ["list", "describe", "compare"])
def test_names_and_values_of_others_do_nothing_to_a_terminal(
    trainshed: Invoke, service: FakeService, command: str
) -> None:
    hostile = ExperimentRun(
        name=HOSTILE,
        state=HOSTILE,
        created=AT,
        parameters={HOSTILE: HOSTILE, "p": 1.0},
        metrics={HOSTILE: 1.0},
        curves=(Curve(name=HOSTILE, steps=(1,), values=(1.0,)),),
        jobs=(HOSTILE,),
    )
    experiment = Experiment(name=HOSTILE, description=HOSTILE, runs=2, created=AT, changed=AT)
    runs = ExperimentRuns(project="p", experiment=experiment, runs=(hostile, run("b")))
    service.on("GET", EXPERIMENTS, plain(ExperimentList(experiments=(experiment,))))
    service.on("GET", f"{EXPERIMENTS}/churn", plain(runs))
    result = trainshed(
        "experiments", command, *(["churn"] if command != "list" else []), color=True
    )
    assert result.exit_code == 0, result.output
    for sign in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\nnext"):
        assert sign not in result.stdout
    assert r"\x1b]0;gone" in result.stdout


def test_a_hundred_runs_are_two_pages_and_one_table(
    trainshed: Invoke, service: FakeService
) -> None:
    some = [run(f"r{number}", {"loss": float(number)}, lr=float(number)) for number in range(120)]
    service.on(
        "GET",
        f"{EXPERIMENTS}/churn",
        described(*some[:100], token="t", count=120),
        described(*some[100:], count=120),
    )
    result = trainshed("experiments", "compare", "churn", "--by", "loss", "--descending")
    lines = rows(result.stdout)
    assert len(service.asked) == 2 and len(lines) == 121
    assert lines[1] == ["r119", "COMPLETE", "119", "★", "119"]
    assert service.asked[1].query["pageToken"] == "t" and "curves" not in service.asked[0].query


def test_what_is_not_there_is_said_by_the_service(trainshed: Invoke, service: FakeService) -> None:
    service.refuse("GET", f"{EXPERIMENTS}/a/b", 404, "There is no experiment 'a/b' in p.")
    result = trainshed("experiments", "describe", "a/b")
    assert result.exit_code == 1 and "There is no experiment 'a/b'" in result.stderr
