"""The conformance suite on the Kubernetes engine, on real nodes of a real cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conformance.lab import Lab
from tests.engines.conformance.suite import Conformance
from tests.kubernetes.conformance_lab import KubernetesEngineLab
from tests.kubernetes.lab import KubernetesLab
from tests.soaks import SOAKS

pytestmark = pytest.mark.kubernetes


class TestKubernetes(Conformance):
    @pytest.fixture
    def lab(self, kubernetes_lab: KubernetesLab, tmp_path: Path) -> Iterator[Lab]:
        yield KubernetesEngineLab(kubernetes_lab, tmp_path, kills=6 if SOAKS else 1)
        kubernetes_lab.clear()
