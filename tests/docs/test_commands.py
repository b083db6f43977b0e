"""Runs the commands of README.md and the guides against a real service, and checks their effects.

The blocks run unchanged, in the order of tests/docs/table.py. `JOB` is replaced by one of three jobs.
"""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.blocks import Block, input_blocks, without_comment
from tests.docs.table import BLOCKS, INPUTS, JOBS, SKIPPED_COMMANDS, File, Runs
from tests.e2e.gcloud import ALONE
from tests.e2e.packages import wheel
from tests.e2e.running import SLIM, environment

_SETTINGS = f"""\
nodes = 2
[[images]]
pattern = "*-docker.pkg.dev/vertex-ai/training/*"
runtime = "scikit-learn {SLIM}"
[[buckets]]
name = "handover"
"""
"""Use one small environment for all prebuilt images: `./dev test-runtimes` tests their contents, and
test_first_example.py runs examples/first in PyTorch.
"""

_TRAINING_PROGRAM = """\
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
epochs = parser.parse_known_args()[0].epochs
for epoch in range(1, epochs + 1):
    print(f"epoch {epoch}/{epochs} loss {1 / epoch:.3f}", flush=True)
if directory := os.environ.get("AIP_MODEL_DIR"):
    directory = pathlib.Path(directory.replace("gs://", "/gcs/"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.txt").write_text("a model")
"""
_FAILING_PROGRAM = "print('so far so good')\nraise SystemExit('no data today')\n"
_RESUMING_PROGRAM = """\
import os, pathlib, time
place = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"].replace("gs://", "/gcs/"))
place.mkdir(parents=True, exist_ok=True)
kept = place / os.environ["RANK"]
step = int(kept.read_text()) if kept.exists() else 0
while True:
    step += 1
    kept.with_suffix(".new").write_text(str(step))
    kept.with_suffix(".new").rename(kept)
    # The guides' drills wait for 'epoch 3 '.
    print(f"step {step} of epoch 3 is done", flush=True)
    time.sleep(0.1)
"""
_SPEC: dict[str, object] = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": 1,
    "containerSpec": {
        "imageUri": "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest",
        "command": ["python3", "-c", "print('hello')"],
    },
}
_GANG = """\
workerPoolSpecs:
- &pool
  machineSpec: {machineType: n1-standard-4}
  replicaCount: 1
  containerSpec:
    imageUri: us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest
    command: [python3, -c, 'import time; [print("step", n) or time.sleep(0.1) for n in range(600)]']
- *pool
"""
_DRILLS = """\
drills:
- {kind: kill, replica: workerpool1-0, atLine: "step 120 "}
- {kind: maintenance, after: 30s}
"""


