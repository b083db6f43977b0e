"""The conformance suite on the Slurm engine once more, on the login node, where there is nothing but Slurm's
own commands, of a service that runs jobs as their project's user (docs/slurm.md, "Choose the users
that jobs run as")."""

import json
import shutil
import tempfile
from pathlib import Path

from tests.commands import execute
from tests.e2e.running import common_place
from tests.slurm.elsewhere import SETTINGS
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import on_login_node

IN_SHORT = ("restart_in_place", "programs_survive", "out_of_memory")
"""What is other for who is not root: how steps are begun, told apart and ended. Of a service that is an
ordinary user's: test_ordinary_user.py."""


def test_the_suite_in_short(slurm_lab: SlurmLab) -> None:
    """spec/program#isolation: root or not."""
    place = tempfile.mkdtemp(dir=common_place())
    settings = {"address": slurm_lab.outside, "users": {"*": "lab-ada"}}
    words = ["pytest", str(Path(__file__).with_name("elsewhere.py"))]
    words += ["-p", "no:cacheprovider", f"--basetemp={place}/t", "-k", " or ".join(IN_SHORT)]
    argv, environment = on_login_node(slurm_lab, words, 0)
    done = execute(*argv, env=environment | {SETTINGS: json.dumps(settings)})
    slurm_lab.clear()
    shutil.rmtree(place)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
