"""The Kubernetes cluster that all tests of a run share."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.lab import KubernetesLab, unavailable_reason


@pytest.fixture(scope="session")
def kubernetes_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesLab]:
    """A cluster whose nodes are ready and empty before and after each test."""
    reason = unavailable_reason()
    if reason:
        pytest.skip(f"NOT TESTED: the Kubernetes engine: {reason}")
    with KubernetesLab(tmp_path_factory.mktemp("kubernetes")) as lab:
        yield lab
