"""The conformance suite on the Slurm engine once more, on the login node, where there is nothing but Slurm's
own commands: of a service that is an ordinary user's, and of one that runs jobs as their project's user
(docs/slurm.md, "Whose identity jobs run as")."""

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.commands import execute
from tests.contract.ordinary_user import NOBODY
from tests.e2e.running import common_place
from tests.slurm.conformance_lab import TOLD, served
from tests.slurm.lab import SlurmLab
from tests.slurm.whole import on_login_node
from tests.soaks import SOAKS

IDENTITIES: dict[str, tuple[int, dict[str, Any]]] = {
    "an ordinary user": (NOBODY, {}),
    "users of projects": (0, {"users": {"*": "lab-ada"}}),
}
"""As whom the engine's process runs, and what is set besides."""
IN_SHORT = ("restarted_in_place", "outlive_the_service", "too_much_memory")
"""What is other for who is not root: how steps are begun, told apart and ended. All of it is a soak; of an
ordinary user's service: test_ordinary_user.py."""


def test_the_suite_in_short(slurm_lab: SlurmLab) -> None:
    """spec/program#isolation: root or not."""
    conforms(slurm_lab, "users of projects", "-k", " or ".join(IN_SHORT))


@pytest.mark.soak
@pytest.mark.parametrize("identity", IDENTITIES)
def test_the_whole_suite(slurm_lab: SlurmLab, identity: str) -> None:
    conforms(slurm_lab, identity)


def conforms(lab: SlurmLab, identity: str, *options: str) -> None:
    uid, more = IDENTITIES[identity]
    place = tempfile.mkdtemp(dir=common_place())
    os.chown(place, uid, uid)
    settings = {"address": lab.outside, **more}
    with served(lab) as switch:
        facts = {"switch": switch.fileno(), "settings": settings, "kills": 6 if SOAKS else 1}
        words = ["pytest", str(Path(__file__).with_name("elsewhere.py"))]
        words += ["-p", "no:cacheprovider", f"--basetemp={place}/t", *options]
        argv, environment = on_login_node(lab, words, uid)
        done = execute(
            *argv, env=environment | {TOLD: json.dumps(facts)}, pass_fds=(switch.fileno(),)
        )
    lab.clear()
    shutil.rmtree(place)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
