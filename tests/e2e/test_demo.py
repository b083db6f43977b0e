"""`./dev demo`, the first step of the README, and its promises."""

import re
import shlex
import subprocess
from pathlib import Path

from tests.e2e.processes import find_marked, new_mark, wait_until_gone
from tests.e2e.running import ROOT, SKLEARN, command, environment, trainshed


def test_demo_trains_a_model_and_prints_its_location(tmp_path: Path) -> None:
    mark = new_mark()
    done = subprocess.run(
        # The small environment of other tests, instead of the default one.
        command(*_words(), "--data", str(tmp_path), "--image", SKLEARN),
        cwd=ROOT,
        env=environment(tmp_path) | {"MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=150,
        check=False,
    )
    output = done.stdout
    assert done.returncode == 0, output
    assert re.search(r"SUCCEEDED after", output)
    accuracy = re.search(r"final accuracy (0\.\d+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.9, "it learned"
    for replica in ("workerpool0-0", "workerpool1-0", "workerpool1-1"):
        assert replica in output
    where = re.search(r"On disk +(\S+)", output)
    assert where is not None
    outputs = Path(where[1])
    assert outputs.is_relative_to(tmp_path)
    assert (outputs / "model" / "model.npz").stat().st_size > 1000
    assert len(list((outputs / "checkpoints").iterdir())) == 6
    assert "Page" not in output, "the page is no longer served"
    wait_until_gone(find_marked(mark))
    listed = trainshed("jobs", "list", data=tmp_path, status=1)
    assert "No Trainshed service is running" in listed.stdout + listed.stderr
    assert "trainshed up" in listed.stdout + listed.stderr


def _words() -> list[str]:
    """The arguments of ./dev for it, without the command's name."""
    script = (ROOT / "dev").read_text().replace("\\\n", "")
    match = re.search(r'/trainshed" (run .*) "\$@"', script)
    assert match is not None
    return shlex.split(match[1])
