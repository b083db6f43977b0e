"""The conformance suite as a process on the lab's login node runs it (test_conformance_users.py)."""

from pathlib import Path

import pytest

from tests.engines.conformance.lab import Lab
from tests.engines.conformance.suite import Conformance
from tests.slurm.conformance_lab import new_lab


class TestElsewhere(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        return new_lab(tmp_path)
