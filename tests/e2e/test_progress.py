"""How far a job is, from end to end: what programs print."""

from pathlib import Path

from tests.e2e.running import PROJECT, Service, container_job, submit, trainshed
from tests.e2e.stories import at, make_pipe, until

EPOCHS = """
import time
for epoch in range(1, 5):
    time.sleep(0.3)
    print(f"epoch {epoch}/8 loss {1 / epoch:.3f}", flush=True)
"""


def test_what_a_program_prints_says_how_far_it_is(service: Service, commons: Path) -> None:
    def output_of(*words: str) -> str:
        return trainshed("jobs", *words, data=service.data).stdout

    gate = make_pipe(commons / "prints")
    job = submit(service, container_job(EPOCHS + "print('READY', flush=True)\n" + at(gate)))
    until(service.follow(job), "READY")
    progress = service.call("GET", f"/trainshed/v1/jobs/{job}")["progress"]
    assert (progress["text"], progress["done"], progress["source"]) == (
        "epoch 4 of 8",
        0.5,
        "output",
    )
    assert 0.2 < progress["remainingSeconds"] < 60
    jobs = service.call("GET", "/trainshed/v1/jobs?project=-&glance=true&state=RUNNING")["jobs"]
    (glance,) = (listed["glance"] for listed in jobs if listed["jobId"] == job)
    assert glance["progress"] == "epoch 4 of 8"
    assert glance["remainingSeconds"] is not None
    assert "50 %, epoch 4 of 8, " in output_of("list", "--project", PROJECT)
    assert "50 %, epoch 4 of 8, " in output_of("describe", job)
    gate.write_text("")
    assert service.finish(job)["state"] == "SUCCEEDED"
