"""The conformance suite, run by a process on the lab's login node (test_conformance_users.py)."""

import json
import os
from pathlib import Path

import pytest

from tests.commands import execute
from tests.engines.conformance.lab import Lab
from tests.engines.conformance.suite import Conformance
from tests.slurm.conformance_lab import ClusterLab, settle_at_once, slurm_engine
from tests.slurm.nodes import until

SETTINGS = "TRAINSHED_TESTS_SLURM_SETTINGS"
"""Variable that contains the table [engines.slurm] as JSON."""


class TestOnLoginNode(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
        settle_at_once(monkeypatch)
        # Each test is a separate service. The next start releases its idle allocations.
        for _ in until("the end of all allocations"):
            if not (jobs := execute("squeue", "-h", "-o", "%i").stdout.split()):
                break
            execute("scancel", *jobs)
        return ClusterLab(slurm_engine, tmp_path, json.loads(os.environ[SETTINGS]), kills=1)
