"""A replica that somebody kills from outside, in a real service. What engines tell of other ends is in
`tests/engines/conformance`, what follows from each in `tests/sim/test_traces.py`, the words of it in
`tests/unit/test_failure_table.py`."""

import os
import signal
from pathlib import Path

from tests.e2e.processes import new_mark, wait_until_gone
from tests.e2e.running import Service, submit
from tests.e2e.stories import (
    PLACE,
    PRIMARY,
    WAITS,
    WORKER,
    Verdict,
    at,
    pools,
    process_of,
    story_of,
    until,
)


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
    assert story.view["retries"] == {"replica_lost": 1}
    first, second = timeline["attempts"]
    lives = {replica["id"]: replica["incarnations"] for replica in first["replicas"]}
    assert {replica: len(handles) for replica, handles in lives.items()} == {
        **dict.fromkeys(others, 1),
        WORKER: 6,
    }
    signals = [life["exit"]["signal"] for life in lives[WORKER]]
    assert signals == [9, 15, 9, 15, 9, 9]
    assert (first["rule"], second["rule"]) == ("replica_lost", "primary_succeeded")
