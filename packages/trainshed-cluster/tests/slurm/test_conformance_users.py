"""The conformance suite on the Slurm engine on the login node, which has only Slurm's own commands. The
service runs jobs as their project's user (docs/slurm.md, "Choose the users that jobs run as")."""

import json
import shutil
import tempfile
from pathlib import Path

from tests.commands import execute
from tests.e2e.running import common_place
from tests.slurm.lab import SlurmLab
from tests.slurm.login_node_suite import SETTINGS
from tests.slurm.services import on_login_node

IN_SHORT = ("restart_in_place", "programs_survive", "out_of_memory")
"""The tests that differ without root: starting, identifying and ending steps. test_ordinary_user.py tests a
service of an unprivileged user."""


def test_slurm_engine_passes_the_short_conformance_suite_on_the_login_node(slurm_lab: SlurmLab) -> None:
    """spec/program#isolation: with or without root."""
    place = tempfile.mkdtemp(dir=common_place())
    settings = {"address": slurm_lab.outside, "users": {"*": "lab-ada"}}
    words = ["pytest", str(Path(__file__).with_name("login_node_suite.py"))]
    words += ["-p", "no:cacheprovider", f"--basetemp={place}/t", "-k", " or ".join(IN_SHORT)]
    argv, environment = on_login_node(slurm_lab, words, 0)
    done = execute(*argv, env=environment | {SETTINGS: json.dumps(settings)})
    slurm_lab.clear()
    shutil.rmtree(place)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
