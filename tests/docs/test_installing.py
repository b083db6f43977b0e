"""Where the guides say how a part of the service is installed, pip finds it: no index has the name."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.docs.blocks import pages

ROOT = Path(__file__).parents[2]
_EXTRAS = re.compile(r"trainshed\[([\w,-]+)\]")


def named() -> set[str]:
    """The extras that the guides name."""
    texts = (page.read_text("utf-8") for page in pages())
    return {name for text in texts for names in _EXTRAS.findall(text) for name in names.split(",")}


def test_extras_that_the_guides_name_are_there() -> None:
    project = tomllib.loads((ROOT / "packages/trainshed/pyproject.toml").read_text("utf-8"))[
        "project"
    ]
    assert "kubernetes" in named()
    assert named() <= set(project["optional-dependencies"])


def test_pip_adds_them_to_an_environment_that_has_the_service() -> None:
    """It asks no index for the service itself. Packages of extras come from one, and are left out."""
    wanted = f"trainshed[{','.join(sorted(named()))}]"
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--dry-run", wanted]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Requirement already satisfied: {wanted}" in done.stdout
