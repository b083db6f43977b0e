"""The conformance suite as a process on the lab's login node runs it (test_conformance_users.py)."""

from pathlib import Path

import pytest

from tests.engines.conformance.lab import Lab
from tests.engines.conformance.suite import Conformance
from tests.slurm.conformance_lab import new_lab, settle_at_once


class TestElsewhere(Conformance):
    @pytest.fixture
    def lab(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
        settle_at_once(monkeypatch)
        return new_lab(tmp_path)
