"""`trainshed run` against a real service: the README's shortest way to a job of one's own."""

import json
import os
import signal
from pathlib import Path

from tests.e2e import running
from tests.e2e.running import SKLEARN, Service

PROGRAM = """\
import os, pathlib, sys
import helper
out = pathlib.Path("/gcs") / os.environ["AIP_MODEL_DIR"][len("gs://"):]
out.mkdir(parents=True, exist_ok=True)
(out / "model.txt").write_text(helper.words(sys.argv[1:]))
print("wrote", os.environ["GREETING"], sys.argv)
"""


def test_a_script_becomes_a_job_with_its_files_its_words_and_its_model(
    service: Service, tmp_path: Path
) -> None:
    (tmp_path / "task.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("def words(given): return ' '.join(given)\n")
    done = running.trainshed(
        *("run", "task.py", "--image", SKLEARN, "--env", "GREETING=hello", "--watch"),
        *("--name", "mine", "--", "--epochs", "3"),
        data=service.data,
        cwd=tmp_path,
    )
    assert "task.py on scikit-learn-cpu" in done.stderr
    assert "wrote hello ['task.py', '--epochs', '3']" in done.stdout
    assert "SUCCEEDED after" in done.stdout
    name = done.stdout.splitlines()[0]
    spec = service.call("GET", f"/v1/{name}")["jobSpec"]
    output = spec["baseOutputDirectory"]["outputUriPrefix"].removeprefix("gs://")
    model = Path(str(service.extra["buckets"])) / output / "model/model.txt"
    assert model.read_text() == "--epochs 3", json.dumps(spec)


def test_a_service_in_the_background_says_what_it_took_over(data: Path, gate: Path) -> None:
    """Killed, and started again: the job ran on, and its timeline says that nobody was there."""

    def trainshed(*words: str) -> str:
        return running.trainshed(*words, data=data).stdout

    program = gate.parent / "wait.sh"
    program.write_text(f"cat {gate}\n")
    assert "Trainshed serves" in trainshed("up", "--detach", "--port", "0")
    try:
        name = trainshed("run", str(program), "--image", SKLEARN, "--detach").strip()
        while (
            json.loads(trainshed("jobs", "describe", name, "--format", "json"))["state"]
            != "RUNNING"
        ):
            pass
        os.kill(json.loads(trainshed("status", "--format", "json"))["pid"], signal.SIGKILL)
        assert "Taken over: 1 job that ran on" in trainshed("up", "--detach", "--port", "0")
        gate.write_text("")
        assert "SUCCEEDED" in trainshed("jobs", "wait", "wait", "--timeout", "60")
        assert "The service was away, for" in trainshed("jobs", "timeline", "@last")
    finally:
        trainshed("down")
