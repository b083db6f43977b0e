"""A data directory without its database (spec/invariants#a-missing-database): no program is ended, and all
comes back. One from which it is removed under a service: `tests/contract/store/test_store_presence.py`."""

import json
from pathlib import Path

from tests.e2e.processes import leftovers, marked, new_mark
from tests.e2e.running import container_job, running, submit, trainshed
from tests.e2e.stories import at, make_pipe, until


def test_a_start_without_the_database_ends_no_program(
    data: Path, commons: Path, tmp_path: Path
) -> None:
    gate, mark = make_pipe(commons / "gate"), new_mark()
    with running(data) as service:
        program = f"print('begun', flush=True)\n{at(gate)}\nprint('on', flush=True)\n# {mark}"
        job_id = submit(service, container_job(program))
        until(service.follow(job_id), "begun")
        service.kill()
    programs = marked(mark)
    for path in data.glob("trainshed.*"):  # With the lock that says that there was one.
        path.replace(tmp_path / path.name)
    for _ in range(2):
        words = ("up", "--port", "0", "--data", str(data))
        (message,) = trainshed(*words, data=data, status=1).stderr.splitlines()
        assert message.startswith(
            f"Error: the job database {data}/trainshed.db is gone; slots/ of 1 job"
        )
        assert f"mv {data} {data}.old" in message
    assert programs and marked(mark) == programs
    report = trainshed("doctor", "--data", str(data), "--format", "json", data=data, status=1)
    (finding,) = [row for row in json.loads(report.stdout) if row["about"] == "database"]
    assert finding["verdict"] == "bad" and "is gone" in finding["text"]
    for path in tmp_path.glob("trainshed.*"):
        path.replace(data / path.name)
    with running(data) as service:
        gate.write_text("go")
        view = service.finish(job_id, 60)
        assert (view["state"], view["attempt"]) == ("SUCCEEDED", 1)
        assert view["replicas"][0]["incarnation"] == 1
        assert service.lines(job_id, "workerpool0-0")[-2:] == ["begun", "on"]
    assert not leftovers(data)