@dataclass(frozen=True, slots=True)
class ShellEnvironment:
    """A shell environment for the blocks."""

    #: The directory of every block.
    work: Path
    environ: Mapping[str, str]

    def shell(self, script: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a script with bash; return both outputs combined."""
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", script],
            cwd=self.work,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )

    def terminal(self, script: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a script in a terminal, where `trainshed run` follows its job."""
        master, slave = pty.openpty()
        process = subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", script],
            cwd=self.work,
            env={**self.environ, "TERM": "dumb", "NO_COLOR": "1"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        output = bytearray()
        try:
            while select.select([master], [], [], seconds)[0]:
                output += os.read(master, 65536)
        except OSError:
            pass  # The other side is closed.
        finally:
            os.close(master)
            process.kill()
        return subprocess.CompletedProcess(script, process.wait(), output.decode())

    def run_successfully(self, script: str) -> str:
        """Return the output of a script that exits with 0."""
        run = self.shell(script)
        assert run.returncode == 0, run.stdout
        return run.stdout


def make(place: Path) -> ShellEnvironment:
    """Prepare files and variables, without a service."""
    home, work, links, commands = (place / name for name in ("home", "work", "wheels", "bin"))
    for directory in (home / ".config/systemd/user", work, links, commands):
        directory.mkdir(parents=True)
    for name, text in _files().items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
        (work / name).chmod(0o755)
    for package in ("pandas", "humanize"):
        # Names are resolved in this checkout, without an index.
        content = wheel(package, "__version__ = '99.0'\n", "99.0")
        (links / f"{package}-99.0-py3-none-any.whl").write_bytes(content)
    _executable(commands / "trainshed", f'exec {sys.executable} -m trainshed "$@"')
    _executable(commands / "python", f'exec {sys.executable} "$@"')
    data = home / ".trainshed"
    environ = {
        **environment(data),
        "HOME": str(home),
        "PATH": f"{commands}:{os.environ['PATH']}",
        "MY_API_KEY": "an api key",
        "CLOUDSDK_CONFIG": str(home / "gcloud"),
        **ALONE,
    }
    return ShellEnvironment(work, environ)


def _files() -> dict[str, str]:
    return {
        "examples/first/task.py": _TRAINING_PROGRAM,
        "task.py": _TRAINING_PROGRAM,
        "data.csv": "rooms,price\n1,100\n2,200\n3,300\n",
        "trainer/__init__.py": "",
        "trainer/task.py": _TRAINING_PROGRAM,
        "fails.py": _FAILING_PROGRAM,
        "going.py": _RESUMING_PROGRAM,
        "job.json": json.dumps({"displayName": "j", "jobSpec": {"workerPoolSpecs": [_SPEC]}}),
        "job.yaml": _GANG,
        "worse.yaml": _DRILLS,
        "key.pem": "a private key\n",
        "trainshed.toml": _SETTINGS,
        "model/model.txt": "a model",
        "plan.json": '[{"job": "nightly-*", "prints": "the model of today"}]',
        "deploy.sh": "#!/bin/sh\ntrainshed run --image company/train:7 --name nightly-7 --watch\n",
    }


def _executable(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


def start(bed: ShellEnvironment) -> None:
    """Start the service with three jobs: one finished, one failed, one running."""
    # Download it if missing. Later steps use no index.
    bed.run_successfully(f"trainshed runtimes build scikit-learn={SLIM}")
    offline = f"UV_NO_INDEX=1 UV_FIND_LINKS={bed.work.parent / 'wheels'}"
    bed.run_successfully(f"{offline} trainshed up --detach --port 0 --config trainshed.toml")
    image = "--image scikit-learn --detach"
    bed.run_successfully(
        f"trainshed run task.py {image} --name done --replicas 2\n"
        f"trainshed run fails.py {image} --name failed\n"
        f"trainshed run going.py {image} --name going --replicas 2\n"
        "trainshed buckets cp -r model gs://trainshed/runs/7/model\n"
        "trainshed buckets cp -r model gs://trainshed/runs/8/model\n"
        "trainshed jobs wait done && ! trainshed jobs wait failed\n"
        "trainshed jobs logs -f going 2>/dev/null | grep -q -m1 'step 3 of' || true\n"
    )


def pattern_of(command: str, table: Mapping[str, object]) -> str | None:
    """Return the first entry of a table whose pattern matches the start of a command."""
    return next((pattern for pattern in table if re.match(pattern, command)), None)


pytestmark = pytest.mark.soak
_BLOCKS = {block.key: block for block in input_blocks()}
_ENVIRONMENT = 'eval "$(trainshed env)"'


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShellEnvironment]:
    made = make(tmp_path_factory.mktemp("docs"))
    for key, row in BLOCKS.items():
        if isinstance(row, File):
            (made.work / row.name).write_text(_BLOCKS[key].text)
    start(made)
    yield made
    assert "ended" in made.run_successfully("trainshed down")


@pytest.mark.parametrize("key", [key for key, row in BLOCKS.items() if isinstance(row, Runs)])
def test_command_block_of_the_docs_has_its_documented_effect(key: str, bed: ShellEnvironment) -> None:
    block, row = _BLOCKS[key], BLOCKS[key]
    assert isinstance(row, Runs)
    if "gcloud" in block.text and shutil.which("gcloud") is None:
        pytest.skip("gcloud is NOT INSTALLED: this block was not tried")
    script = _console(block, row) if block.language == "console" else _program(row, block, bed.work)
    run = (bed.terminal if row.terminal else bed.shell)(script)
    assert run.returncode == 0, run.stdout
    assert row.expected_output in run.stdout, run.stdout
    assert "Traceback" not in run.stdout, run.stdout


def _console(block: Block, row: Runs) -> str:
    """Return a script of the block's commands that stops at the first unexpected exit status."""
    lines = [_ENVIRONMENT] if "gcloud" in block.text else []
    for number, typed in enumerate(block.commands):
        command = without_comment(typed)
        if SKIPPED_COMMANDS.match(command):
            continue
        text = pattern_of(command, INPUTS)
        job = JOBS.get(pattern_of(command, JOBS) or "", row.job)
        command = re.sub(r"\bJOB\b", job, re.sub(r"\bOTHER\b", "going", command))
        if text is not None:
            command += f" <<'INPUT'\n{INPUTS[text]}INPUT"
        failed = f"echo 'Failed: command {number + 1}'"
        lines.append(command + "\n[ $? = 0 ] || { " + failed + "; exit 97; }")
    return "\n".join(lines)


def _program(row: Runs, block: Block, work: Path) -> str:
    texts = [row.prelude, *(_BLOCKS[key].text for key in row.after), block.text]
    (work / "shown.py").write_text("\n".join(texts))
    return f"{_ENVIRONMENT}\npython shown.py"
