"""What README.md and the guides tell their readers to type does what they say, against a real service.

The blocks are run as they stand, in the order of tests/docs/table.py. `JOB` stands for one of three jobs
(tests/docs/bed.py).
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.bed import Bed, make, pattern_of, start, stop
from tests.docs.blocks import Block, shown, without_comment
from tests.docs.table import BLOCKS, INPUTS, JOBS, NOT_RUN, File, Runs

pytestmark = pytest.mark.soak
_SHOWN = {block.key: block for block in shown()}
_ENVIRONMENT = 'eval "$(trainshed env)"'


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = make(tmp_path_factory.mktemp("docs"))
    for key, row in BLOCKS.items():
        if isinstance(row, File):
            (made.work / row.name).write_text(_SHOWN[key].text)
    start(made)
    yield made
    assert "ended" in stop(made)


@pytest.mark.parametrize("key", [key for key, row in BLOCKS.items() if isinstance(row, Runs)])
def test_a_block_does_what_its_page_says(key: str, bed: Bed) -> None:
    block, row = _SHOWN[key], BLOCKS[key]
    assert isinstance(row, Runs)
    if "gcloud" in block.text and shutil.which("gcloud") is None:
        pytest.skip("gcloud is NOT INSTALLED: this block was not tried")
    script = _console(block, row) if block.language == "console" else _program(row, block, bed.work)
    run = (bed.terminal if row.terminal else bed.shell)(script)
    assert run.returncode == 0, run.stdout
    assert row.says in run.stdout, run.stdout
    assert "Traceback" not in run.stdout, run.stdout


def _console(block: Block, row: Runs) -> str:
    """A script of the block's commands that ends at the first which does not end as it should."""
    lines = [_ENVIRONMENT] if "gcloud" in block.text else []
    for number, typed in enumerate(block.commands):
        command = without_comment(typed)
        if NOT_RUN.match(command):
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
    texts = [row.prelude, *(_SHOWN[key].text for key in row.after), block.text]
    (work / "shown.py").write_text("\n".join(texts))
    return f"{_ENVIRONMENT}\npython shown.py"
