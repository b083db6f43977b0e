"""Programs that report as cloudml-hypertune does, and what their shims take down (spec/tuning#measurements,
facts/tuning#metrics)."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.contract.ordinary_user import as_root_only, run_as_nobody
from tests.contract.replica.conftest import Place
from trainshed.replica import protocol

# Behaves as cloudml-hypertune 0.1.0.dev6 was seen to: the whole file anew at every report, the newest 100
# lines of it.
LIBRARY = """
import collections, json, os, sys, time
class HyperTune:
    def __init__(self):
        self.path = os.environ['CLOUD_ML_HP_METRIC_FILE']
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self.queue = collections.deque(maxlen=100)
    def report(self, tag, value, step=None):
        self.queue.append({
            'timestamp': time.time(), 'trial': os.environ.get('CLOUD_ML_TRIAL_ID', '0'),
            tag: str(float(value)), 'global_step': str(int(step) if step else 0), 'checkpoint_path': '',
        })
        with open(self.path, 'w') as file:
            for line in self.queue:
                file.write(json.dumps(line, sort_keys=True) + '\\n')
tune = HyperTune()
"""
BURST = """
for step in range(1000): tune.report('acc', step / 8, step)
"""
ONE_AND_WAIT = """
tune.report('acc', 0.5, 1)
print('reported', flush=True)
time.sleep(60)
"""
BAD = """
tune.report('acc', 'nan', 1)
tune.report('loss', 0.5, 1)
with open(tune.path, 'a') as file: file.write('hello\\n')
"""


def run(place: Place, program: str, **fields: object) -> Any:
    where = "/var/hypertune"
    if place.level == protocol.LEVEL_SESSION:
        where = f"{place.slot}/files/hypertune"
    environ = {
        "PATH": "/usr/bin:/bin",
        "CLOUD_ML_TRIAL_ID": "3",
        "CLOUD_ML_HP_METRIC_FILE": f"{where}/output.metrics",
    }
    values = {"watch_metrics": True, "environ": environ} | fields
    return place.python(LIBRARY + program, **values)


def entries(place: Place) -> list[dict[str, Any]]:
    path = place.logs / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def values(place: Place, tag: str = "acc") -> list[tuple[int, float]]:
    found = [entry for entry in entries(place) if tag in entry.get("values", ())]
    return [(entry["step"], entry["values"][tag]) for entry in found]


def said(place: Place) -> list[str]:
    segment = place.logs / "000000000000.jsonl"
    lines = [json.loads(line) for line in segment.read_text().splitlines()]
    return [line["m"] for line in lines if line["s"] == "b"]


def test_metrics_are_told_while_the_program_runs(place: Place) -> None:
    """spec/tuning#measurements: read live."""
    line = run(place, ONE_AND_WAIT)
    line.hear("metrics")
    started, report = entries(place)
    assert started["incarnation"] == 1
    assert (report["step"], report["values"]) == (1, {"acc": 0.5})
    assert started["started"] < report["at"] < started["started"] + 60 * 10**9
    line.order(o="stop", grace=0)
    assert line.record()["stopped"]


def test_a_burst_of_reports(place: Place) -> None:
    """The file holds 100 of these thousand at a time; the last of them are there whatever the shim missed."""
    assert run(place, BURST).record()["exit_code"] == 0
    found = values(place)
    steps = [step for step, _ in found]
    assert steps == sorted(set(steps))
    assert all(value == step / 8 for step, value in found)
    assert steps[-100:] == list(range(900, 1000))
    assert said(place) == []


def test_what_was_reported_last_is_there_when_the_end_is_told(place: Place) -> None:
    """spec/invariants#last-lines-first; and the report of a program that is killed at once."""
    record = run(place, "tune.report('acc', 0.25, 7)\nos.kill(os.getpid(), 9)").record()
    assert record["signal"] == signal.SIGKILL
    assert values(place) == [(7, 0.25)]


def test_the_next_incarnation_adds_to_it(place: Place) -> None:
    assert run(place, "tune.report('acc', 0.25, 7)").record()["exit_code"] == 0
    assert run(place, "tune.report('acc', 0.5, 8)").record()["exit_code"] == 0
    assert values(place) == [(7, 0.25), (8, 0.5)]
    assert [entry["incarnation"] for entry in entries(place)] == [1, 1, 2, 2]


def test_what_does_not_count_is_told_in_the_log(place: Place) -> None:
    assert run(place, BAD).record()["exit_code"] == 0
    assert values(place) == []
    assert values(place, "loss") == [(1, 0.5)]
    assert sorted(text.split(" ")[:3] for text in said(place)) == [
        ["A", "line", "of"],
        ["The", "metric", '"acc"'],
    ]


def test_nobody_listens_to_what_is_no_trial(place: Place) -> None:
    run(place, "tune.report('acc', 0.5, 1)", watch_metrics=False).record()
    assert entries(place) == []


def test_programs_read_no_files_of_others_by_the_shims_hand(place: Place) -> None:
    """spec/program#isolation."""
    secret = place.slot.parents[1] / "secret"
    secret.write_text("password\n")
    program = f"os.symlink({str(secret)!r}, tune.path)"
    assert run(place, program).record()["exit_code"] == 0
    assert ["link" in text for text in said(place)] == [True]
    assert "password" not in "".join(said(place))


def test_what_was_reported_outlives_its_shim(place: Place) -> None:
    """spec/failures#lost-replicas: our shim killed; what comes after it goes on."""
    line = run(place, ONE_AND_WAIT)
    line.hear("metrics")
    os.kill(place.journal()["shim"], signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionError)):
        line.hear("exited")
    assert values(place) == [(1, 0.5)]
    assert run(place, "tune.report('acc', 0.75, 2)").record()["exit_code"] == 0
    assert values(place) == [(1, 0.5), (2, 0.75)]


@pytest.mark.soak
@as_root_only
def test_the_same_as_an_ordinary_user() -> None:
    """spec/program#isolation: root or not. A few of it: `test_ordinary_user.py`."""
    run_as_nobody(str(Path(__file__)), timeout=300)
