"""The conformance suite on the Kubernetes engine, on real nodes of a real cluster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.conformance_lab import KubernetesEngineLab
from tests.kubernetes.lab import KubernetesLab
from tests.soaks import SOAKS
from trainshed.engines.conformance.lab import Lab
from trainshed.engines.conformance.suite import Conformance

pytestmark = pytest.mark.kubernetes


class TestKubernetes(Conformance):
    @pytest.fixture
    def lab(self, kubernetes_lab: KubernetesLab, tmp_path: Path) -> Iterator[Lab]:
        yield KubernetesEngineLab(kubernetes_lab, tmp_path, kills=6 if SOAKS else 1)
        kubernetes_lab.clear()
